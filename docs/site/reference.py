"""The reference: pages written from the code, the registries and the schemas at build time."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any
from unittest import mock

from docstrings import documented
from links import ROOT, SOURCE

import mlpkit
from mlpkit.cli import VERBS, main
from mlpkit.cli.catalogue import default_of, entry_facts, type_name
from mlpkit.configs.run import RunConfig
from mlpkit.hookspecs import Hooks
from mlpkit.plugins import registries
from mlpkit.plugins.registries import KINDS
from mlpkit.schema import schema_of

WIDTH = 88  # of what is printed
PAGES: dict[str, Callable[[], Iterator[str]]] = {}
# The objects that the functions of mlpkit return or take, by the module that users import.
RETURNED = {
    "mlpkit.model": ("Decoder", "Block"),
    "mlpkit.moe": ("MoE",),
    "mlpkit.routing": ("Routing", "Record"),
    "mlpkit.describe": ("Description",),
    "mlpkit.data": ("Document",),
}


def page(name: str) -> Callable[[Callable[[], Iterator[str]]], Callable[[], Iterator[str]]]:
    """Makes a generator of Markdown a page of the reference."""

    def add(function: Callable[[], Iterator[str]]) -> Callable[[], Iterator[str]]:
        PAGES[f"reference/{name}.md"] = function
        return function

    return add


@cache
def pages() -> dict[str, str]:
    """Every page: its place on the site and its Markdown."""
    # what happens to be installed beside mlpkit is no part of it
    with mock.patch.dict(os.environ, {"MLPKIT_PLUGINS": "", "COLUMNS": str(WIDTH)}):
        return {place: "\n".join(function()) for place, function in PAGES.items()}


@page("python")
def python() -> Iterator[str]:
    """Every public name."""
    yield "# Python\n"
    yield "Every name that `import mlpkit` gives, then what its functions return, then the"
    yield "conformance kit. Shapes: B batch, S sequence, T tokens (= B·S), H hidden,"
    yield "I intermediate, E experts, K experts per token.\n"
    for name in sorted(mlpkit.__all__):
        if name == "hookimpl":  # pluggy's own words are about pluggy
            yield f"## `mlpkit.{name}`\n"
            yield "Marks a function of a plugin as [the hook](hooks.md) of its name.\n"
        elif name != "__version__":
            yield from documented(f"mlpkit.{name}", getattr(mlpkit, name), 2)
    for module, names in {**RETURNED, "mlpkit.testing": checks()}.items():
        for name in names:
            value = getattr(import_module(module), name)
            yield from documented(f"{module}.{name}", value, 2)
            yield from methods(f"{module}.{name}", value)


def checks() -> tuple[str, ...]:
    """The functions of the conformance kit."""
    names = import_module("mlpkit.testing").__all__
    return tuple(name for name in names if name.startswith("check_"))


def methods(title: str, value: Any) -> Iterator[str]:
    """The public methods that a class defines itself."""
    for name, method in vars(value).items() if inspect.isclass(value) else ():
        shown = not name.startswith("_") and name != "extra_repr"
        if shown and inspect.isfunction(method) and method.__doc__:
            yield from documented(f"{title}.{name}", method, 3)


@page("command-line")
def command_line() -> Iterator[str]:
    """The help of every verb."""
    yield "# Command line\n"
    yield f"```text\n{printed()}\n```\n"
    for verb, (_, line) in VERBS.items():
        yield f"## `mlpkit {verb}`\n"
        yield f"{line[0].upper()}{line[1:].rstrip(' …')}.\n"
        yield f"```text\n{printed(verb)}\n```\n"


def printed(*verb: str) -> str:
    """What ``mlpkit VERB --help`` prints."""
    out = io.StringIO()
    argv = mock.patch.object(sys, "argv", list(sys.argv))  # Hydra reads it, so train sets it
    with argv, contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*verb, "--help"])
    # Hydra's ends with the whole configuration, which has a page of its own
    text = out.getvalue().partition("\n== Config ==")[0].strip()
    return "\n".join(
        textwrap.fill(row, WIDTH, subsequent_indent="    ") for row in text.split("\n")
    )


def entries(kind: str, title: str) -> None:
    """Makes the page of a kind's entries."""

    @page(kind)
    def written() -> Iterator[str]:
        yield f"# {title}\n"
        registry = registries().by_noun()[kind]
        yield f"What `mlpkit list {kind}` lists, and `mlpkit show {kind} NAME` shows.\n"
        yield "| Name | What it is |\n| --- | --- |"
        for spec in registry.list():
            yield f"| [`{spec.name}`](#{spec.name}) | {cell(spec.summary)} |"
        yield ""
        for spec in registry.list():
            yield from entry(kind, spec)


def entry(kind: str, spec: Any) -> Iterator[str]:
    """Everything about one entry."""
    facts = entry_facts(kind, spec, registries().by_noun()[kind])
    module = spec.target.partition(":")[0]
    yield f"## {spec.name}\n"
    yield f"{spec.summary[:1].upper()}{spec.summary[1:]}\n"
    skipped = {"name", "summary", "source", "provider", "options", "option_docs"}
    for key, value in facts.items():
        if key not in skipped and value not in ("", (), None, []):
            shown = ", ".join(value) if isinstance(value, tuple | list) else str(value)
            shown = shown if key == "paper" else f"`{shown}`"
            yield f"- {key.replace('_', ' ')}: {shown}"
    yield f"- source: {module_link(facts['source'], module)}\n"
    fields = [f for f in dataclasses.fields(schema_of(kind, spec)) if f.name != "name"]
    if fields:
        yield "| Option | Type | Default | Meaning |\n| --- | --- | --- | --- |"
        for field in fields:
            doc = facts["option_docs"].get(field.name) or field.metadata.get("doc", "")
            row = (type_text(field), default_text(field), meaning(doc, field.metadata))
            yield f"| `{field.name}` | " + " | ".join(row) + " |"
        yield ""


def module_link(source: str, module: str) -> str:
    """A link to where an entry is defined."""
    path, _, line = source.rpartition(":")
    if not path:
        return f"`{module}`"
    place = os.path.relpath(path, ROOT)
    return f"[`{place}`]({SOURCE}{place}#L{line})"


for _kind, _title in (
    ("activation", "Activations"),
    ("ffn", "FFNs"),
    ("router", "Routers"),
    ("balance", "Balance terms and rules"),
    ("backend", "Expert backends"),
    ("data", "Data sources"),
):
    entries(_kind, _title)


@page("configuration")
def configuration() -> Iterator[str]:
    """Every key of a run."""
    yield "# Configuration\n"
    yield "Every key of `mlpkit train`; `mlpkit train --cfg job` prints them with their values. The"
    yield "options of `ffn`, `activation` and `data` are those of the chosen entry:"
    yield "[FFNs](ffn.md), [activations](activation.md), [data sources](data.md),"
    yield "[routers](router.md), [balance](balance.md). A value is refused before anything is"
    yield "trained if it has another type or lies outside its limits.\n"
    yield from keys(RunConfig, "", mlpkit.compose([]))


def keys(schema: type, prefix: str, values: Any) -> Iterator[str]:
    """The keys of a schema with what they are in a run that overrides nothing."""
    nested = []
    for field in dataclasses.fields(schema):
        made: Any = field.default_factory
        if dataclasses.is_dataclass(made):
            nested.append((field.name, made))
            continue
        level = "###" if prefix else "##"
        yield f"{level} `{prefix}{field.name}`\n"
        yield f"{meaning(field.metadata['doc'], field.metadata)}\n"
        value = values[field.name]
        value = value.name if hasattr(value, "name") else value  # a component: which one it is
        yield f"- type: {type_text(field)}\n- default: `{written(value)}`\n"
    for name, inner in nested:
        yield f"## `{prefix}{name}`\n"
        yield f"{inspect.getdoc(inner)}\n"
        yield from keys(inner, f"{prefix}{name}.", values[name])


def written(value: Any) -> str:
    """A value as YAML writes it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def type_text(field: dataclasses.Field[Any]) -> str:
    """A field's type, in a table's cell."""
    return f"`{type_name(field.type)}`".replace("typing.", "")


def default_text(field: dataclasses.Field[Any]) -> str:
    """A field's default as YAML writes it; one without a default must be given."""
    missing = (field.default, field.default_factory) == (dataclasses.MISSING, dataclasses.MISSING)
    value = "???" if missing else default_of(field)
    return "required" if value == "???" else f"`{value}`"


def meaning(doc: str, limits: Any) -> str:
    """A sentence with the limits that are checked."""
    bounds = {"minimum": "≥ {}", "above": "> {}", "maximum": "≤ {}", "below": "< {}"}
    found = [text.format(limits[key]) for key, text in bounds.items() if key in limits]
    if "choices" in limits:
        found.append("one of " + ", ".join(f"`{choice}`" for choice in limits["choices"]))
    return cell("; ".join(filter(None, (doc.rstrip("."), ", ".join(found)))))


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


@page("presets")
def presets() -> Iterator[str]:
    """Every YAML preset."""
    yield "# Presets\n"
    yield "A preset is only YAML, so any of its keys can be changed. `mlpkit describe ffn=NAME`"
    yield "shows what it makes.\n"
    titles = {
        "ffn": ("Blocks", "ffn={}"),
        "ffn/router": ("Routers of families", "ffn/router={}"),
        "ffn/balance": ("Balance of families", "ffn/balance={}"),
        "model": ("Sizes", "model={}"),
        "training": ("Lengths of training", "training={}"),
    }
    for folder, (title, override) in titles.items():
        yield f"## {title}\n"
        for path in sorted((ROOT / "conf" / folder).glob("*.yaml")):
            yield f"### `{override.format(path.stem)}`\n"
            yield f"```yaml\n{path.read_text(encoding='utf-8').strip()}\n```\n"


@page("hooks")
def hooks() -> Iterator[str]:
    """Every hook and what it yields."""
    yield "# Hooks\n"
    yield "A plugin defines any of these, decorated with `mlpkit.hookimpl`; each takes no argument"
    yield "and yields. [Plugins](../plugins.md) shows how, and what happens when one is broken.\n"
    for name, hook in vars(Hooks).items():
        if name.startswith("mlpkit_"):
            yield f"## `{name}()`\n"
            yield f"{inspect.getdoc(hook)}\n"
    yield "## What a hook yields\n"
    for spec in KINDS.values():
        yield f"### `{spec.__name__}`\n"
        yield f"{(inspect.getdoc(spec) or '').splitlines()[0]} The arguments are in"
        yield f"[Python](python.md#mlpkit{spec.__name__.lower()}).\n"

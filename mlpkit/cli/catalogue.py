"""``mlpkit list`` and ``mlpkit show``: what is registered; no torch unless a schema needs it."""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
from typing import Any

from mlpkit.cli.printing import print_json, print_table
from mlpkit.plugins import registries
from mlpkit.plugins.definitions import argument_docs, definition
from mlpkit.registry import Registry, UnknownNameError, suggestion
from mlpkit.specs import Spec

SKIPPED = {"config", "target", "derivative_target", "num_params", "flops_per_token"}


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    nouns = ", ".join(registries().by_noun())
    if verb == "list":
        parser.add_argument("kind", nargs="?", metavar="KIND", help=f"one of {nouns}; default all")
        parser.add_argument("pattern", nargs="?", default="*", help="a wildcard, e.g. 'swi*'")
        parser.set_defaults(run=run_list)
    else:
        parser.add_argument("kind", metavar="KIND", help=f"one of {nouns}")
        parser.add_argument("name", metavar="NAME", help="a registered name or alias")
        parser.set_defaults(run=run_show)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_list(options: argparse.Namespace) -> int:
    """Prints the entries of one kind, or of all."""
    chosen = [options.kind] if options.kind else list(registries().by_noun())
    rows: list[dict[str, Any]] = [
        {
            "kind": kind,
            "name": spec.name,
            "aliases": list(spec.aliases),
            "summary": spec.summary,
            "formula": getattr(spec, "formula", ""),
            "provider": str(registry_of(kind).provider(spec.name)),
        }
        for kind in chosen
        for spec in registry_of(kind).list(options.pattern)
    ]
    if options.json:
        print_json(rows)
    elif not rows:
        print(f"nothing matches {options.pattern!r}")
    else:
        print_table(
            ("kind", "name", "what it is", "provider"),
            [(r["kind"], r["name"], r["summary"] or r["formula"], r["provider"]) for r in rows],
            whole=("kind", "name"),
        )
    return 0


def run_show(options: argparse.Namespace) -> int:
    """Prints one entry."""
    registry = registry_of(options.kind)
    spec = registry.get(options.name)
    facts = entry_facts(options.kind, spec, registry)
    if options.json:
        print_json(facts)
        return 0
    for key, value in facts.items():
        if key == "options":
            print("options")
            for name, (kind, default) in value.items():
                print(f"  {name}: {kind} = {default}")
                if doc := facts["option_docs"].get(name):
                    print(textwrap.indent(textwrap.fill(doc, 82), " " * 6))
        elif key == "option_docs":
            continue
        elif value not in ("", (), None, []):
            shown = ", ".join(value) if isinstance(value, tuple | list) else value
            print(f"{key.replace('_', ' '):<19} {shown}")
    return 0


def entry_facts(kind: str, spec: Spec, registry: Registry[Any]) -> dict[str, Any]:
    """Everything known about an entry, its options from its schema."""
    from mlpkit.schema import schema_of  # imports OmegaConf, which listing does without

    fields = [f for f in dataclasses.fields(spec) if f.name not in SKIPPED]
    facts = {field.name: getattr(spec, field.name) for field in fields}
    found = definition(spec.target)
    docs = argument_docs(found.docstring) if found else {}
    options = {
        field.name: (type_name(field.type), default_of(field))
        for field in dataclasses.fields(schema_of(kind, spec))
        if field.name != "name"
    }
    target = (
        spec.target
        if isinstance(spec.target, str)
        else (f"{spec.target.__module__}:{spec.target.__qualname__}")
    )
    return {
        **facts,
        "target": target,
        "source": f"{found.path}:{found.line}" if found else "",
        "provider": str(registry.provider(spec.name)),
        "options": options,
        "option_docs": {name: docs[name] for name in options if name in docs},
    }


def type_name(hint: Any) -> str:
    """A type as it is written."""
    return hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default as YAML writes it."""
    value = field.default_factory() if callable(field.default_factory) else field.default
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else value


def registry_of(kind: str) -> Registry[Any]:
    """The registry of a noun.

    Raises:
        UnknownNameError: There is no such extension point.
    """
    by_noun = registries().by_noun()
    if kind not in by_noun:
        raise UnknownNameError(
            f"unknown kind {kind!r}{suggestion(kind, by_noun)} (there are: {', '.join(by_noun)})"
        )
    return by_noun[kind]

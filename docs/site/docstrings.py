"""A name of the Python interface as Markdown: its signature and its docstring in Google's form."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from mlpkit.plugins.definitions import argument_docs

SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):\n", re.MULTILINE)
ITEM = re.compile(r"(\w+): (.*)")
LISTED = ("Args", "Attributes", "Raises")
WORDS = {"Args": "Arguments"}
LONG = 88  # of a signature in one line


def documented(title: str, value: Any, level: int) -> Iterator[str]:
    """Heading, signature and docstring of a class, function or value.

    Args:
        title: The heading.
        value: What is described.
        level: Of the heading.
    """
    yield f"{'#' * level} `{title}`\n"
    if callable(value) and (signature := signature_of(title, value)):
        yield f"```python\n{signature}\n```\n"
    yield from sections(inspect.getdoc(value) or "")
    yield from inherited(value)


def inherited(value: Any) -> Iterator[str]:
    """The arguments that a dataclass has from its bases."""
    bases: tuple[type, ...] = getattr(value, "__mro__", ())[1:]
    for base in bases:
        if "__dataclass_fields__" in vars(base):
            yield f"**From `{base.__name__}`**\n"
            docs = argument_docs(inspect.getdoc(base) or "")
            yield "".join(f"- `{name}`: {doc}\n" for name, doc in docs.items())


def signature_of(title: str, value: Any) -> str:
    """How it is called, an argument a line where one line would be long; empty if unknown."""
    name = title.rpartition(".")[2]
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    if inspect.isclass(value):  # its __init__ says -> None
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    text = readable(str(signature.replace(parameters=parameters)))
    if len(name + text) <= LONG:
        return f"{name}{text}"
    rows = "".join(f"    {row},\n" for row in arguments(parameters))
    arrow = text.rpartition(") -> ")[2] if ") -> " in text else ""
    return f"{name}(\n{rows}){f' -> {arrow}' if arrow else ''}"


def arguments(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Each argument as it is written, with the star before keyword-only ones."""
    starred = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield readable(str(parameter))


def readable(signature: str) -> str:
    """Annotations without the quotes that postponed evaluation leaves around them."""
    signature = re.sub(r"(: |-> )'([^']+)'", r"\1\2", signature)
    return re.sub(r"<function (\w+) at 0x\w+>", r"\1", signature)


def sections(docstring: str) -> Iterator[str]:
    """A docstring's text, then its sections with their items as lists.

    Args:
        docstring: Without indentation.
    """
    text, *rest = SECTION.split(f"{docstring}\n")
    if text.strip():
        yield f"{text.strip()}\n"
    for name, body in zip(rest[::2], rest[1::2], strict=True):
        inside, outside = indented(body)
        if name in LISTED:
            yield f"**{WORDS.get(name, name)}**\n"
            yield "".join(f"- `{item}`: {doc}\n" for item, doc in items(inside))
        else:
            yield f"**{name}**: {' '.join(inside.split())}\n"
        if outside.strip():
            yield f"{outside.strip()}\n"


def indented(body: str) -> tuple[str, str]:
    """The indented part of a section, without its indentation, and what follows it."""
    lines = body.splitlines()
    end = next((i for i, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return inspect.cleandoc("\n".join(lines[:end])), "\n".join(lines[end:])


def items(text: str) -> Iterator[tuple[str, str]]:
    """The named items of a section, each on one line."""
    name, doc = "", ""
    for line in text.splitlines():
        if found := ITEM.fullmatch(line):
            if name:
                yield name, doc
            name, doc = found[1], found[2]
        else:
            doc += f" {line.strip()}"
    if name:
        yield name, doc

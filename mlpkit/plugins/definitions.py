"""Where a target is defined and what its docstring says, read without importing it."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import NamedTuple

from mlpkit.plugins.sources import source_files
from mlpkit.specs import Target

ITEM = re.compile(r" {4}(\w+): (.*)")


class Definition(NamedTuple):
    """A class or function in its source.

    Args:
        path: The file.
        line: Where its ``class`` or ``def`` stands.
        docstring: Its docstring, without the indentation; empty where it has none.
    """

    path: Path
    line: int
    docstring: str


def definition(target: Target) -> Definition | None:
    """The definition of a spec's target; None where it cannot be found.

    Args:
        target: ``"package.module:attribute"``, which is not imported, or the object itself.
    """
    if not isinstance(target, str):
        try:
            file, (_, line) = inspect.getsourcefile(target), inspect.getsourcelines(target)
        except (OSError, TypeError):  # typed in, or made by code
            return None
        return Definition(Path(file or ""), line, inspect.getdoc(target) or "")
    name = target.partition(":")[2]
    for path in source_files(target):  # a package may re-export what a file of it defines
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return Definition(path, node.lineno, ast.get_docstring(node) or "")
    return None


def argument_docs(docstring: str) -> dict[str, str]:
    """What a docstring in Google's form says about each argument, on one line each.

    Args:
        docstring: Without indentation.
    """
    section = re.search(r"^Args:\n((?: {4}.*\n?|\n)*)", f"{docstring}\n", re.MULTILINE)
    docs: dict[str, str] = {}
    name = ""
    for line in section.group(1).splitlines() if section else ():
        if item := ITEM.fullmatch(line):
            name, docs[item.group(1)] = item.group(1), item.group(2)
        elif name and line.strip():
            docs[name] += f" {line.strip()}"
    return docs

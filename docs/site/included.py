"""Code of mlpkit shown on a page: the real lines, taken from the source when the site is built."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from links import ROOT, SOURCE

# A paragraph that is nothing but this link is an inclusion; GitHub's reader follows the link.
INCLUSION = re.compile(r"^\[`(mlpkit[\w.]*):([\w.]+)`\]\(((?:\.\./)+[\w/]+\.py)\)$", re.MULTILINE)


class InclusionError(LookupError):
    """A page names code that is not there."""

    exit_code = 2


def included(markdown: str) -> str:
    """A page with the code that it names below each link to it."""
    return INCLUSION.sub(lambda match: block(match[1], match[2]), markdown)


def block(module: str, name: str) -> str:
    """A definition as a block, with where it stands.

    Args:
        module: The module that defines it, dotted.
        name: The function or class, or ``Class.method``.
    """
    path = file_of(module)
    first, lines = source(path, name)
    place = path.relative_to(ROOT).as_posix()
    link = f"[`{place}`]({SOURCE}{place}#L{first}-L{first + len(lines) - 1})"
    code = "\n".join(lines)
    return f"{link}{{ .source }}\n\n```python\n{code}\n```"


def file_of(module: str) -> Path:
    """The file of a module of mlpkit.

    Raises:
        InclusionError: There is none.
    """
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.is_file():
        raise InclusionError(f"{module} is included by a page and is no module; change the page")
    return path


def source(path: Path, name: str) -> tuple[int, list[str]]:
    """The lines of a definition, moved to the left margin.

    Args:
        path: The file.
        name: The function or class, or ``Class.method``.

    Returns:
        The number of its first line, from 1, and its lines.

    Raises:
        InclusionError: The file defines no such name.
    """
    text = path.read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for word in name.split("."):
        found = [n for n in getattr(node, "body", ()) if getattr(n, "name", None) == word]
        if not found:
            raise InclusionError(f"{path} defines no {name}, which a page includes; name another")
        node = found[0]
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    return first, [line[node.col_offset :] for line in lines]

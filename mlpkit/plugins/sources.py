"""Plugins as source files, read without running them: local imports, claims and versions."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from mlpkit.plugins.registries import KINDS

# How a declaration reads: FFNSpec(name="foo", or @register_ffn("foo"
SPEC = re.compile(r"\b(\w+Spec)\(\s*name\s*=\s*['\"]([a-z]\w*)['\"]")
DECORATOR = re.compile(r"\bregister_([a-z]+)\(\s*['\"]([a-z]\w*)['\"]")
NOUNS = {kind.__name__: noun for noun, kind in KINDS.items()}


def import_local(name: str) -> ModuleType:
    """Imports a module by name, also from the working directory, or a Python file by its path.

    Raises:
        ImportError: There is no such module or file.
    """
    if not name.endswith(".py"):
        if os.getcwd() not in sys.path:  # last: it shadows nothing that is installed
            sys.path.append(os.getcwd())
        return importlib.import_module(name)
    path = Path(name).expanduser().resolve()
    if path.stem in sys.modules and getattr(sys.modules[path.stem], "__file__", "") == str(path):
        return sys.modules[path.stem]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"there is no Python file {path}; check the path")
    if path.stem in sys.modules:
        raise ImportError(f"{path} has the name of the module {path.stem!r}; rename the file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # pickle and dataclasses look a class's module up here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def source_files(target: str) -> list[Path]:
    """The Python files of a plugin, found without importing it.

    Args:
        target: A file, a module's name, or an entry point's "module:attribute".

    Returns:
        The file, or all files of the package; nothing where it cannot be found.
    """
    if target.endswith(".py"):
        path = Path(target).expanduser().resolve()
        return [path] if path.is_file() else []
    top, *below = target.partition(":")[0].split(".")
    try:
        found = importlib.util.find_spec(top)
        for depth, _ in enumerate(below, start=1):
            if found is None:
                return []
            name = ".".join([top, *below[:depth]])  # find_spec would import the parents
            found = PathFinder.find_spec(name, found.submodule_search_locations)
    except (ImportError, ValueError):
        return []
    if found is None or not found.origin or not found.origin.endswith(".py"):
        return []
    origin = Path(found.origin)
    return sorted(origin.parent.rglob("*.py")) if found.submodule_search_locations else [origin]


def claims(target: str) -> tuple[str, ...]:
    """What a plugin that cannot be loaded would register, as "noun:name", as far as one can read.

    Args:
        target: As for ``source_files``.
    """
    found = set()
    for path in source_files(target):
        text = path.read_text(encoding="utf-8", errors="replace")
        found |= {(NOUNS.get(kind), name) for kind, name in SPEC.findall(text)}
        found |= {(noun, name) for noun, name in DECORATOR.findall(text) if noun in KINDS}
    return tuple(sorted(f"{noun}:{name}" for noun, name in found if noun))


def source_digest(target: str) -> str:
    """Twelve hex digits that change when a plugin's source does.

    Args:
        target: As for ``source_files``.
    """
    digest = hashlib.sha256()
    for path in source_files(target):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]

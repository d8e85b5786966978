"""What one plugin yields: its API version, its hooks, its specs and its preset folders."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pluggy

from mlpkit.hookspecs import API, HOOKS, PROJECT, Hooks
from mlpkit.plugins.registries import KINDS
from mlpkit.specs import Spec

NOUN_OF_HOOK = dict(zip(HOOKS, KINDS, strict=True))


class Yield(NamedTuple):
    """What a plugin's hooks gave.

    Args:
        specs: (noun, spec), in the order of the hooks.
        folders: Its folders of YAML presets.
    """

    specs: list[tuple[str, Spec]]
    folders: tuple[Path, ...]


def collect(plugin: Any) -> Yield:
    """Calls every hook that a plugin implements.

    Args:
        plugin: The module or object.

    Raises:
        PluginValidationError: A hook is misspelt, or takes an argument that there is not.
        TypeError: A hook yields something else than it should.
        RuntimeError: The plugin is for another version of the API.
        NotADirectoryError: A preset folder is none.
    """
    check_api(plugin)
    specs = [
        (NOUN_OF_HOOK[hook], checked(NOUN_OF_HOOK[hook], spec))
        for hook, yielded in _results(plugin)
        if hook in NOUN_OF_HOOK
        for spec in yielded
    ]
    folders = [f for hook, found in _results(plugin, "mlpkit_presets") for f in found]
    return Yield(specs, tuple(preset_folder(folder) for folder in folders))


def check_api(plugin: Any) -> None:
    """Refuses a plugin that says it needs another version of the API.

    Raises:
        RuntimeError: ``MLPKIT_API`` in its module is a newer minor or another major version.
    """
    module = sys.modules.get(type(plugin).__module__)
    wanted = getattr(plugin, "MLPKIT_API", getattr(module, "MLPKIT_API", API))
    here = ".".join(map(str, API))
    if not (isinstance(wanted, tuple) and [type(n) for n in wanted] == [int, int]):
        raise RuntimeError(f"MLPKIT_API is {wanted!r}; write the two numbers, MLPKIT_API = {API}")
    if wanted[0] != API[0] or wanted[1] > API[1]:
        raise RuntimeError(
            f"MLPKIT_API is {wanted[0]}.{wanted[1]}, and this mlpkit has {here}; install "
            f"{'a newer mlpkit' if wanted > API else 'a newer version of the plugin'}"
        )


def checked(noun: str, spec: Any) -> Spec:
    """The spec, if it is one of the noun's kind.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(spec, KINDS[noun]):
        raise TypeError(f"the {noun} hook yields {spec!r}; it must yield {KINDS[noun].__name__}s")
    return spec


def preset_folder(folder: Any) -> Path:
    """A preset folder as an absolute path.

    Raises:
        NotADirectoryError: It is none, for example because the wheel was built without it.
    """
    path = Path(folder).expanduser().resolve()
    if not path.is_dir():
        raise NotADirectoryError(f"the preset folder {path} does not exist; is it in the wheel?")
    return path


def preset_names(folder: Path) -> list[str]:
    """The presets of a folder as "group/name", sorted."""
    files = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.yaml"))
    return sorted(path.as_posix() for path in files)


def _results(plugin: Any, *hooks: str) -> Iterator[tuple[str, Iterable[Any]]]:
    """Each hook that a plugin implements with what it yields; misspelt hooks are errors.

    A manager of its own per plugin keeps a failed registration from leaving anything behind.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    manager.register(plugin)
    manager.check_pending()
    for hook in hooks or HOOKS:
        for result in getattr(manager.hook, hook)():
            yield hook, result

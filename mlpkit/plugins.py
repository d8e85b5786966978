"""Loading plugins: built-ins first, entry points, local modules; one status row each; no torch."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pluggy

from mlpkit import __version__
from mlpkit.hookspecs import HOOKS, PROJECT, Hooks
from mlpkit.registry import Provider, Registry
from mlpkit.specs import (
    ActivationSpec,
    BackendSpec,
    BalanceSpec,
    DataSpec,
    FFNSpec,
    RouterSpec,
    Spec,
)

GROUP = "mlpkit.plugins"
BUILTINS = Provider("mlpkit", __version__)
T = TypeVar("T", bound=Callable[..., Any])


class PluginError(RuntimeError):
    """A plugin that could not be loaded; named with what it said."""

    exit_code = 3


@dataclass(frozen=True)
class Registries:
    """One registry per extension point; the field names are the nouns."""

    activation: Registry[ActivationSpec]
    ffn: Registry[FFNSpec]
    router: Registry[RouterSpec]
    balance: Registry[BalanceSpec]
    backend: Registry[BackendSpec]
    data: Registry[DataSpec]

    @classmethod
    def empty(cls) -> Registries:
        """Registries without entries."""
        return cls(**{field.name: Registry(field.name) for field in fields(cls)})

    def by_noun(self) -> dict[str, Registry[Any]]:
        """The registries by the noun of their extension point."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def copy(self) -> Registries:
        """Independent copies."""
        return Registries(**{noun: reg.copy() for noun, reg in self.by_noun().items()})


@dataclass(frozen=True, kw_only=True)
class PluginStatus:
    """What became of one plugin.

    Args:
        name: The entry point's name, or the local module or file.
        provider: Its distribution and version.
        state: "ok", "failed" or "blocked".
        reason: Why it failed or was blocked.
        provides: What it registered, as "noun:name".
    """

    name: str
    provider: Provider
    state: str
    reason: str = ""
    provides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """The registries and what became of each plugin."""

    registries: Registries
    statuses: tuple[PluginStatus, ...]


_KINDS: dict[str, type[Spec]] = {
    "activation": ActivationSpec,
    "ffn": FFNSpec,
    "router": RouterSpec,
    "balance": BalanceSpec,
    "backend": BackendSpec,
    "data": DataSpec,
}
_NOUN_OF_HOOK = dict(zip(HOOKS, _KINDS, strict=True))
_local: list[tuple[str, Spec, Provider]] = []  # decorated in this process, not yet registered


def registries() -> Registries:
    """The registries of this process: plugins are loaded at the first call."""
    loaded = load_once()
    while _local:
        noun, spec, provider = _local.pop(0)
        registry = loaded.registries.by_noun()[noun]
        if spec.name in registry and registry.provider(spec.name) == provider:
            registry.remove(spec.name)  # a notebook's cell that is run again
        registry.add([spec], provider)
    return loaded.registries


def plugin_versions() -> dict[str, str]:
    """The loaded third-party distributions with their versions."""
    return {
        status.provider.distribution: status.provider.version
        for status in load_once().statuses
        if status.state == "ok" and status.provider != BUILTINS
    }


@cache
def load_once() -> Loaded:
    """Loads what the environment asks for, once per process.

    Raises:
        PluginError: A plugin failed and ``MLPKIT_PLUGINS_STRICT`` is 1.
    """
    env = os.environ
    result = load(
        points=entry_points(group=GROUP),
        modules=_names(env.get("MLPKIT_PLUGIN_MODULES")) or (),
        allow=_names(env.get("MLPKIT_PLUGINS")),
        block=_names(env.get("MLPKIT_PLUGINS_BLOCK")) or (),
    )
    failed = [status for status in result.statuses if status.state == "failed"]
    if failed and env.get("MLPKIT_PLUGINS_STRICT") == "1":
        raise PluginError("; ".join(f"plugin {s.name!r}: {s.reason}" for s in failed))
    for status in failed:
        print(
            f"warning: plugin {status.name!r} of {status.provider} is skipped: {status.reason}",
            file=sys.stderr,
        )
    return result


def load(
    *,
    points: Iterable[EntryPoint] = (),
    modules: Iterable[str] = (),
    allow: Iterable[str] | None = None,
    block: Iterable[str] = (),
) -> Loaded:
    """Loads the built-ins, then entry points in the order of their names, then local modules.

    Args:
        points: Entry points of the group ``mlpkit.plugins``.
        modules: Module names or paths of Python files.
        allow: If given, only entry points with these names or distributions are imported.
        block: Entry points with these names or distributions are not imported.
    """
    result, statuses = Registries.empty(), []
    builtins = importlib.import_module("mlpkit.catalogue")
    result, provides = _registered(result, builtins, BUILTINS)
    statuses.append(PluginStatus(name="mlpkit", provider=BUILTINS, state="ok", provides=provides))
    allowed, blocked = None if allow is None else set(allow), set(block)
    for point in sorted(points, key=lambda p: (p.name, p.dist.name if p.dist else "")):
        provider = _provider(point)
        names = {point.name, provider.distribution}
        if names & blocked or (allowed is not None and not names & allowed):
            variable = "MLPKIT_PLUGINS_BLOCK" if names & blocked else "MLPKIT_PLUGINS"
            statuses.append(
                PluginStatus(
                    name=point.name, provider=provider, state="blocked", reason=f"by {variable}"
                )
            )
            continue
        result, status = _load_one(result, point.name, provider, point.load)
        statuses.append(status)
    for module in modules:
        provider = Provider(module)
        result, status = _load_one(result, module, provider, partial(import_local, module))
        statuses.append(status)
    return Loaded(result, tuple(statuses))


def import_local(name: str) -> ModuleType:
    """Imports a module by name, or a Python file by its path.

    Raises:
        ImportError: There is no such module or file.
    """
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).expanduser().resolve()
    if path.stem in sys.modules and getattr(sys.modules[path.stem], "__file__", "") == str(path):
        return sys.modules[path.stem]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"there is no Python file {path}")
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


def _load_one(
    current: Registries, name: str, provider: Provider, importer: Callable[[], Any]
) -> tuple[Registries, PluginStatus]:
    """Registers one plugin: all of it, or nothing when any part fails."""
    before = len(_local)
    try:
        plugin = importer()
        result, provides = _registered(current, plugin, provider, _local[before:])
    except (Exception, SystemExit) as error:  # a plugin must not end the program
        reason = f"{type(error).__name__}: {error}"
        return current, PluginStatus(name=name, provider=provider, state="failed", reason=reason)
    finally:
        del _local[before:]
    return result, PluginStatus(name=name, provider=provider, state="ok", provides=provides)


def _registered(
    current: Registries,
    plugin: Any,
    provider: Provider,
    decorated: Iterable[tuple[str, Spec, Provider]] = (),
) -> tuple[Registries, tuple[str, ...]]:
    """A copy of the registries with what a plugin's hooks yield and its decorators left."""
    result, provides = current.copy(), []
    by_noun = result.by_noun()
    hooked = [
        (_NOUN_OF_HOOK[hook], spec) for hook, yielded in _hook_results(plugin) for spec in yielded
    ]
    for noun, spec in [*hooked, *((noun, spec) for noun, spec, _ in decorated)]:
        if not isinstance(spec, _KINDS[noun]):
            raise TypeError(f"{noun} hook yields {spec!r}, not a {_KINDS[noun].__name__}")
        by_noun[noun].add([spec], provider)
        provides.append(f"{noun}:{spec.name}")
    return result, tuple(provides)


def _hook_results(plugin: Any) -> Iterator[tuple[str, Iterable[Any]]]:
    """Each hook that a plugin implements with what it yields; misspelt hooks are errors.

    A manager of its own per plugin keeps a failed registration from leaving anything behind.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    manager.register(plugin)
    manager.check_pending()
    for hook in HOOKS:
        for result in getattr(manager.hook, hook)():
            yield hook, result


def _provider(point: EntryPoint) -> Provider:
    if point.dist is None:
        return Provider(point.value, entry_point=point.name)
    return Provider(point.dist.name, point.dist.version, point.name)


def _names(value: str | None) -> tuple[str, ...] | None:
    """The names in a comma-separated environment variable; None when it is not set."""
    if value is None:
        return None
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _decorator(noun: str) -> Callable[..., Callable[[T], T]]:
    kind = _KINDS[noun]

    def register(name: str, **facts: Any) -> Callable[[T], T]:
        if not isinstance(name, str):
            raise TypeError(f"write @register_{noun}('name'), with the name to choose it by")

        def decorate(target: T) -> T:
            first = next(iter((target.__doc__ or "").strip().splitlines()), "")
            spec = kind(**{"name": name, "target": target, "summary": first, **facts})
            _local.append((noun, spec, Provider(target.__module__)))
            return target

        return decorate

    register.__name__ = register.__qualname__ = f"register_{noun}"
    register.__doc__ = (
        f"Registers the decorated class or function as {noun} ``name`` in this process.\n\n"
        f"Args:\n    name: The name to choose it by.\n    facts: Further fields of {kind.__name__}."
    )
    return register


register_activation = _decorator("activation")
register_ffn = _decorator("ffn")
register_router = _decorator("router")
register_balance = _decorator("balance")
register_backend = _decorator("backend")
register_data = _decorator("data")


def list_activations(pattern: str = "*") -> Sequence[ActivationSpec]:
    """The specs of activations whose name or alias matches a shell wildcard, by name."""
    return registries().activation.list(pattern)


def list_ffns(pattern: str = "*") -> Sequence[FFNSpec]:
    """The specs of FFNs whose name or alias matches a shell wildcard, by name."""
    return registries().ffn.list(pattern)


def list_routers(pattern: str = "*") -> Sequence[RouterSpec]:
    """The specs of routers whose name or alias matches a shell wildcard, by name."""
    return registries().router.list(pattern)

"""The plugins of this process: registries that are filled at the first call; no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from mlpkit.plugins import local
from mlpkit.plugins.bounded import SECONDS, LoadTimeout
from mlpkit.plugins.hooks import preset_names
from mlpkit.plugins.loading import BUILTINS, Loaded, PluginStatus, load
from mlpkit.plugins.local import (
    register_activation,
    register_backend,
    register_balance,
    register_data,
    register_ffn,
    register_router,
)
from mlpkit.plugins.registries import KINDS, PluginError, PluginRegistry, Registries
from mlpkit.plugins.sources import import_local, source_digest
from mlpkit.registry import printable
from mlpkit.specs import ActivationSpec, FFNSpec, RouterSpec

__all__ = [
    "BUILTINS",
    "KINDS",
    "LoadTimeout",
    "Loaded",
    "PluginError",
    "PluginRegistry",
    "PluginStatus",
    "Registries",
    "import_local",
    "list_activations",
    "list_ffns",
    "list_routers",
    "load",
    "load_environment",
    "load_once",
    "plugin_versions",
    "preset_names",
    "presets",
    "register_activation",
    "register_backend",
    "register_balance",
    "register_data",
    "register_ffn",
    "register_router",
    "registries",
    "require",
]

GROUP = "mlpkit.plugins"


def registries() -> Registries:
    """The registries of this process: plugins are loaded at the first call."""
    loaded = load_once()
    while local.pending:
        noun, spec, provider = local.pending.pop(0)
        registry = loaded.registries.by_noun()[noun]
        if registry.has(spec.name) and registry.provider(spec.name) == provider:
            registry.remove(spec.name)  # a notebook's cell that is run again
        registry.add([spec], provider)
    return loaded.registries


def plugin_versions() -> dict[str, str]:
    """The loaded plugins with their versions; what may change in place has a hash of its source."""
    found = {}
    for status in load_once().statuses:
        version = status.provider.version
        if status.state != "ok" or status.provider == BUILTINS:
            continue
        if not version or status.editable:
            version = f"{version}+{source_digest(status.target)}".lstrip("+")
        found[status.provider.distribution] = version
    return found


def presets() -> list[tuple[str, Path]]:
    """The folders of YAML presets with who brings them, in the order of loading."""
    return [
        (str(status.provider), folder)
        for status in load_once().statuses
        for folder in status.presets
    ]


def require(modules: Sequence[str]) -> None:
    """Loads local plugins that a user has named, in this process and those it starts.

    Args:
        modules: Module names or paths of Python files, for ``MLPKIT_PLUGIN_MODULES``.

    Raises:
        PluginError: One of them failed.
    """
    # absolute, because a job may start in a folder of its own
    named = [str(Path(m).expanduser().resolve()) if m.endswith(".py") else m for m in modules]
    before = _names(os.environ.get("MLPKIT_PLUGIN_MODULES")) or ()
    os.environ["MLPKIT_PLUGIN_MODULES"] = ",".join(dict.fromkeys([*before, *named]))
    for cached in (load_environment, load_once):
        cached.cache_clear()
    failed = [s for s in load_environment().statuses if s.name in named and s.state == "failed"]
    if failed:
        raise PluginError("; ".join(f"plugin {s.name!r}: {s.reason}" for s in failed))


@cache
def load_once() -> Loaded:
    """Loads what the environment asks for, once per process; a line warns of each that failed.

    Raises:
        PluginError: A plugin failed and ``MLPKIT_PLUGINS_STRICT`` is 1.
    """
    result = load_environment()
    failed = [status for status in result.statuses if status.state == "failed"]
    if failed and os.environ.get("MLPKIT_PLUGINS_STRICT") == "1":
        raise PluginError("; ".join(f"plugin {s.name!r}: {s.reason}" for s in failed))
    for status in failed:
        said = f"plugin {status.name!r} of {status.provider} is skipped: {status.reason}"
        print(f"warning: {printable(said)}", file=sys.stderr)
    return result


@cache
def load_environment() -> Loaded:
    """Loads what the environment asks for, once per process, whatever fails."""
    env = os.environ
    return load(
        points=entry_points(group=GROUP),
        modules=_names(env.get("MLPKIT_PLUGIN_MODULES")) or (),
        allow=_names(env.get("MLPKIT_PLUGINS")),
        block=_names(env.get("MLPKIT_PLUGINS_BLOCK")) or (),
        prefer=_names(env.get("MLPKIT_PLUGINS_PREFER")) or (),
        seconds=float(env.get("MLPKIT_PLUGINS_SECONDS") or SECONDS),
    )


def _names(value: str | None) -> tuple[str, ...] | None:
    """The names in a comma-separated environment variable; None when it is not set."""
    if value is None:
        return None
    return tuple(name.strip() for name in value.split(",") if name.strip())


def list_activations(pattern: str = "*") -> Sequence[ActivationSpec]:
    """The specs of activations whose name or alias matches a shell wildcard, by name."""
    return registries().activation.list(pattern)


def list_ffns(pattern: str = "*") -> Sequence[FFNSpec]:
    """The specs of FFNs whose name or alias matches a shell wildcard, by name."""
    return registries().ffn.list(pattern)


def list_routers(pattern: str = "*") -> Sequence[RouterSpec]:
    """The specs of routers whose name or alias matches a shell wildcard, by name."""
    return registries().router.list(pattern)

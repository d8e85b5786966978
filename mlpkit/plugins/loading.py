"""Loading: built-ins, entry points and local modules, each whole or not at all; a row for each."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NamedTuple

from mlpkit import __version__
from mlpkit.plugins import local
from mlpkit.plugins.bounded import SECONDS, bounded
from mlpkit.plugins.hooks import checked, collect, preset_names
from mlpkit.plugins.registries import Registries
from mlpkit.plugins.sources import claims, import_local
from mlpkit.registry import Provider, RegistrationError
from mlpkit.specs import Spec

BUILTINS = Provider("mlpkit", __version__)


@dataclass(frozen=True, kw_only=True)
class PluginStatus:
    """What became of one plugin.

    Args:
        name: The entry point's name, or the local module or file.
        provider: Its distribution and version.
        state: "ok", "failed" or "blocked".
        reason: Why it failed or was blocked; for one that is ok, what of it another replaces.
        provides: What it registered, as "noun:name" or "preset:group/name".
        claims: What a failed one would have registered, as far as its source says.
        target: The entry point's "module:attribute", or the local module or file.
        editable: Whether it is installed from a folder that may change.
        presets: Its folders of YAML presets.
    """

    name: str
    provider: Provider
    state: str
    reason: str = ""
    provides: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    target: str = ""
    editable: bool = False
    presets: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """The registries and what became of each plugin."""

    registries: Registries
    statuses: tuple[PluginStatus, ...]


class Candidate(NamedTuple):
    """A plugin that is not imported yet."""

    status: PluginStatus
    importer: Callable[[], Any]
    is_local: bool


class Registered(NamedTuple):
    """The registries with a plugin in them, its row, and the entries that it replaced."""

    registries: Registries
    status: PluginStatus
    replaced: tuple[str, ...] = ()


def load(
    *,
    points: Iterable[EntryPoint] = (),
    modules: Iterable[str] = (),
    allow: Iterable[str] | None = None,
    block: Iterable[str] = (),
    prefer: Iterable[str] = (),
    seconds: float = SECONDS,
) -> Loaded:
    """Loads the built-ins, then entry points in the order of their names, then local modules.

    Args:
        points: Entry points of the group ``mlpkit.plugins``.
        modules: Module names or paths of Python files.
        allow: If given, only entry points with these names or distributions are imported.
        block: Entry points with these names or distributions are not imported.
        prefer: Plugins or distributions whose entries replace others of the same name; among
            themselves the first wins.
        seconds: How long one plugin may take.
    """
    start = PluginStatus(name="mlpkit", provider=BUILTINS, state="ok", target="mlpkit.catalogue")
    builtins = importlib.import_module("mlpkit.catalogue")
    current, first, _ = registered(Registries.empty(), builtins, start)
    statuses = [first]
    wanted = [normalised(name) for name in prefer]
    for candidate in in_order(points, modules, wanted):
        gate = "" if candidate.is_local else kept_out_by(candidate.status, allow, block)
        if gate:
            reason = f"by {gate}"
            statuses.append(replace(candidate.status, state="blocked", reason=reason))
            continue
        preferred = rank(candidate.status, wanted) > 0
        current, status, replaced = load_one(current, candidate, preferred, seconds)
        statuses = [without(row, replaced, status) for row in statuses]
        statuses.append(status)
    withhold(current, statuses)
    return Loaded(current, tuple(statuses))


def in_order(
    points: Iterable[EntryPoint], modules: Iterable[str], prefer: Sequence[str]
) -> list[Candidate]:
    """The plugins in the order of loading, which does not depend on that of installing."""
    found = [_installed(point) for point in points]
    found.sort(key=lambda c: (c.status.name, normalised(c.status.provider.distribution)))
    found += [
        Candidate(
            PluginStatus(name=name, provider=Provider(name), state="ok", target=name),
            partial(import_local, name),
            is_local=True,
        )
        for name in modules
    ]
    # a preferred one comes last: it then finds every entry that it replaces
    return sorted(found, key=lambda candidate: rank(candidate.status, prefer))


def rank(status: PluginStatus, prefer: Sequence[str]) -> int:
    """0 for a plugin that is not preferred, and the more the earlier it is named."""
    places = [i for i, name in enumerate(prefer) if name in _names_of(status)]
    return len(prefer) - places[0] if places else 0


def kept_out_by(status: PluginStatus, allow: Iterable[str] | None, block: Iterable[str]) -> str:
    """The variable that keeps a plugin from being imported; empty if none does."""
    names = _names_of(status)
    if names & set(map(normalised, block)):
        return "MLPKIT_PLUGINS_BLOCK"
    if allow is not None and not names & set(map(normalised, allow)):
        return "MLPKIT_PLUGINS"
    return ""


def load_one(
    current: Registries, candidate: Candidate, preferred: bool, seconds: float
) -> Registered:
    """Registers one plugin: all of it, or nothing when any part fails."""
    before, status = len(local.pending), candidate.status
    try:
        # what a plugin prints must not get into the output of a command such as `list --json`
        with bounded(status.name, seconds), redirect_stdout(sys.stderr):
            plugin = candidate.importer()
            decorated = local.decorated_by(plugin, before)
            return registered(current, plugin, status, decorated, preferred=preferred)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin must not end the program, by SystemExit or otherwise
        found = claims(status.target)
        return Registered(
            current, replace(status, state="failed", reason=_reason(error), claims=found)
        )
    finally:
        del local.pending[before:]


def registered(
    current: Registries,
    plugin: Any,
    status: PluginStatus,
    decorated: Iterable[tuple[str, Spec]] = (),
    *,
    preferred: bool = False,
) -> Registered:
    """A copy of the registries with what a plugin's hooks yield and its decorators left."""
    result, found = current.copy(), collect(plugin)
    provides, replaced = [], []
    for noun, spec in [*found.specs, *decorated]:
        registry = result.by_noun()[noun]
        if preferred:
            # not what this very plugin gave: twice the same name is a clash of its own
            taken = {
                registry.get(name).name
                for name in (spec.name, *spec.aliases)
                if registry.has(name) and registry.provider(name) != status.provider
            }
            for name in sorted(taken):
                registry.remove(name)
                replaced.append(f"{noun}:{name}")
        registry.add([checked(noun, spec)], status.provider)
        provides.append(f"{noun}:{spec.name}")
    presets = [f"preset:{name}" for folder in found.folders for name in preset_names(folder)]
    status = replace(status, provides=(*provides, *presets), presets=found.folders)
    return Registered(result, status, tuple(replaced))


def without(row: PluginStatus, replaced: Sequence[str], by: PluginStatus) -> PluginStatus:
    """A row without the entries that a preferred plugin has replaced."""
    lost = [entry for entry in row.provides if entry in replaced]
    if not lost:
        return row
    notes = [row.reason] * bool(row.reason) + [f"{', '.join(lost)} replaced by {by.provider}"]
    kept = tuple(entry for entry in row.provides if entry not in lost)
    return replace(row, provides=kept, reason="; ".join(notes))


def withhold(regs: Registries, statuses: Iterable[PluginStatus]) -> None:
    """Lets the names that failed plugins would have given answer with the plugin's error."""
    by_noun = regs.by_noun()
    for status in statuses:
        for claim in status.claims:
            noun, _, name = claim.partition(":")
            by_noun[noun].withheld[name] = (
                f"{noun} {name!r} is not there, because the plugin {status.name!r} of "
                f"{status.provider} failed: {status.reason}"
            )


def normalised(name: str) -> str:
    """A distribution's name as package indexes compare it: ``mlpkit_foo`` is ``mlpkit-foo``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _names_of(status: PluginStatus) -> set[str]:
    return {normalised(status.name), normalised(status.provider.distribution)}


def _installed(point: EntryPoint) -> Candidate:
    provider, editable = Provider(point.value, entry_point=point.name), False
    if point.dist is not None:
        # an interrupted uninstall leaves a folder without metadata, thus without a name
        name, version = point.dist.name or point.value, point.dist.version or ""
        provider = Provider(name, version, point.name)
        editable = is_editable(getattr(point.dist, "read_text", lambda _: None)("direct_url.json"))
    status = PluginStatus(
        name=point.name, provider=provider, state="ok", target=point.value, editable=editable
    )
    return Candidate(status, point.load, is_local=False)


def is_editable(direct_url: str | None) -> bool:
    """Whether a distribution's direct_url.json says that it was installed with ``pip -e``."""
    try:
        return bool(json.loads(direct_url or "{}").get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):  # damaged: the plugin may still work
        return False


def _reason(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())  # one line, as a table needs
    if isinstance(error, ModuleNotFoundError):
        return f"{text}; install what it needs, or reinstall it"
    if isinstance(error, RegistrationError) and "both" in text:
        return f"{text}, or let one win with MLPKIT_PLUGINS_PREFER"
    return text

"""Decorators that register a class or function of this process: notebooks and single files."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from mlpkit.plugins.registries import KINDS
from mlpkit.registry import Provider
from mlpkit.specs import Spec

T = TypeVar("T", bound=Callable[..., Any])

pending: list[tuple[str, Spec, Provider]] = []  # decorated in this process, not yet registered
# A module runs its decorators once, when it is imported, and may be loaded again later.
_decorated: WeakKeyDictionary[ModuleType, list[tuple[str, Spec]]] = WeakKeyDictionary()


def decorated_by(plugin: Any, before: int) -> list[tuple[str, Spec]]:
    """What a plugin's decorators left, as (noun, spec), also when it was imported earlier.

    Args:
        plugin: The plugin, which has just been imported.
        before: How many were pending before that.
    """
    found = [(noun, spec) for noun, spec, _ in pending[before:]]
    if not isinstance(plugin, ModuleType):
        return found
    if found:
        _decorated[plugin] = found
    return _decorated.get(plugin, found)


def _decorator(noun: str) -> Callable[..., Callable[[T], T]]:
    kind = KINDS[noun]

    def register(name: str, **facts: Any) -> Callable[[T], T]:
        if not isinstance(name, str):
            raise TypeError(f"write @register_{noun}('name'), with the name to choose it by")

        def decorate(target: T) -> T:
            first = next(iter((target.__doc__ or "").strip().splitlines()), "")
            spec = kind(**{"name": name, "target": target, "summary": first, **facts})
            pending.append((noun, spec, Provider(target.__module__)))
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

"""One registry per extension point, and the names that failed plugins withhold; no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from mlpkit.registry import Registry
from mlpkit.specs import (
    ActivationSpec,
    BackendSpec,
    BalanceSpec,
    DataSpec,
    FFNSpec,
    RouterSpec,
    Spec,
)

S = TypeVar("S", bound=Spec)

KINDS: dict[str, type[Spec]] = {
    "activation": ActivationSpec,
    "ffn": FFNSpec,
    "router": RouterSpec,
    "balance": BalanceSpec,
    "backend": BackendSpec,
    "data": DataSpec,
}


class PluginError(RuntimeError):
    """A plugin that could not be loaded; named with what it said."""

    exit_code = 3


@dataclass
class PluginRegistry(Registry[S]):
    """A registry that knows why a name is missing.

    Args:
        withheld: Name to message: what failed plugins would have registered. Such a name is "in"
            the registry, so that who asks for it gets the plugin's error and not "unknown".
    """

    withheld: dict[str, str] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.withheld

    def copy(self) -> PluginRegistry[S]:
        """An independent copy: what is added to it leaves this one as it is."""
        held = dict(self.withheld)
        return PluginRegistry(self.noun, dict(self._entries), dict(self._aliases), held)

    def has(self, name: str) -> bool:
        """Whether an entry has the name or alias; one that is withheld has not."""
        return super().__contains__(name)

    def _lookup(self, name: str) -> Any:
        if not self.has(name) and name in self.withheld:
            raise PluginError(self.withheld[name])
        return super()._lookup(name)


@dataclass(frozen=True)
class Registries:
    """One registry per extension point; the field names are the nouns."""

    activation: PluginRegistry[ActivationSpec]
    ffn: PluginRegistry[FFNSpec]
    router: PluginRegistry[RouterSpec]
    balance: PluginRegistry[BalanceSpec]
    backend: PluginRegistry[BackendSpec]
    data: PluginRegistry[DataSpec]

    @classmethod
    def empty(cls) -> Registries:
        """Registries without entries."""
        return cls(**{field.name: PluginRegistry(field.name) for field in fields(cls)})

    def by_noun(self) -> dict[str, PluginRegistry[Any]]:
        """The registries by the noun of their extension point."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def copy(self) -> Registries:
        """Independent copies."""
        return Registries(**{noun: reg.copy() for noun, reg in self.by_noun().items()})

"""What a swap did: which weights each place kept, and which are new."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SwappedLayer:
    """One place.

    Args:
        name: Its dotted name in the model.
        was: The class that stood there.
        now: What stands there now, e.g. ``gated[gelu]``.
        carried: Tensors with the old values.
        initialised: Tensors with new values, each with the reason.
        unused: Old tensors that nothing took.
        note: What else changed: other names of the same module, ties that are gone.
    """

    name: str
    was: str
    now: str
    carried: tuple[str, ...]
    initialised: tuple[str, ...]
    unused: tuple[str, ...]
    note: str = ""

    def facts(self) -> tuple[Any, ...]:
        """Everything but the name."""
        return self.was, self.now, self.carried, self.initialised, self.unused, self.note


@dataclass(frozen=True, kw_only=True)
class SwapReport:
    """What a swap did.

    Args:
        layers: The places, in the order of the model.
        parameters: Of the whole model, before and after; a shared one is counted once.
    """

    layers: tuple[SwappedLayer, ...]
    parameters: tuple[int, int]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for facts, group in groupby(self.layers, key=SwappedLayer.facts):
            layers = list(group)
            was, now, carried, initialised, unused, note = facts
            more = f" … {layers[-1].name} ({len(layers)} places)" if len(layers) > 1 else ""
            yield f"{layers[0].name}{more}: {was} → {now}"
            for words, names in (
                ("carried", carried),
                ("initialised", initialised),
                ("unused", unused),
            ):
                if names:
                    yield f"  {words:<12}{', '.join(names)}"
            if note:
                yield f"  note        {note}"
        before, after = self.parameters
        yield f"parameters {before:,} → {after:,}"

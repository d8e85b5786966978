"""The slots of a configuration: ``ffn`` is ``main``, the others stand in ``ffns``."""

from __future__ import annotations

from typing import Any

from mlpkit.layers.patterns import MAIN, layer_slots


def key_of(slot: str) -> str:
    """Where a slot's FFN stands in a configuration: ``ffn``, or ``ffns.<slot>``."""
    return "ffn" if slot == MAIN else f"ffns.{slot}"


def slot_ffns(config: Any) -> dict[str, Any]:
    """Slot to FFN, ``main`` first.

    Args:
        config: A composed configuration, or a mapping of the same shape.
    """
    return {MAIN: config["ffn"], **(config.get("ffns") or {})}


def slots_by_layer(config: Any) -> list[str]:
    """The slot of every layer of a configuration.

    Args:
        config: A composed configuration, or a mapping of the same shape.

    Raises:
        LayerPatternError: Its pattern is wrong.
    """
    model = config["model"]
    return layer_slots(model.get("layers"), model["num_layers"], known=slot_ffns(config))


def layers_by_slot(config: Any) -> dict[str, list[int]]:
    """The layers of every slot that a layer has, in the order of their first ones.

    Args:
        config: A composed configuration, or a mapping of the same shape.

    Raises:
        LayerPatternError: Its pattern is wrong.
    """
    found: dict[str, list[int]] = {}
    for layer, slot in enumerate(slots_by_layer(config)):
        found.setdefault(slot, []).append(layer)
    return found

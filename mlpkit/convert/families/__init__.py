"""The model families by their ``model_type``."""

from __future__ import annotations

from typing import Any

from mlpkit.convert.families.blocks import BLOCKS
from mlpkit.convert.families.dense import DENSE
from mlpkit.convert.families.minimind import MINIMIND
from mlpkit.convert.families.mixtures import MIXTURES
from mlpkit.convert.families.record import ExpertKeys, Family
from mlpkit.convert.folders import ConversionError
from mlpkit.registry import suggestion

__all__ = ["FAMILIES", "ExpertKeys", "Family", "family_of"]

FAMILIES: dict[str, Family] = {
    family.name: family for family in (*DENSE, *MIXTURES, *MINIMIND, *BLOCKS)
}
ALIASES = {"llama4": "llama4_text"}  # a multimodal checkpoint holds the text model


def family_of(name: Any, where: str) -> Family:
    """The family of a ``model_type``.

    Args:
        name: The ``model_type``.
        where: What to call its place in messages.

    Raises:
        ConversionError: There is none.
    """
    found = FAMILIES.get(ALIASES.get(name, name)) if isinstance(name, str) else None
    if found is None:
        raise ConversionError(
            f"{where}: model_type is {name!r}{suggestion(str(name), FAMILIES)} (known are: "
            f"{', '.join(FAMILIES)})"
        )
    return found

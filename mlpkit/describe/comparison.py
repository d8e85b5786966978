"""Several models side by side: one column each, with their ratios to the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlpkit.describe.description import Description, aligned
from mlpkit.describe.parts import Part
from mlpkit.sizing import bytes_text

Column = Callable[[Description], int]
NUMBERS: dict[str, Column] = {
    "parameters": lambda d: d.parameters,
    "active parameters": lambda d: d.active_parameters,
    "forward FLOPs/token": lambda d: d.flops_per_token,
    "training FLOPs/step": lambda d: d.training_flops_per_step,
    "FFN parameters": lambda d: sum(n * ffn.parameters for ffn, n in ffns_of(d)),
    "FFN active": lambda d: sum(n * ffn.active_parameters for ffn, n in ffns_of(d)),
    "FFN FLOPs/token": lambda d: sum(n * ffn.flops for ffn, n in ffns_of(d)),
}


def ffns_of(description: Description) -> list[tuple[Part, int]]:
    """The FFNs of the layers, each with the number of layers that have it."""
    return [
        (ffn, layers.count)
        for layers in description.parts
        for ffn in layers.parts
        if ffn.name == "ffn"
    ]


def side_by_side(descriptions: Sequence[Description], titles: Sequence[str]) -> str:
    """A table with a column for each model; numbers have their ratio to the first one's.

    Args:
        descriptions: The models, at least one.
        titles: A heading for each.
    """
    first, *_ = descriptions
    rows = [
        ["", *titles],
        ["ffn", *(d.ffn for d in descriptions)],
        ["formula", *(formula(d) for d in descriptions)],
        ["width", *(d.width for d in descriptions)],
    ]
    for name, number in NUMBERS.items():
        base = number(first)
        values = [f"{number(d):,}" + ratio(number(d), base) for d in descriptions]
        rows.append([name, *values])
    rows.append(["memory/step", *(bytes_text(d.memory.total) for d in descriptions)])
    notes = [f"note: {note}" for note in dict.fromkeys(d.note for d in descriptions) if note]
    return "\n".join([*aligned(rows, side="<"), *notes])


def formula(description: Description) -> str:
    """The formula of each FFN, or of each type of expert, with its numbers."""
    details = [
        detail
        for ffn, _ in ffns_of(description)
        for detail in [p.detail for p in ffn.parts if p.name == "experts"] or [ffn.detail]
    ]
    return "; ".join(dict.fromkeys(detail.partition(", ")[2] for detail in details))


def ratio(value: int, base: int) -> str:
    """A value's ratio to a base, as `` (×1.50)``; nothing where they are equal."""
    return "" if value == base else f" (×{value / base:.4g})"

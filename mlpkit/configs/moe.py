"""The MoE's options, and the arithmetic of its experts' width and number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlpkit.configs.run import MOST, option
from mlpkit.sizing import LARGEST, MULTIPLE, round_up


class ExpertListError(ValueError):
    """A list of expert types whose numbers do not add up."""

    exit_code = 2


def _balance() -> dict[str, Any]:
    return {"load": 0.03, "z": 0.001}


@dataclass(kw_only=True)
class MoEConfig:
    """Options of the MoE."""

    name: str = "moe"
    num_experts: int = option(8, "E", minimum=1, maximum=MOST)
    num_experts_per_tok: int = option(2, "K, experts per token, at most E", minimum=1, maximum=MOST)
    expert: Any = field(default_factory=lambda: {"name": "swiglu"})  # name or mapping of an FFN
    experts: Any = None  # instead of expert, several types: mappings with num_experts each
    shared: Any = None  # name or mapping of an FFN that every token passes; null: none
    shared_combine: str = option(
        "sum", "how the shared FFN's output joins", choices=("sum", "average", "gated")
    )
    router: Any = field(default_factory=lambda: {"name": "topk"})  # name or mapping
    balance: Any = field(default_factory=_balance)  # term → coefficient, or mapping of options
    backend: Any = "auto"  # auto | loop | grouped | padded | gather, or a plugin's
    latent_size: int | None = option(
        None, "width that the experts work in; null: the hidden size", minimum=1, maximum=LARGEST
    )
    capacity_factor: float | None = option(
        None, "rows that an expert takes over its even share; null: all", above=0
    )
    drop_policy: str = option(
        "position", "who stays when an expert is full", choices=("position", "probs")
    )
    output_bias: bool = option(False, "a learned vector added last, as in JetMoE")


def moe_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """A MoE's options without its name, with the defaults of those that are not given."""
    return {k: v for k, v in {**vars(MoEConfig()), **given}.items() if k != "name"}


def matched_expert_width(dense_width: int, num_experts_per_tok: int) -> int:
    """An expert's width, so that K of them have the active width of the dense FFN.

    Args:
        dense_width: What the expert's FFN would have outside of a MoE, at least 1.
        num_experts_per_tok: K, at least 1.

    Returns:
        The dense width over K, up to a multiple of 64: 1408 and K = 2 give 704.
    """
    return round_up(-(-dense_width // num_experts_per_tok), MULTIPLE)


def expert_types(expert: Any, num_experts: int) -> list[tuple[Any, int]]:
    """The types of experts and how many there are of each.

    Args:
        expert: A component (a name, or a mapping with a name), or a list of mappings that have
            ``num_experts`` beside their name and options.
        num_experts: E.

    Returns:
        (component, number) for each type, in the order of their numbering.

    Raises:
        ExpertListError: A type of a list lacks its number, or the numbers do not add up to E.
    """
    if isinstance(expert, str) or not isinstance(expert, Sequence):
        return [(expert, num_experts)]
    types = []
    for entry in expert:
        number = entry.get("num_experts") if isinstance(entry, Mapping) else None
        if not isinstance(number, int) or number < 1:
            raise ExpertListError(
                f"expert type {entry!r} in a list has no num_experts of at least 1; write "
                "{name: …, num_experts: …} for each type"
            )
        types.append(({k: v for k, v in entry.items() if k != "num_experts"}, number))
    total = sum(number for _, number in types)
    if total != num_experts:
        raise ExpertListError(
            f"the expert types have {total} experts together and num_experts is {num_experts}; "
            "make them equal"
        )
    return types

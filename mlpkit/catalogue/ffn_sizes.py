"""Parameters and FLOPs of the FFNs that ship, where they differ from the naive and gated forms."""

from __future__ import annotations

from mlpkit import sizing
from mlpkit.sizing import linear_params, resolve_width

NORM_VECTORS = {None: 0, "rms": 1, "layer": 2}  # learned vectors of I: scale, and shift


class RankError(ValueError):
    """A rank that is no positive number."""

    exit_code = 2


def resolve_rank(rank: int | None, hidden_size: int) -> int:
    """The rank that an option means.

    Args:
        rank: R, or None for H/4: with I = 4·H or 8/3·H about a third of the full parameters.
        hidden_size: H, at least 1.

    Raises:
        RankError: The rank is below 1.
    """
    if rank is None:
        return max(1, hidden_size // 4)
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise RankError(f"rank is {rank!r}; give a whole number ≥ 1, or null for H/4")
    return rank


def naive_params(
    hidden_size: int,
    *,
    intermediate_size: int | str | None = None,
    bias: bool = False,
    inner_norm: str | None = None,
    **_: object,
) -> int:
    """Parameters of the naive FFN: 2·H·I, I + H for biases, I or 2·I for an inner norm."""
    width = resolve_width(intermediate_size, hidden_size, "4x")
    norm = NORM_VECTORS[inner_norm] * width
    return sizing.naive_params(hidden_size, intermediate_size=width, bias=bias) + norm


def output_gated_params(
    hidden_size: int,
    *,
    intermediate_size: int | str | None = None,
    bias: bool = False,
    **_: object,
) -> int:
    """Parameters of the output-gated FFN: those of a gated one, and H."""
    gated = sizing.gated_params(hidden_size, intermediate_size=intermediate_size, bias=bias)
    return gated + linear_params(hidden_size, 1)


def output_gated_flops(
    hidden_size: int, *, intermediate_size: int | str | None = None, **_: object
) -> int:
    """Forward FLOPs per token of the output-gated FFN's matrix products: 2 per weight."""
    return 2 * output_gated_params(hidden_size, intermediate_size=intermediate_size)


def low_rank_params(
    hidden_size: int,
    *,
    intermediate_size: int | str | None = None,
    rank: int | None = None,
    bias: bool = False,
    **_: object,
) -> int:
    """Parameters of the low-rank FFN: 3·R·(H + I), and 2·I + H for biases."""
    width = resolve_width(intermediate_size, hidden_size, "8/3")
    inner = resolve_rank(rank, hidden_size)
    up = linear_params(hidden_size, inner) + linear_params(inner, width, bias)
    down = linear_params(width, inner) + linear_params(inner, hidden_size, bias)
    return 2 * up + down


def low_rank_flops(
    hidden_size: int,
    *,
    intermediate_size: int | str | None = None,
    rank: int | None = None,
    **_: object,
) -> int:
    """Forward FLOPs per token of the low-rank FFN's matrix products: 2 per weight."""
    return 2 * low_rank_params(hidden_size, intermediate_size=intermediate_size, rank=rank)

"""Parameters and FLOPs of FFNs and attention, as formulas."""

from __future__ import annotations

from mlpkit.sizing.widths import resolve_width


def linear_params(inputs: int, outputs: int, bias: bool = False) -> int:
    """Parameters of a linear layer."""
    return inputs * outputs + (outputs if bias else 0)


def naive_params(
    hidden_size: int,
    *,
    intermediate_size: int | str | None = None,
    bias: bool = False,
    **_: object,
) -> int:
    """Parameters of the naive FFN: 2·H·I, and I + H for biases."""
    width = resolve_width(intermediate_size, hidden_size, "4x")
    return linear_params(hidden_size, width, bias) + linear_params(width, hidden_size, bias)


def gated_params(
    hidden_size: int,
    *,
    intermediate_size: int | str | None = None,
    bias: bool = False,
    **_: object,
) -> int:
    """Parameters of a gated FFN: 3·H·I, and 2·I + H for biases."""
    width = resolve_width(intermediate_size, hidden_size, "8/3")
    return 2 * linear_params(hidden_size, width, bias) + linear_params(width, hidden_size, bias)


def naive_flops(
    hidden_size: int, *, intermediate_size: int | str | None = None, **_: object
) -> int:
    """Forward FLOPs per token of the naive FFN's matrix products: 2 per weight."""
    return 2 * naive_params(hidden_size, intermediate_size=intermediate_size)


def gated_flops(
    hidden_size: int, *, intermediate_size: int | str | None = None, **_: object
) -> int:
    """Forward FLOPs per token of a gated FFN's matrix products: 2 per weight."""
    return 2 * gated_params(hidden_size, intermediate_size=intermediate_size)


def attention_params(
    hidden_size: int, *, num_heads: int, num_key_value_heads: int, head_dim: int, qk_norm: bool
) -> int:
    """Parameters of grouped-query attention without biases, with its optional query-key norms."""
    projections = hidden_size * head_dim * (2 * num_heads + 2 * num_key_value_heads)
    return projections + (2 * head_dim if qk_norm else 0)


def attention_flops(
    hidden_size: int,
    *,
    num_heads: int,
    num_key_value_heads: int,
    head_dim: int,
    sequence_length: int,
) -> int:
    """Forward FLOPs per token of attention: projections, scores and weighted sum.

    The scores are counted over the whole sequence, as a matrix product computes them before the
    causal mask.
    """
    projections = 2 * hidden_size * head_dim * (2 * num_heads + 2 * num_key_value_heads)
    return projections + 2 * 2 * sequence_length * num_heads * head_dim


def combine_flops(hidden_size: int, *, num_experts_per_tok: int) -> int:
    """Forward FLOPs per token of a MoE's weighted sum over K experts' outputs of width H."""
    return 2 * num_experts_per_tok * hidden_size


def training_flops(forward_flops: int) -> int:
    """FLOPs of a training step per token: the backward does twice the forward's products."""
    return 3 * forward_flops

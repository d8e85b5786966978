"""Arithmetic without torch: width rules, head sizes, parameters and FLOPs."""

from __future__ import annotations

import math
from collections.abc import Callable

MULTIPLE = 64  # widths are rounded up to it: odd widths run slower on every matrix engine


class WidthError(ValueError):
    """A width that is neither a positive number nor the name of a rule."""

    exit_code = 2


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below the value."""
    return -(-value // multiple) * multiple


def width_two_thirds(hidden_size: int) -> int:
    """8/3·H up to a multiple of 64: a gated FFN with the parameters of a naive 4·H one."""
    return round_up(8 * hidden_size // 3, MULTIPLE)


def width_four(hidden_size: int) -> int:
    """4·H, the naive FFN's width (Vaswani 2017, arXiv:1706.03762)."""
    return 4 * hidden_size


def width_pi(hidden_size: int) -> int:
    """π·H up to a multiple of 64, MiniMind's newer rule: 768 → 2432."""
    return round_up(math.ceil(hidden_size * math.pi), MULTIPLE)


WIDTH_RULES: dict[str, Callable[[int], int]] = {
    "8/3": width_two_thirds,
    "4x": width_four,
    "pi": width_pi,
}


def resolve_width(value: int | str | None, hidden_size: int, rule: str) -> int:
    """The intermediate size that an option means.

    Args:
        value: An explicit width, always kept; the name of a rule ("8/3", "4x", "pi"); or None.
        hidden_size: H, at least 1.
        rule: The rule that None stands for.

    Raises:
        WidthError: The value is not positive, or names no rule.
    """
    if isinstance(value, bool) or not isinstance(value, int | str | None):
        raise WidthError(f"intermediate_size is {value!r}; give a whole number ≥ 1 or a rule")
    if isinstance(value, int) and value < 1:
        raise WidthError(
            f"intermediate_size is {value}; give a whole number ≥ 1, or null for {rule}"
        )
    if isinstance(value, int):
        return value
    name = rule if value is None else value
    if name not in WIDTH_RULES:
        raise WidthError(
            f"intermediate_size is {name!r}; give a whole number ≥ 1, or one of the rules "
            f"{', '.join(WIDTH_RULES)} (null means {rule})"
        )
    return WIDTH_RULES[name](hidden_size)


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


def training_flops(forward_flops: int) -> int:
    """FLOPs of a training step per token: the backward does twice the forward's products."""
    return 3 * forward_flops


class ModelShapeError(ValueError):
    """Sizes that do not fit together; the message names the keys and the nearest that fit."""

    exit_code = 2


def check_heads(
    *,
    hidden_size: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    head_dim: int | None = None,
) -> int:
    """Checks the sizes of attention before anything is built.

    Args:
        hidden_size: Width of the model.
        num_attention_heads: Query heads.
        num_key_value_heads: Key and value heads; a divisor of the query heads.
        head_dim: Size of a head, even; None: hidden_size / num_attention_heads.

    Returns:
        The size of a head.

    Raises:
        ModelShapeError: A size is below 1, heads do not divide, or a head has an odd size.
    """
    sizes = {
        "model.hidden_size": hidden_size,
        "model.num_attention_heads": num_attention_heads,
        "model.num_key_value_heads": num_key_value_heads,
        "model.head_dim": 2 if head_dim is None else head_dim,
    }
    for key, size in sizes.items():
        if size < 1:
            raise ModelShapeError(f"{key} is {size}; it must be at least 1")
    if num_attention_heads % num_key_value_heads:
        fitting = (d for d in range(1, num_attention_heads + 1) if num_attention_heads % d == 0)
        raise ModelShapeError(
            f"model.num_attention_heads {num_attention_heads} is not a multiple of "
            f"model.num_key_value_heads {num_key_value_heads}; key/value heads that fit: "
            f"{', '.join(map(str, fitting))}"
        )
    if head_dim is None:
        return even_head_dim(hidden_size, num_attention_heads)
    if head_dim % 2:
        raise ModelShapeError(
            f"model.head_dim {head_dim} is odd, and rotary positions turn pairs; "
            f"use {' or '.join(nearest_multiples(head_dim, 2))}"
        )
    return head_dim


def even_head_dim(hidden_size: int, num_attention_heads: int) -> int:
    """The size of a head when the heads share the width.

    Args:
        hidden_size: Width of the model.
        num_attention_heads: Query heads.

    Raises:
        ModelShapeError: The heads do not divide the width, or their size would be odd.
    """
    if hidden_size % (2 * num_attention_heads) == 0:
        return hidden_size // num_attention_heads
    # The advice is a multiple of twice the heads: of the heads alone, it could be odd again.
    near = " or ".join(nearest_multiples(hidden_size, 2 * num_attention_heads))
    problem = (
        "is not a multiple of"
        if hidden_size % num_attention_heads
        else f"gives heads of odd size {hidden_size // num_attention_heads} with"
    )
    raise ModelShapeError(
        f"model.hidden_size {hidden_size} {problem} model.num_attention_heads "
        f"{num_attention_heads}; use model.hidden_size {near}, or set an even model.head_dim"
    )


def nearest_multiples(size: int, unit: int) -> list[str]:
    """The multiples of unit below and above a size that is none, as text, without zero."""
    below = size // unit * unit
    return [str(multiple) for multiple in (below, below + unit) if multiple > 0]

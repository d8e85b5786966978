"""Sizes of attention heads, checked before anything is built."""

from __future__ import annotations


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

"""The grouped matrix products: two operators that are each other's derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula


@torch.library.custom_op("mlpkit::grouped_mm", mutates_args=())
def grouped_mm(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Multiplies each expert's rows by that expert's matrix.

    Args:
        rows: (N, P), sorted by expert.
        weight: (E, P, Q).
        counts: (E,) int64, rows of each expert; their sum is at most N.

    Returns:
        (N, Q); zeros for the rows past the last expert's.
    """
    out = rows.new_empty(rows.shape[0], weight.shape[2])
    start = 0
    for expert, size in enumerate(counts.tolist()):
        if size:
            torch.mm(rows[start : start + size], weight[expert], out=out[start : start + size])
            start += size
    out[start:].zero_()
    return out


@torch.library.custom_op("mlpkit::grouped_outer", mutates_args=())
def grouped_outer(left: Tensor, right: Tensor, counts: Tensor) -> Tensor:
    """Sums the outer products of each expert's rows; written once, zeros for idle experts.

    Args:
        left: (N, P), sorted by expert.
        right: (N, Q), in the same order.
        counts: (E,) int64, rows of each expert; their sum is at most N.

    Returns:
        (E, P, Q).
    """
    out = left.new_empty(counts.shape[0], left.shape[1], right.shape[1])
    start = 0
    for expert, size in enumerate(counts.tolist()):
        if size:
            stop = start + size
            torch.mm(left[start:stop].t(), right[start:stop], out=out[expert])
            start = stop
        else:
            out[expert].zero_()
    return out


@grouped_mm.register_fake
def _(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[2])


@grouped_outer.register_fake
def _(left: Tensor, right: Tensor, counts: Tensor) -> Tensor:
    return left.new_empty(counts.shape[0], left.shape[1], right.shape[1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _grouped_mm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    rows, weight, counts = ctx.saved_tensors
    wants_rows, wants_weight, _ = ctx.needs_input_grad
    return (
        grouped_mm(grad, weight.transpose(1, 2), counts) if wants_rows else None,
        _weight_gradient(rows, grad, weight, counts) if wants_weight else None,
        None,
    )


def _weight_gradient(rows: Tensor, grad: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    # A Linear's weight comes here as the transpose of (E, Q, P). Its gradient is written in that
    # layout: a transposed one would be copied when the optimizer or an accumulation reads it.
    swapped = weight.stride(1) < weight.stride(2)
    left, right = (grad, rows) if swapped else (rows, grad)
    gradient: Tensor = grouped_outer(left, right, counts)
    return gradient.transpose(1, 2) if swapped else gradient


def _grouped_outer_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    left, right, counts = ctx.saved_tensors
    wants_left, wants_right, _ = ctx.needs_input_grad
    return (
        grouped_mm(right, grad.transpose(1, 2), counts) if wants_left else None,
        grouped_mm(left, grad, counts) if wants_right else None,
        None,
    )


grouped_mm.register_autograd(_grouped_mm_backward, setup_context=_save)
grouped_outer.register_autograd(_grouped_outer_backward, setup_context=_save)


@register_flop_formula(torch.ops.mlpkit.grouped_mm)
def _grouped_mm_flops(
    rows: tuple[int, int], weight: tuple[int, int, int], counts: tuple[int], **_: Any
) -> int:
    return 2 * rows[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.mlpkit.grouped_outer)
def _grouped_outer_flops(
    left: tuple[int, int], right: tuple[int, int], counts: tuple[int], **_: Any
) -> int:
    return 2 * left[0] * left[1] * right[1]

"""The grouped matrix products: two operators that are each other's derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from mlpkit.experts.shapes import compiles_shapes, rounded

FEW = 32  # rows of an expert, up to which its weight is multiplied from the left


def multiply(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """grouped_mm, without the operator around it where nothing would see it.

    With few rows a custom operator's dispatch takes longer than the products in it.
    """
    plain = type(counts) is Tensor and counts.is_cpu and not torch.compiler.is_compiling()
    derived = torch.is_grad_enabled() and (rows.requires_grad or weight.requires_grad)
    if plain and not derived:
        return _by_expert(rows, weight, counts)
    out: Tensor = grouped_mm(rows, weight, counts)
    return out


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
    return _by_expert(rows, weight, counts)


def _by_expert(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    if has_native(rows, rows.shape[1], weight.shape[2]):
        return native_mm(rows, weight, counts)
    sizes = counts.tolist()
    if _even(sizes, rows):
        return _side_by_side(rows.view(len(sizes), -1, rows.shape[1]), weight).flatten(0, 1)
    out = rows.new_empty(rows.shape[0], weight.shape[2])
    start, end, few = 0, sum(sizes), compiles_shapes(rows)
    for expert, size in enumerate(sizes):
        if not size:
            continue
        stop, room = start + size, start + (rounded(size) if few else size)
        if size == 1 and few:  # half the time of a product of matrices
            torch.mv(weight[expert].t(), rows[start], out=out[start])
        elif room <= end:  # what is too much, the next experts overwrite
            torch.mm(rows[start:room], weight[expert], out=out[start:room])
        else:
            filled = _filled(rows[start:stop], room - stop)
            out[start:stop] = torch.mm(filled, weight[expert])[:size]
        start = stop
    if end < rows.shape[0]:
        out[end:].zero_()
    return out


def _side_by_side(rows: Tensor, weight: Tensor) -> Tensor:
    """(E, C, P) times (E, P, Q): (E, C, Q)."""
    # In bfloat16 a Linear's weight from the left, as it lies in memory: for few rows half the time
    # (8 experts, H 512, I 1,408: 8 rows 1.6 and 0.8 ms, 32 rows 2.8 and 1.9), and less for 64.
    swapped = weight.stride(1) < weight.stride(2) and rows.shape[1] <= FEW
    if swapped and compiles_shapes(rows):
        return torch.bmm(weight.transpose(1, 2), rows.transpose(1, 2)).transpose(1, 2)
    return torch.bmm(rows, weight)


def _filled(rows: Tensor, more: int) -> Tensor:
    """Rows with as many rows of zeros behind them."""
    return F.pad(rows, (0, 0, 0, more)) if more else rows


def has_native(rows: Tensor, inner: int, outer: int) -> bool:
    """Whether torch's own grouped product runs these: one kernel, and no wait for the counts."""
    # It takes bfloat16 from compute capability 8.0 on, with strides of a multiple of 16 bytes.
    fits = rows.is_cuda and rows.dtype == torch.bfloat16 and inner % 8 == outer % 8 == 0
    known = hasattr(F, "grouped_mm")
    return fits and known and torch.cuda.get_device_capability(rows.device) >= (8, 0)


def native_mm(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """grouped_mm by torch's own operator, which leaves the rows past the last expert's unset."""
    ends = counts.cumsum(0)
    out = F.grouped_mm(rows.contiguous(), weight, offs=ends.to(torch.int32))
    past = torch.arange(rows.shape[0], device=rows.device) >= ends[-1]
    return out.masked_fill_(past.unsqueeze(1), 0)


def native_outer(left: Tensor, right: Tensor, counts: Tensor) -> Tensor:
    """grouped_outer by torch's own operator; the idle experts' part is set here, not trusted."""
    ends = counts.cumsum(0).to(torch.int32)
    out = F.grouped_mm(left.contiguous().t(), right.contiguous(), offs=ends)
    return out.masked_fill_((counts == 0).view(-1, 1, 1), 0)


def _even(sizes: list[int], rows: Tensor) -> bool:
    """Whether all experts have as many rows: then they are one product of batches."""
    return rows.is_contiguous() and rows.shape[0] == len(sizes) * min(sizes) == sum(sizes)


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
    if has_native(left, left.shape[1], right.shape[1]):
        return native_outer(left, right, counts)
    sizes = counts.tolist()
    if _even(sizes, left) and right.is_contiguous():
        lefts, rights = (side.view(len(sizes), -1, side.shape[1]) for side in (left, right))
        return torch.bmm(lefts.transpose(1, 2), rights)
    out = left.new_empty(counts.shape[0], left.shape[1], right.shape[1])
    start, end, few = 0, sum(sizes), compiles_shapes(left)
    left_is_wider = left.shape[1] >= right.shape[1]
    for expert, size in enumerate(sizes):
        if not size:
            out[expert].zero_()
            continue
        stop, room = start + size, start + (rounded(size) if few else size)
        inside = room <= end  # then the wider side goes on into the next rows, times zeros
        a, b = left[start:room], right[start:room]
        if not (inside and left_is_wider):
            a = _filled(left[start:stop], room - stop)
        if not inside or left_is_wider:
            b = _filled(right[start:stop], room - stop)
        torch.mm(a.t(), b, out=out[expert])
        start = stop
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

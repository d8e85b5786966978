"""The collectives that carry gradients: a sum over processes, and rows for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor


class _Sum(torch.autograd.Function):
    """A sum over the processes; each one's gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return summed(value, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return summed(grad, ctx.group), None


class _Rows(torch.autograd.Function):
    """Rows to other processes; their gradients come back the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, taken: list[int], given: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.group, ctx.taken, ctx.given = group, taken, given
        return _exchanged(rows, taken, given, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grad, ctx.given, ctx.taken, ctx.group), None, None, None


class _Divided(torch.autograd.Function):
    """A tensor as it is, its gradient divided by a number."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, divisor: int) -> Tensor:
        ctx.divisor = divisor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad / ctx.divisor, None


def summed(value: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of a tensor over a group, a new one, without gradient."""
    return _done(funcol.all_reduce(value.detach().contiguous(), "sum", group))


def sum_over(value: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of a tensor over a group, with gradient.

    Where every process takes the same function of the sum as its loss, and the gradients are
    averaged afterwards, they are the gradient of that function of the whole batch.
    """
    return cast(Tensor, _Sum.apply(value, group))  # type: ignore[no-untyped-call]


def exchange_rows(
    rows: Tensor, *, taken: Sequence[int], given: Sequence[int], group: dist.ProcessGroup
) -> Tensor:
    """Gives each process its rows and takes what the others give, with gradient.

    Args:
        rows: (sum of given, …), in the order of the processes.
        taken: How many rows come from each process.
        given: How many go to each.
        group: The processes.

    Returns:
        (sum of taken, …), in the order of the processes.
    """
    out = _Rows.apply(rows, list(taken), list(given), group)  # type: ignore[no-untyped-call]
    return cast(Tensor, out)


def gather_rows(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The rows of all processes, in their order, with gradient; each may have another number."""
    size = dist.get_world_size(group)
    given = [len(rows)] * size
    mine = torch.tensor(given, device=rows.device)
    taken = exchange_rows(mine, taken=[1] * size, given=[1] * size, group=group).tolist()
    copies = torch.cat([rows] * size)
    return exchange_rows(copies, taken=taken, given=given, group=group)


def with_divided_gradient(tensor: Tensor, divisor: int) -> Tensor:
    """The same tensor, whose gradient arrives divided by a number."""
    return cast(Tensor, _Divided.apply(tensor, divisor))  # type: ignore[no-untyped-call]


def _exchanged(
    rows: Tensor, taken: list[int], given: list[int], group: dist.ProcessGroup
) -> Tensor:
    out = funcol.all_to_all_single(rows.detach().contiguous(), taken, given, group)
    return _done(out)


def _done(pending: Tensor) -> Tensor:
    return cast(Tensor, funcol.wait_tensor(pending))  # type: ignore[no-untyped-call]

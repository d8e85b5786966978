"""The way of tokens to rows sorted by expert, and back: each element is read and written once."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula


class Places(NamedTuple):
    """Which rows belong to a token, and which token a row belongs to.

    Args:
        row: (T, J) int64, the rows of each token.
        token: (N, L) int64, the tokens of each row; N · L = T · J pairs, as above.
        order: (N · L,) int64, the pair of the first table at each place of the second.
        back: (T · J,) int64, the pair of the second table at each place of the first.
    """

    row: Tensor
    token: Tensor
    order: Tensor
    back: Tensor

    def turned(self) -> Places:
        """The same pairs seen from the rows: rows and tokens change places."""
        return Places(self.token, self.row, self.back, self.order)


def places(order: Tensor, token: Tensor, num_experts_per_tok: int) -> Places:
    """The places of a token-choice routing whose T·K triples were sorted by expert.

    Args:
        order: (N,) int64, the triple of each row.
        token: (N,) int64, the token of each row.
        num_experts_per_tok: K; triple t·K + j is token t's.
    """
    position = torch.arange(order.shape[0], device=order.device)
    back = torch.empty_like(order).scatter_(0, order, position)  # (N,)
    return Places(back.view(-1, num_experts_per_tok), token.unsqueeze(1), order, back)


def to_rows(tokens: Tensor, places: Places) -> Tensor:
    """Copies each token to its rows: (T, H) -> (N, H)."""
    return gathered_sum(tokens, None, places.turned())


def gathered_sum(rows: Tensor, weight: Tensor | None, places: Places) -> Tensor:
    """Adds the weighted rows of each token, in a fixed order on every device.

    Gathering and then multiplying would write N·H elements more, and most of that time is the
    system handing out fresh memory: at T 2048, K 8, H 512 in float32 20 ms instead of 2.

    Args:
        rows: (N, H).
        weight: (T, J) in the dtype of rows; None: all are 1.
        places: Which rows belong to which token.

    Returns:
        (T, H), summed in float32 at least and rounded once.
    """
    if torch.compiler.is_compiling():  # which fuses these itself
        picked = rows.index_select(0, places.row.flatten()).view(*places.row.shape, -1)
        return (
            picked.sum(1) if weight is None else torch.bmm(weight.unsqueeze(1), picked).squeeze(1)
        )
    weighed = weight is not None and weight.requires_grad
    if torch.is_grad_enabled() and (rows.requires_grad or weighed):
        out: Tensor = _GatheredSum.apply(rows, weight, *places)  # type: ignore[no-untyped-call]
        return out
    return _sum(rows, weight, places.row)


def _sum(rows: Tensor, weight: Tensor | None, row: Tensor) -> Tensor:
    if weight is None and row.shape[1] == 1:
        return rows.index_select(0, row.flatten())
    return F.embedding_bag(row, rows, per_sample_weights=weight, mode="sum")


@register_flop_formula([torch.ops.aten._embedding_bag, torch.ops.aten._embedding_bag_forward_only])
def _weighted_sum_flops(
    table: tuple[int, int],
    indices: tuple[int],
    offsets: tuple[int],
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: tuple[int] | None = None,
    *_: Any,
    **__: Any,
) -> int:
    """A multiply-add for each weighted element, as torch's counter has it of a product."""
    return 2 * indices[0] * table[1] if per_sample_weights is not None else 0


class _GatheredSum(torch.autograd.Function):
    """gathered_sum, whose derivative is another one, over the places seen from the rows."""

    @staticmethod
    def forward(
        rows: Tensor, weight: Tensor | None, row: Tensor, token: Tensor, order: Tensor, back: Tensor
    ) -> Tensor:
        return _sum(rows, weight, row)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        rows, weight, *tables = inputs
        # Without weights the rows are not needed again, and need not stay alive.
        ctx.save_for_backward(rows if ctx.needs_input_grad[1] else None, weight, *tables)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        rows, weight, *tables = ctx.saved_tensors
        places = Places(*tables)
        wants_rows, wants_weight = ctx.needs_input_grad[:2]
        grad_rows = grad_weight = None
        if wants_rows:
            turned = None if weight is None else weight.flatten()[places.order]
            turned = None if turned is None else turned.view_as(places.token)
            grad_rows = gathered_sum(grad, turned, places.turned())
        if wants_weight:
            grad_weight = _products(rows, grad, places.row)
        return grad_rows, grad_weight, None, None, None, None


def _products(rows: Tensor, grad: Tensor, row: Tensor) -> Tensor:
    """The product of each token's gradient with each of its rows: (T, J)."""
    tokens, per_token = row.shape
    if torch.is_grad_enabled():  # a second derivative is asked for
        return torch.einsum("tjh,th->tj", rows[row], grad)
    bags = torch.arange(tokens, device=row.device)
    flat = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        grad.contiguous(),
        rows.contiguous(),
        row.flatten(),
        bags * per_token,
        bags.repeat_interleave(per_token),
        0,  # the mode "sum"
    )
    return cast(Tensor, flat).view(tokens, per_token)

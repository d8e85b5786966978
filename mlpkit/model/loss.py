"""Cross-entropy over a vocabulary in pieces: the logits of all tokens are never alive at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

CHUNK = 1 << 22  # logits alive at once: 16 MB in float32, of 655 rows with MiniMind's vocabulary


def summed_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, chunk: int = CHUNK
) -> Tensor:
    """The summed cross-entropy of a linear head, as ``F.cross_entropy(F.linear(...))`` gives it.

    Where a gradient is wanted, both gradients are computed with the loss, piece by piece: nothing
    is computed twice, and beside a piece of logits there are only the gradients themselves.
    Under autocast the products are in its dtype; the softmax is always in float32 at least.

    Args:
        hidden: (N, H), what the head reads.
        weight: (V, H), of the head, or of the embedding tied to it.
        targets: (N,) int64, in [0, V).
        chunk: Logits that are alive at once, at least 1; a piece has one row at least.

    Returns:
        A scalar in nats, float32 (or float64 of a float64 input).
    """
    if torch.compiler.is_compiling():  # which fuses the softmax and the products around it itself
        return F.cross_entropy(_logits(hidden, weight), targets, reduction="sum")
    derived = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    rows = max(1, chunk // weight.shape[0])
    if derived:
        loss: Tensor = _InPieces.apply(hidden, weight, targets, rows)  # type: ignore[no-untyped-call]
        return loss
    pieces = zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
    losses = [
        F.cross_entropy(_logits(part, weight), truth, reduction="sum") for part, truth in pieces
    ]
    return torch.stack(losses).sum()


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """(n, V), in float32: in bf16 the logarithm of a sum over the vocabulary has two digits."""
    logits = F.linear(hidden, weight)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class _InPieces(torch.autograd.Function):
    """Computes both gradients in the forward; the backward only multiplies them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, rows: int) -> Tensor:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        for start in range(0, hidden.shape[0], rows):
            part, truth = hidden[start : start + rows], targets[start : start + rows]
            shares = F.log_softmax(_logits(part, weight), 1)
            chosen = shares.gather(1, truth.unsqueeze(1))  # (n, 1)
            total -= chosen.sum()
            slope = shares.exp_()  # the probabilities, in their logarithms' own room
            slope.scatter_add_(1, truth.unsqueeze(1), torch.full_like(chosen, -1))
            slope = slope.to(part.dtype)
            if grad_hidden is not None:
                grad_hidden[start : start + rows] = slope @ weight
            if grad_weight is not None:
                grad_weight += slope.t() @ part
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        scaled = [g if g is None else g * grad.to(g.dtype) for g in ctx.saved_tensors]
        return scaled[0], scaled[1], None, None

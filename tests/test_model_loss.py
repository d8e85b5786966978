"""Cross-entropy in pieces against torch's over all logits."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from mlpkit.model.loss import summed_cross_entropy

N, H, V = 11, 6, 7


def parts(dtype=torch.float64):
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, H, generator=rng, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(V, H, generator=rng, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, V, (N,), generator=rng)


@pytest.mark.parametrize("chunk", [1, V, 3 * V, 4 * V + 1, 1000])
def test_loss_and_gradients_are_those_over_all_logits(chunk):
    hidden, weight, targets = parts()
    loss = summed_cross_entropy(hidden, weight, targets, chunk=chunk)
    want = F.cross_entropy(F.linear(hidden, weight), targets, reduction="sum")
    torch.testing.assert_close(loss, want)
    got = torch.autograd.grad(loss / 5, (hidden, weight))
    torch.testing.assert_close(got, torch.autograd.grad(want / 5, (hidden, weight)))
    with torch.no_grad():
        torch.testing.assert_close(summed_cross_entropy(hidden, weight, targets, chunk=chunk), want)


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_side_gets_no_gradient(frozen):
    *sides, targets = parts()
    sides[frozen].requires_grad_(False)
    summed_cross_entropy(*sides, targets, chunk=V).backward()
    assert sides[frozen].grad is None
    assert sides[1 - frozen].grad.abs().sum() > 0


def test_huge_logits_give_finite_numbers():
    hidden, weight, targets = parts()
    loss = summed_cross_entropy(hidden * 1e4, weight, targets, chunk=V)
    want = F.cross_entropy(F.linear(hidden * 1e4, weight), targets, reduction="sum")
    torch.testing.assert_close(loss, want)
    assert torch.autograd.grad(loss, weight)[0].isfinite().all()


def test_under_autocast_the_products_are_lowered_and_the_loss_is_not():
    hidden, weight, targets = parts(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = summed_cross_entropy(hidden, weight, targets, chunk=2 * V)
        logits = F.linear(hidden, weight)
    want = F.cross_entropy(logits.float(), targets, reduction="sum")
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, want)
    got = torch.autograd.grad(loss, (hidden, weight))
    for gradient, expected in zip(got, torch.autograd.grad(want, (hidden, weight)), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=2e-2, atol=2e-2)


class Largest(TorchDispatchMode):
    """The most rows that any tensor as wide as the vocabulary has."""

    rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.ndim == 2 and out.shape[1] == V:
            self.rows = max(self.rows, len(out))
        return out


def test_no_more_logits_are_alive_than_a_piece_has():
    hidden, weight, targets = parts()
    hidden, weight = (side.detach()[:, :2].requires_grad_() for side in (hidden, weight))
    with Largest() as seen:
        summed_cross_entropy(hidden, weight, targets, chunk=3 * V).backward()
    assert seen.rows == 3

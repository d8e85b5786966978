"""Activations that look at all features of a position (the last dimension), not at one element."""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlpkit.activations.precision import ActivationOptionError, in_float32, positive, widen


@in_float32
def solu(x: Tensor) -> Tensor:
    """x·softmax(x) over the last dimension; the LayerNorm that follows it is the FFN's."""
    return x * torch.softmax(x, dim=-1)


class GaussianTopK(nn.Module):
    """max(x − mean − Φ⁻¹(sparsity)·std, 0) over the last dimension.

    For features that are normally distributed it keeps the share 1 − sparsity of them, without
    a sort (You et al. 2025, arXiv:2506.06644; Gemma 3n applies it before GELU).

    Args:
        sparsity: The share to be set to zero, between 0 and 1.

    Raises:
        ActivationOptionError: ``sparsity`` is not between 0 and 1.
    """

    def __init__(self, *, sparsity: float = 0.95) -> None:
        super().__init__()
        if not 0 < sparsity < 1:
            raise ActivationOptionError(f"sparsity is {sparsity}; give a number between 0 and 1")
        self.sparsity = sparsity
        self.deviations = NormalDist().inv_cdf(sparsity)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., I)."""
        wide = widen(x)
        centred = wide - wide.mean(dim=-1, keepdim=True)
        # the norm, not std: the gradient of equal features is 0, and no warning for empty input
        spread = torch.linalg.vector_norm(centred, dim=-1, keepdim=True) / math.sqrt(x.shape[-1])
        return F.relu(centred - spread * self.deviations).to(x.dtype)

    def extra_repr(self) -> str:
        """The share set to zero, for ``print``."""
        return f"sparsity={self.sparsity}"


class PolyNorm(nn.Module):
    """Σ weight[i]·norm(x^(i+1)) + bias, norm(v) = v/√(mean(v²) + eps), i = 0 … order − 1.

    Args:
        order: The highest power; every weight starts at 1/order, the bias at 0.
        eps: Added to the mean square.

    Raises:
        ActivationOptionError: ``order`` or ``eps`` is not above 0.
    """

    def __init__(self, *, order: int = 3, eps: float = 1e-6) -> None:
        super().__init__()
        positive(order=order, eps=eps)
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(order))
        self.bias = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets every weight to 1/order and the bias to 0."""
        nn.init.constant_(self.weight, 1 / len(self.weight))
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., I)."""
        wide = widen(x)
        powers = [wide ** (i + 1) for i in range(len(self.weight))]
        normed = [F.rms_norm(p, p.shape[-1:], eps=self.eps) for p in powers]
        total = sum(w * n for w, n in zip(widen(self.weight).unbind(), normed, strict=True))
        return (total + widen(self.bias)).to(x.dtype)

    def extra_repr(self) -> str:
        """What is added to the mean square, for ``print``."""
        return f"eps={self.eps}"

"""Activations linear on the right and curved on the left, the softplus family too; derivatives.

Every function takes a tensor of any shape and returns one of the same shape and dtype.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mlpkit.activations.precision import in_float32, positive

SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805
# below −18 the series of √ln(1 + eˣ) with its first correction is exact to float64
SQRT_SOFTPLUS_TAIL = -18.0


def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Gives x where x > 0, else alpha·(eˣ − 1)."""
    return F.elu(x, alpha)


@in_float32
def elu_derivative(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """1 where x > 0, else alpha·eˣ."""
    return torch.where(x > 0, torch.ones_like(x), alpha * torch.exp(x.clamp(max=0)))


def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Gives x where x > 0, else alpha·(e^(x/alpha) − 1): its slope is continuous at any alpha."""
    positive(alpha=alpha)
    return F.celu(x, alpha)


@in_float32
def celu_derivative(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """1 where x > 0, else e^(x/alpha)."""
    positive(alpha=alpha)
    return torch.exp((x / alpha).clamp(max=0))


def selu(x: Tensor) -> Tensor:
    """1.0507·x where x > 0, else 1.0507·1.6733·(eˣ − 1)."""
    return F.selu(x)


@in_float32
def selu_derivative(x: Tensor) -> Tensor:
    """1.0507 where x > 0, else 1.0507·1.6733·eˣ."""
    return SELU_SCALE * torch.where(x > 0, 1.0, SELU_ALPHA * torch.exp(x.clamp(max=0)))


@in_float32
def isru(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x/√(1 + alpha·x²); hypot does not overflow where the square would."""
    positive(alpha=alpha)
    return x / torch.hypot(torch.ones_like(x), math.sqrt(alpha) * x)


@in_float32
def isru_derivative(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """(1 + alpha·x²)^(−3/2)."""
    positive(alpha=alpha)
    return (1 / torch.hypot(torch.ones_like(x), math.sqrt(alpha) * x)) ** 3


@in_float32
def isrlu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Gives x where x ≥ 0, else x/√(1 + alpha·x²)."""
    return torch.where(x >= 0, x, isru(x, alpha=alpha))


@in_float32
def isrlu_derivative(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """1 where x ≥ 0, else (1 + alpha·x²)^(−3/2)."""
    return torch.where(x >= 0, 1.0, isru_derivative(x, alpha=alpha))


@in_float32
def elish(x: Tensor) -> Tensor:
    """x·σ(x) where x ≥ 0, else (eˣ − 1)·σ(x)."""
    return torch.where(x >= 0, x, torch.expm1(x.clamp(max=0))) * torch.sigmoid(x)


@in_float32
def elish_derivative(x: Tensor) -> Tensor:
    """σ(x)·(1 + x·σ(−x)) where x ≥ 0, else σ(x)·(eˣ + (eˣ − 1)·σ(−x))."""
    gate, rest, left = torch.sigmoid(x), torch.sigmoid(-x), x.clamp(max=0)
    slope = torch.where(x >= 0, 1 + x * rest, torch.exp(left) + torch.expm1(left) * rest)
    return gate * slope


@in_float32
def hard_elish(x: Tensor) -> Tensor:
    """x·h where x ≥ 0, else (eˣ − 1)·h, with h = (x + 1)/2 cut to [0, 1]."""
    gate = (x / 2 + 0.5).clamp(0, 1)
    return torch.where(x >= 0, x, torch.expm1(x.clamp(max=0))) * gate


@in_float32
def hard_elish_derivative(x: Tensor) -> Tensor:
    """0 below −1, (eˣ·(x + 2) − 1)/2 up to 0, x + 1/2 up to 1, then 1."""
    left = x.clamp(-1, 0)
    negative = (torch.exp(left) * (left + 2) - 1) / 2 * (x >= -1)
    return torch.where(x < 0, negative, torch.where(x <= 1, x + 0.5, 1.0))


@in_float32
def softplus(x: Tensor, *, beta: float = 1.0) -> Tensor:
    """ln(1 + e^(beta·x))/beta, exact everywhere (torch's becomes x above 20/beta, off by 2e-9)."""
    positive(beta=beta)
    return -F.logsigmoid(-beta * x) / beta


@in_float32
def softplus_derivative(x: Tensor, *, beta: float = 1.0) -> Tensor:
    """σ(beta·x)."""
    positive(beta=beta)
    return torch.sigmoid(beta * x)


@in_float32
def shifted_softplus(x: Tensor) -> Tensor:
    """ln(1 + eˣ) − ln 2: zero at zero."""
    return softplus(x) - math.log(2)


@in_float32
def shifted_softplus_derivative(x: Tensor) -> Tensor:
    """σ(x)."""
    return torch.sigmoid(x)


@in_float32
def sqrt_softplus(x: Tensor) -> Tensor:
    """√ln(1 + eˣ).

    Below −18 it is e^((x − eˣ/2)/2): the root of a softplus that has underflowed to 0 would
    have value 0 and gradient 0·∞ = NaN there (float32: x < −104).
    """
    tail = x.clamp(max=SQRT_SOFTPLUS_TAIL)
    root = torch.sqrt(softplus(x.clamp(min=SQRT_SOFTPLUS_TAIL)))
    return torch.where(x < SQRT_SOFTPLUS_TAIL, torch.exp((tail - torch.exp(tail) / 2) / 2), root)


@in_float32
def sqrt_softplus_derivative(x: Tensor) -> Tensor:
    """σ(x)/(2·√ln(1 + eˣ))."""
    tail, body = x.clamp(max=SQRT_SOFTPLUS_TAIL), x.clamp(min=SQRT_SOFTPLUS_TAIL)
    ratio = torch.sigmoid(body) / (2 * torch.sqrt(softplus(body)))
    far = torch.exp((tail - torch.exp(tail) / 2) / 2) / 2 * (1 - torch.exp(tail) / 2)
    return torch.where(x < SQRT_SOFTPLUS_TAIL, far, ratio)


@in_float32
def squareplus(x: Tensor, *, b: float = 4.0) -> Tensor:
    """(x + √(x² + b))/2.

    Left of zero it is b/(2·(√(x² + b) − x)), the same number without the difference of two
    nearly equal ones, which leaves nothing of it in float32 at −5000.
    """
    positive(b=b)
    half_root = torch.hypot(x, torch.full_like(x, math.sqrt(b))) / 2
    return torch.where(x > 0, x / 2 + half_root, b / 4 / (half_root - x.clamp(max=0) / 2))


@in_float32
def squareplus_derivative(x: Tensor, *, b: float = 4.0) -> Tensor:
    """(1 + x/√(x² + b))/2."""
    positive(b=b)
    return (1 + x / torch.hypot(x, torch.full_like(x, math.sqrt(b)))) / 2


@in_float32
def bent_identity(x: Tensor) -> Tensor:
    """Gives x + (√(x² + 1) − 1)/2."""
    return x + (torch.hypot(x, torch.ones_like(x)) - 1) / 2


@in_float32
def bent_identity_derivative(x: Tensor) -> Tensor:
    """1 + x/(2·√(x² + 1))."""
    return 1 + x / torch.hypot(x, torch.ones_like(x)) / 2


def logsigmoid(x: Tensor) -> Tensor:
    """Gives ln σ(x) = −ln(1 + e⁻ˣ)."""
    return F.logsigmoid(x)


@in_float32
def logsigmoid_derivative(x: Tensor) -> Tensor:
    """σ(−x)."""
    return torch.sigmoid(-x)

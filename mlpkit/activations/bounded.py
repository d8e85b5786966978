"""Activations that saturate, and waves, each with its derivative.

Every function takes a tensor of any shape and returns one of the same shape and dtype.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mlpkit.activations.exponential import softplus
from mlpkit.activations.precision import in_float32, positive

# exp(−e⁷) is 0 in float64; the exponential itself would overflow later on
CLOGLOG_SATURATED = 7.0


@in_float32
def sigmoid(x: Tensor) -> Tensor:
    """1/(1 + e⁻ˣ)."""
    return torch.sigmoid(x)


@in_float32
def sigmoid_derivative(x: Tensor) -> Tensor:
    """σ(x)·σ(−x)."""
    return torch.sigmoid(x) * torch.sigmoid(-x)


@in_float32
def tanh(x: Tensor) -> Tensor:
    """(eˣ − e⁻ˣ)/(eˣ + e⁻ˣ)."""
    return torch.tanh(x)


@in_float32
def tanh_derivative(x: Tensor) -> Tensor:
    """1 − tanh²(x), as 4·σ(2x)·σ(−2x)."""
    return 4 * torch.sigmoid(2 * x) * torch.sigmoid(-2 * x)


@in_float32
def lecun_tanh(x: Tensor) -> Tensor:
    """1.7159·tanh(2x/3): ±1 at ±1, so that targets of ±1 lie where the curve still bends."""
    return 1.7159 * torch.tanh(x * (2 / 3))


@in_float32
def lecun_tanh_derivative(x: Tensor) -> Tensor:
    """1.7159·2/3·(1 − tanh²(2x/3))."""
    return 1.7159 * 2 / 3 * tanh_derivative(x * (2 / 3))


@in_float32
def softsign(x: Tensor) -> Tensor:
    """x/(1 + |x|)."""
    return x / (1 + x.abs())


@in_float32
def softsign_derivative(x: Tensor) -> Tensor:
    """1/(1 + |x|)²."""
    return (1 / (1 + x.abs())) ** 2


@in_float32
def arctan(x: Tensor) -> Tensor:
    """The inverse tangent of x."""
    return torch.atan(x)


@in_float32
def arctan_derivative(x: Tensor) -> Tensor:
    """1/(1 + x²)."""
    return 1 / (1 + x * x)


@in_float32
def laplace(x: Tensor, *, mu: float = 0.707107, sigma: float = 0.282095) -> Tensor:
    """(1 + erf((x − mu)/(sigma·√2)))/2, by erfc, which keeps the small values on the left."""
    positive(sigma=sigma)
    return torch.erfc((mu - x) / (sigma * math.sqrt(2))) / 2


@in_float32
def laplace_derivative(x: Tensor, *, mu: float = 0.707107, sigma: float = 0.282095) -> Tensor:
    """exp(−z²/2)/(sigma·√(2π)) with z = (x − mu)/sigma."""
    positive(sigma=sigma)
    distance = (x - mu) / sigma
    return torch.exp(-distance * distance / 2) / (sigma * math.sqrt(2 * math.pi))


@in_float32
def cloglog(x: Tensor) -> Tensor:
    """1 − exp(−eˣ)."""
    return -torch.expm1(-torch.exp(x.clamp(max=CLOGLOG_SATURATED)))


@in_float32
def cloglog_derivative(x: Tensor) -> Tensor:
    """exp(x − eˣ)."""
    cut = x.clamp(max=CLOGLOG_SATURATED)
    return torch.exp(cut - torch.exp(cut))


@in_float32
def soft_clipping(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """ln((1 + e^(alpha·x))/(1 + e^(alpha·(x − 1))))/alpha, x bent to stay between 0 and 1.

    Right of 1/2 it is 1 minus its mirror image: there the difference of two softplus of size x
    would lose the 1 that it converges to.
    """
    positive(alpha=alpha)
    left = torch.where(x > 0.5, 1 - x, x)
    rising = softplus(left, beta=alpha) - softplus(left - 1, beta=alpha)
    return torch.where(x > 0.5, 1 - rising, rising)


@in_float32
def soft_clipping_derivative(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """σ(alpha·x) − σ(alpha·(x − 1)), mirrored at 1/2."""
    positive(alpha=alpha)
    left = torch.where(x > 0.5, 1 - x, x)
    return torch.sigmoid(alpha * left) - torch.sigmoid(alpha * (left - 1))


@in_float32
def tanhshrink(x: Tensor) -> Tensor:
    """Gives x − tanh(x)."""
    return F.tanhshrink(x)


@in_float32
def tanhshrink_derivative(x: Tensor) -> Tensor:
    """tanh²(x)."""
    return torch.tanh(x).square()


@in_float32
def gaussian(x: Tensor) -> Tensor:
    """exp(−x²), a radial basis function."""
    # x·x and not square(), whose gradient 2x overflows before it meets exp(−x²) = 0
    return torch.exp(-(x * x))


@in_float32
def gaussian_derivative(x: Tensor) -> Tensor:
    """−2x·exp(−x²)."""
    return x * torch.exp(-(x * x)) * -2


def phase(x: Tensor, frequency: float | Tensor) -> Tensor:
    """frequency·x, kept finite: the sine of an overflow is NaN.

    There, neighbouring numbers lie many periods apart, so the phase has no meaning left and the
    gradient is given as that of a constant phase.
    """
    limits = torch.finfo(x.dtype)
    return (frequency * x).clamp(limits.min, limits.max)


@in_float32
def sine(x: Tensor, *, omega: float = 1.0) -> Tensor:
    """sin(omega·x)."""
    return torch.sin(phase(x, omega))


@in_float32
def sine_derivative(x: Tensor, *, omega: float = 1.0) -> Tensor:
    """omega·cos(omega·x)."""
    return omega * torch.cos(phase(x, omega))


def siren(x: Tensor, *, omega: float = 30.0) -> Tensor:
    """sin(omega·x) with the frequency of SIREN's layers."""
    return sine(x, omega=omega)


def siren_derivative(x: Tensor, *, omega: float = 30.0) -> Tensor:
    """omega·cos(omega·x)."""
    return sine_derivative(x, omega=omega)


@in_float32
def snake(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Gives x + sin²(alpha·x)/alpha."""
    positive(alpha=alpha)
    return x + torch.sin(phase(x, alpha)).square() / alpha


@in_float32
def snake_derivative(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """1 + sin(2·alpha·x), as 1 + 2·sin(alpha·x)·cos(alpha·x)."""
    positive(alpha=alpha)
    angle = phase(x, alpha)
    return 1 + 2 * torch.sin(angle) * torch.cos(angle)


@in_float32
def gcu(x: Tensor) -> Tensor:
    """x·cos(x)."""
    return x * torch.cos(x)


@in_float32
def gcu_derivative(x: Tensor) -> Tensor:
    """cos(x) − x·sin(x)."""
    return torch.cos(x) - x * torch.sin(x)

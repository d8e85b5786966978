"""Piecewise linear and piecewise quadratic activations, each with its derivative.

Every function takes a tensor of any shape and returns one of the same shape and dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mlpkit.activations.precision import ActivationOptionError, in_float32, positive


def _step(x: Tensor, condition: Tensor) -> Tensor:
    return condition.to(x.dtype)


def identity(x: Tensor) -> Tensor:
    """x: the bilinear GLU's activation."""
    return x


def identity_derivative(x: Tensor) -> Tensor:
    """1."""
    return torch.ones_like(x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return F.relu(x)


def relu_derivative(x: Tensor) -> Tensor:
    """1 where x > 0, else 0 (0 at x = 0, as torch's autograd)."""
    return _step(x, x > 0)


@in_float32
def relu2(x: Tensor) -> Tensor:
    """max(x, 0)², the squared ReLU; overflows where x² does (float16: x > 255)."""
    return F.relu(x).square()


def relu2_derivative(x: Tensor) -> Tensor:
    """2·max(x, 0)."""
    return 2 * F.relu(x)


def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6)."""
    return F.relu6(x)


def relu6_derivative(x: Tensor) -> Tensor:
    """1 where 0 < x < 6, else 0."""
    return _step(x, (x > 0) & (x < 6))


def shifted_relu(x: Tensor) -> Tensor:
    """max(x, −1)."""
    return x.clamp(min=-1)


def shifted_relu_derivative(x: Tensor) -> Tensor:
    """1 where x ≥ −1, else 0."""
    return _step(x, x >= -1)


def leaky_relu(x: Tensor, *, negative_slope: float = 0.01) -> Tensor:
    """Gives x where x > 0, else negative_slope·x."""
    return F.leaky_relu(x, negative_slope)


def leaky_relu_derivative(x: Tensor, *, negative_slope: float = 0.01) -> Tensor:
    """1 where x > 0, else negative_slope."""
    return torch.where(x > 0, torch.ones_like(x), negative_slope)


def threshold(x: Tensor, *, threshold: float = 1.0, value: float = 0.0) -> Tensor:
    """Gives x where x > threshold, else the constant value."""
    return F.threshold(x, threshold, value)


def threshold_derivative(x: Tensor, *, threshold: float = 1.0, value: float = 0.0) -> Tensor:
    """1 where x > threshold, else 0."""
    return _step(x, x > threshold)


@in_float32
def star_relu(
    x: Tensor, *, scale: float = 0.8944271909999159, bias: float = -0.4472135954999579
) -> Tensor:
    """scale·max(x, 0)² + bias; 2/√5 and −1/√5 give mean 0 and variance 1 for normal input."""
    return scale * F.relu(x).square() + bias


@in_float32
def star_relu_derivative(
    x: Tensor, *, scale: float = 0.8944271909999159, bias: float = -0.4472135954999579
) -> Tensor:
    """2·scale·max(x, 0)."""
    return 2 * scale * F.relu(x)


@in_float32
def smelu(x: Tensor, *, beta: float = 1.0) -> Tensor:
    """0 below −beta, x above beta, (x + beta)²/(4·beta) between."""
    positive(beta=beta)
    return (x + beta).clamp(0, 2 * beta).square() / (4 * beta) + F.relu(x - beta)


@in_float32
def smelu_derivative(x: Tensor, *, beta: float = 1.0) -> Tensor:
    """(x + beta)/(2·beta), cut to [0, 1]."""
    positive(beta=beta)
    return (x / (2 * beta) + 0.5).clamp(0, 1)


def hardtanh(x: Tensor, *, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Gives x, cut to [min_val, max_val]."""
    if min_val >= max_val:
        raise ActivationOptionError(f"min_val is {min_val}, not below max_val {max_val}; lower it")
    return F.hardtanh(x, min_val, max_val)


def hardtanh_derivative(x: Tensor, *, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """1 where min_val < x < max_val, else 0."""
    return _step(x, (x > min_val) & (x < max_val))


@in_float32
def hardsigmoid(x: Tensor) -> Tensor:
    """min(max(x + 3, 0), 6)/6; torch's own has a slope of 1/6 in float32, whatever the dtype."""
    return (x / 6 + 0.5).clamp(0, 1)


@in_float32
def hardsigmoid_derivative(x: Tensor) -> Tensor:
    """1/6 where −3 ≤ x ≤ 3, else 0."""
    return _step(x, x.abs() <= 3) / 6


def hardswish(x: Tensor) -> Tensor:
    """x·min(max(x + 3, 0), 6)/6; infinite above a sixth of the largest number, by the kernel."""
    return F.hardswish(x)


@in_float32
def hardswish_derivative(x: Tensor) -> Tensor:
    """0 below −3, 1 above 3, (2x + 3)/6 between."""
    inside = x.clamp(-3, 3) / 3 + 0.5
    return torch.where(x.abs() < 3, inside, _step(x, x >= 3))


@in_float32
def hard_mish(x: Tensor) -> Tensor:
    """x·min(max(x + 2, 0), 2)/2."""
    return x * ((x + 2).clamp(0, 2) / 2)


@in_float32
def hard_mish_derivative(x: Tensor) -> Tensor:
    """0 below −2, 1 above 0, x + 1 between."""
    return torch.where((x >= -2) & (x <= 0), x + 1, _step(x, x > 0))


def softshrink(x: Tensor, *, lambd: float = 0.5) -> Tensor:
    """Gives x − lambd above lambd, x + lambd below −lambd, 0 between (soft thresholding)."""
    positive(lambd=lambd)
    return F.softshrink(x, lambd)


def softshrink_derivative(x: Tensor, *, lambd: float = 0.5) -> Tensor:
    """1 where |x| > lambd, else 0."""
    return _step(x, x.abs() > lambd)


def hardshrink(x: Tensor, *, lambd: float = 0.5) -> Tensor:
    """Gives x where |x| > lambd, else 0 (hard thresholding)."""
    positive(lambd=lambd)
    return F.hardshrink(x, lambd)


def hardshrink_derivative(x: Tensor, *, lambd: float = 0.5) -> Tensor:
    """1 where |x| > lambd, else 0: the jump at lambd has no gradient."""
    return _step(x, x.abs() > lambd)


@in_float32
def sqnl(x: Tensor) -> Tensor:
    """c·(1 − |c|/4) with c = x cut to [−2, 2]: tanh's shape from two parabolas."""
    cut = x.clamp(-2, 2)
    return cut * (1 - cut.abs() / 4)


@in_float32
def sqnl_derivative(x: Tensor) -> Tensor:
    """max(1 − |x|/2, 0)."""
    return F.relu(1 - x.abs() / 2)

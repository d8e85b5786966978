"""Activations x·gate(x): the GELU and the SiLU families and Mish's relatives, with derivatives.

Every function takes a tensor of any shape and returns one of the same shape and dtype.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mlpkit.activations.precision import ActivationOptionError, in_float32, positive

# beyond ±40 every gate here is exactly 0 or 1 or its product with x is below float64's smallest
SATURATED = 40.0
# tanh(eˣ) is 1 in float64 from x = 3 on, and eˣ overflows later on
TANH_EXP_SATURATED = 4.0


def gelu(x: Tensor) -> Tensor:
    """x·Φ(x), with the normal distribution Φ by erf.

    torch's CPU kernel forms 2x on its way, so the value is infinite above half of the largest
    number of float32, bfloat16 and float64: too far out to pay a guard for.
    """
    return F.gelu(x)


@in_float32
def gelu_derivative(x: Tensor) -> Tensor:
    """Φ(x) + x·φ(x)."""
    density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return torch.erfc(x * -math.sqrt(0.5)) / 2 + x * density


def gelu_tanh(x: Tensor) -> Tensor:
    """x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))).

    The cube overflows near 1e13 in float32, where torch's own gradient is 0·∞ = NaN. Beyond ±40
    the function is x or 0 to the last bit, so the kernel need not see such a number; the guard
    costs eager mode a few passes over memory and a compiled model nothing.
    """
    inside = x.clamp(-SATURATED, SATURATED)
    return torch.where(x > SATURATED, x, F.gelu(inside, approximate="tanh"))


@in_float32
def gelu_tanh_derivative(x: Tensor) -> Tensor:
    """σ(2u) + 2x·σ(2u)·σ(−2u)·u′, with u = √(2/π)·(x + 0.044715·x³)."""
    cut = x.clamp(-SATURATED, SATURATED)
    root = math.sqrt(2 / math.pi)
    argument = 2 * root * (cut + 0.044715 * cut**3)
    slope = 2 * root * (1 + 3 * 0.044715 * cut * cut)
    gate = torch.sigmoid(argument)
    return gate + cut * gate * torch.sigmoid(-argument) * slope


def gelu_10(x: Tensor, *, min: float = -10.0, max: float = 10.0) -> Tensor:
    """GELU, its value cut to [min, max]; the lower bound is never reached by default."""
    if min > max:
        raise ActivationOptionError(f"min is {min}, above max {max}; swap them")
    return gelu(x).clamp(min, max)


def gelu_10_derivative(x: Tensor, *, min: float = -10.0, max: float = 10.0) -> Tensor:
    """GELU's derivative where min ≤ GELU(x) ≤ max, else 0."""
    value = gelu(x)
    return gelu_derivative(x) * ((value >= min) & (value <= max))


@in_float32
def swish_beta(x: Tensor, *, beta: float = 1.0) -> Tensor:
    """x·σ(beta·x): the SiLU at 1, nearly ReLU from 10 on."""
    return x * torch.sigmoid(beta * x)


@in_float32
def swish_beta_derivative(x: Tensor, *, beta: float = 1.0) -> Tensor:
    """σ(βx)·(1 + βx·σ(−βx))."""
    argument = beta * x
    # σ(−z)·z is 0·∞ where beta·x overflows
    cut = argument.clamp(torch.finfo(x.dtype).min, torch.finfo(x.dtype).max)
    return torch.sigmoid(cut) + cut * torch.sigmoid(cut) * torch.sigmoid(-cut)


def quick_gelu(x: Tensor) -> Tensor:
    """x·σ(1.702·x)."""
    return swish_beta(x, beta=1.702)


def quick_gelu_derivative(x: Tensor) -> Tensor:
    """σ(1.702x)·(1 + 1.702x·σ(−1.702x))."""
    return swish_beta_derivative(x, beta=1.702)


def silu(x: Tensor) -> Tensor:
    """x·σ(x), by torch's kernel: x/(1 + e⁻ˣ) written out has NaN gradients at −200."""
    return F.silu(x)


def silu_derivative(x: Tensor) -> Tensor:
    """σ(x)·(1 + x·σ(−x))."""
    return swish_beta_derivative(x, beta=1.0)


@in_float32
def eswish(x: Tensor, *, beta: float = 1.25) -> Tensor:
    """beta·x·σ(x), with beta between 1 and 2 in its paper."""
    return beta * F.silu(x)


@in_float32
def eswish_derivative(x: Tensor, *, beta: float = 1.25) -> Tensor:
    """beta·σ(x)·(1 + x·σ(−x))."""
    return beta * silu_derivative(x)


def dsilu(x: Tensor) -> Tensor:
    """σ(x)·(1 + x·σ(−x)), the SiLU's derivative as an activation of its own."""
    return silu_derivative(x)


@in_float32
def dsilu_derivative(x: Tensor) -> Tensor:
    """σ(x)·σ(−x)·(2 + x·(σ(−x) − σ(x)))."""
    bell = torch.sigmoid(x) * torch.sigmoid(-x)
    return 2 * bell + x * bell * torch.tanh(-x / 2)


@in_float32
def aria2(x: Tensor, *, alpha: float = 1.5, beta: float = 2.0) -> Tensor:
    """x·(1 + e^(−beta·x))^(−alpha), Richards' curve as the gate."""
    positive(alpha=alpha, beta=beta)
    return x * torch.exp(alpha * F.logsigmoid((beta * x).clamp(max=SATURATED)))


@in_float32
def aria2_derivative(x: Tensor, *, alpha: float = 1.5, beta: float = 2.0) -> Tensor:
    """g·(1 + alpha·beta·x·σ(−beta·x)) with the gate g = σ(beta·x)^alpha."""
    positive(alpha=alpha, beta=beta)
    gate = torch.exp(alpha * F.logsigmoid(beta * x))
    return gate + x * gate * torch.sigmoid(-beta * x) * (alpha * beta)


def mish(x: Tensor) -> Tensor:
    """x·tanh(ln(1 + eˣ))."""
    return F.mish(x)


@in_float32
def mish_derivative(x: Tensor) -> Tensor:
    """Gives t + x·(1 − t²)·σ(x) with t = tanh(ln(1 + eˣ))."""
    gate = torch.tanh(-F.logsigmoid(-x))
    return gate + x * (1 - gate * gate) * torch.sigmoid(x)


@in_float32
def serf(x: Tensor) -> Tensor:
    """x·erf(ln(1 + eˣ))."""
    # below −800 the gate is 0, and its gradient ∞·0 where x·2/√π overflows
    return x * torch.erf(-F.logsigmoid(-x.clamp(min=-800)))


@in_float32
def serf_derivative(x: Tensor) -> Tensor:
    """erf(s) + x·(2/√π)·exp(−s²)·σ(x) with s = ln(1 + eˣ)."""
    softplus = -F.logsigmoid(-x)
    bell = torch.exp(-softplus * softplus) * (2 / math.sqrt(math.pi))
    return torch.erf(softplus) + x * (bell * torch.sigmoid(x))


@in_float32
def tanhexp(x: Tensor) -> Tensor:
    """x·tanh(eˣ)."""
    return x * torch.tanh(torch.exp(x.clamp(max=TANH_EXP_SATURATED)))


@in_float32
def tanhexp_derivative(x: Tensor) -> Tensor:
    """Gives t + x·eˣ·(1 − t²) with t = tanh(eˣ)."""
    power = torch.exp(x.clamp(max=TANH_EXP_SATURATED))
    gate = torch.tanh(power)
    return gate + x * (power * (1 - gate * gate))


@in_float32
def phish(x: Tensor) -> Tensor:
    """x·tanh(GELU(x))."""
    # erfc and not torch's GELU, whose errors on the left (7e-7 in float32) are multiplied by x
    cut = x.clamp(-SATURATED, SATURATED)
    return x * torch.tanh(cut * torch.erfc(cut * -math.sqrt(0.5)) / 2)


@in_float32
def phish_derivative(x: Tensor) -> Tensor:
    """Gives t + x·(1 − t²)·GELU′(x) with t = tanh(GELU(x))."""
    gate = torch.tanh(gelu(x))
    return gate + x * (1 - gate * gate) * gelu_derivative(x)


@in_float32
def logish(x: Tensor) -> Tensor:
    """x·ln(1 + σ(x))."""
    return x * torch.log1p(torch.sigmoid(x))


@in_float32
def logish_derivative(x: Tensor) -> Tensor:
    """ln(1 + s) + x·s·(1 − s)/(1 + s) with s = σ(x)."""
    gate = torch.sigmoid(x)
    return torch.log1p(gate) + x * (gate * torch.sigmoid(-x)) / (1 + gate)


@in_float32
def smish(x: Tensor, *, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    """alpha·x·tanh(ln(1 + σ(beta·x)))."""
    return alpha * x * torch.tanh(torch.log1p(torch.sigmoid(beta * x)))


@in_float32
def smish_derivative(x: Tensor, *, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    """alpha·(t + beta·x·(1 − t²)·s·(1 − s)/(1 + s)), s = σ(beta·x), t = tanh(ln(1 + s))."""
    inner = torch.sigmoid(beta * x)
    gate = torch.tanh(torch.log1p(inner))
    slope = (1 - gate * gate) * (inner * torch.sigmoid(-beta * x)) / (1 + inner)
    return alpha * (gate + x * (beta * slope))


@in_float32
def lisht(x: Tensor) -> Tensor:
    """x·tanh(x): even, never negative."""
    return x * torch.tanh(x)


@in_float32
def lisht_derivative(x: Tensor) -> Tensor:
    """tanh(x) + x·(1 − tanh²(x))."""
    gate = torch.tanh(x)
    return gate + x * (1 - gate * gate)

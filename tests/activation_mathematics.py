"""The textbook forms of the activations in 30 digits, and what their tests share."""

import mpmath as mp
import pytest
import torch

from mlpkit.activations import make_activation
from mlpkit.catalogue.activations import ACTIVATIONS
from mlpkit.registry import Provider, Registry
from mlpkit.specs import ActivationSpec

REGISTRY: Registry[ActivationSpec] = Registry("activation")
REGISTRY.add(ACTIVATIONS, Provider("tests"))
ELEMENTWISE = [spec for spec in ACTIVATIONS if spec.elementwise]
LEARNED = [spec for spec in ACTIVATIONS if spec.parameters]
CLOSED = [spec for spec in ACTIVATIONS if spec.derivative_target]
by_name = pytest.mark.parametrize("spec", ACTIVATIONS, ids=lambda spec: spec.name)
by_elementwise = pytest.mark.parametrize("spec", ELEMENTWISE, ids=lambda spec: spec.name)
by_learned = pytest.mark.parametrize("spec", LEARNED, ids=lambda spec: spec.name)
by_closed = pytest.mark.parametrize("spec", CLOSED, ids=lambda spec: spec.name)


def sig(x):
    return 1 / (1 + mp.exp(-x))


def sp(x):
    return mp.log1p(mp.exp(x))


def cut(x, low, high):
    return min(max(x, low), high)


def gelu(x):
    return x * mp.ncdf(x)


def star(x):
    return 2 / mp.sqrt(5) * max(x, 0) ** 2 - 1 / mp.sqrt(5)


def xielu(x):
    start_p, start_n = mp.mpf(209) / 1024, mp.mpf(-134) / 128  # rounded by hand
    if x > 0:
        return sp(start_p) * x * x + x / 2
    return (0.5 + sp(start_n)) * (mp.expm1(x) - x) + x / 2


# Textbook forms in 30 digits, written here on their own.
REFERENCE = {
    "identity": lambda x: x,
    "relu": lambda x: max(x, 0),
    "relu2": lambda x: max(x, 0) ** 2,
    "relu6": lambda x: cut(x, 0, 6),
    "shifted_relu": lambda x: max(x, -1),
    "leaky_relu": lambda x: x if x > 0 else mp.mpf(0.01) * x,
    "threshold": lambda x: x if x > 1 else mp.mpf(0),
    "star_relu": star,
    "smelu": lambda x: 0 if x < -1 else (x if x > 1 else (x + 1) ** 2 / 4),
    "hardtanh": lambda x: cut(x, -1, 1),
    "hardsigmoid": lambda x: cut(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * cut(x + 3, 0, 6) / 6,
    "hard_mish": lambda x: x * cut(x + 2, 0, 2) / 2,
    "softshrink": lambda x: mp.sign(x) * max(abs(x) - 0.5, 0),
    "hardshrink": lambda x: x if abs(x) > 0.5 else 0,
    "sqnl": lambda x: mp.sign(x) if abs(x) > 2 else x - x * abs(x) / 4,
    "gelu": gelu,
    "gelu_tanh": lambda x: (
        x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)))
    ),
    "quick_gelu": lambda x: x * sig(mp.mpf("1.702") * x),
    "gelu_10": lambda x: cut(gelu(x), -10, 10),
    "silu": lambda x: x * sig(x),
    "swish_beta": lambda x: x / (1 + mp.exp(-x)),
    "eswish": lambda x: 1.25 * x * sig(x),
    "dsilu": lambda x: sig(x) * (1 + x * (1 - sig(x))),
    "aria2": lambda x: x * (1 + mp.exp(-2 * x)) ** mp.mpf(-1.5),
    "mish": lambda x: x * mp.tanh(sp(x)),
    "serf": lambda x: x * mp.erf(sp(x)),
    "tanhexp": lambda x: x * mp.tanh(mp.exp(x)),
    "phish": lambda x: x * mp.tanh(gelu(x)),
    "logish": lambda x: x * mp.log1p(sig(x)),
    "smish": lambda x: x * mp.tanh(mp.log1p(sig(x))),
    "lisht": lambda x: x * mp.tanh(x),
    "elu": lambda x: x if x > 0 else mp.expm1(x),
    "celu": lambda x: x if x > 0 else mp.expm1(x),
    "selu": lambda x: (
        mp.mpf("1.0507009873554805") * (x if x > 0 else mp.mpf("1.6732632423543772") * mp.expm1(x))
    ),
    "isru": lambda x: x / mp.sqrt(1 + x * x),
    "isrlu": lambda x: x if x >= 0 else x / mp.sqrt(1 + x * x),
    "elish": lambda x: (x if x >= 0 else mp.expm1(x)) / (1 + mp.exp(-x)),
    "hard_elish": lambda x: (x if x >= 0 else mp.expm1(x)) * cut((x + 1) / 2, 0, 1),
    "softplus": sp,
    "shifted_softplus": lambda x: mp.log(mp.exp(x) / 2 + mp.mpf(0.5)),
    "sqrt_softplus": lambda x: mp.sqrt(sp(x)),
    "squareplus": lambda x: (x + mp.sqrt(x * x + 4)) / 2,
    "bent_identity": lambda x: (mp.sqrt(x * x + 1) - 1) / 2 + x,
    "logsigmoid": lambda x: -sp(-x),
    "sigmoid": sig,
    "tanh": mp.tanh,
    "lecun_tanh": lambda x: mp.mpf("1.7159") * mp.tanh(2 * x / 3),
    "softsign": lambda x: x / (1 + abs(x)),
    "arctan": mp.atan,
    "laplace": lambda x: mp.ncdf((x - mp.mpf("0.707107")) / mp.mpf("0.282095")),
    "cloglog": lambda x: -mp.expm1(-mp.exp(x)),
    "soft_clipping": lambda x: mp.log((1 + mp.exp(x)) / (1 + mp.exp(x - 1))),
    "tanhshrink": lambda x: x - mp.tanh(x),
    "gaussian": lambda x: mp.exp(-x * x),
    "sine": mp.sin,
    "siren": lambda x: mp.sin(30 * x),
    "snake": lambda x: x + mp.sin(x) ** 2,
    "gcu": lambda x: x * mp.cos(x),
    "prelu": lambda x: x if x > 0 else x / 4,
    "rrelu": lambda x: x if x > 0 else x * (mp.mpf(1) / 8 + mp.mpf(1) / 3) / 2,
    "swish_learned": lambda x: x * sig(x),
    "snake_beta": lambda x: x + mp.sin(x) ** 2,
    "star_relu_learned": star,
    "xielu": xielu,
    "poly_relu": lambda x: sum(max(x, 0) ** i for i in (1, 2, 3)) / 3,
}


def build(spec, dtype=torch.float64, **options):
    return make_activation(spec, **options).eval().to(dtype)


def value_and_slope(spec, x):
    point = x.clone().requires_grad_()
    value = build(spec, x.dtype)(point)
    slope = torch.autograd.grad(value, point, torch.ones_like(value))[0]
    return value.detach(), slope


def worst(got, expected):
    return float(((got - expected).abs() / expected.abs().clamp(min=1)).max())

"""Every activation's values and gradients against mathematics, transformers and every precision."""

import copy
import math

import mpmath as mp
import numpy as np
import pytest
import torch
from activation_mathematics import (
    REFERENCE,
    REGISTRY,
    build,
    by_closed,
    by_elementwise,
    by_name,
    value_and_slope,
    worst,
)
from torch import nn
from transformers.activations import ACT2FN as HF_ACT2FN

from mlpkit.activations import derivative, make_activation

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
GRID = torch.linspace(-8, 8, 1001, dtype=torch.float64)
TAILS = torch.tensor([-1e3, -1e2, -50, -20, 20, 50, 1e2, 1e3], dtype=torch.float64)
POINTS = torch.cat([GRID, TAILS])

# What grows faster than x: its value is infinite, rightly, for the largest inputs.
QUADRATIC = {"relu2", "star_relu", "star_relu_learned", "xielu", "poly_relu"}
STEEPER_THAN_ONE = {"selu", "eswish", "bent_identity"}
MULTIPLIED_FIRST = {"gelu", "hardswish"}  # torch's kernels form 2x and 6x; their docstrings say so


@by_elementwise
def test_values_equal_the_textbook_form_in_30_digits(spec):
    with mp.workdps(30):
        expected = [float(REFERENCE[spec.name](mp.mpf(x))) for x in POINTS.tolist()]
    # float32 parameters of learned entries hold the constants of their start to 24 bits only
    tolerance = 1e-7 if spec.name == "star_relu_learned" or spec.name == "poly_relu" else 1e-12
    with torch.no_grad():
        got = build(spec)(POINTS)
    assert worst(got, torch.tensor(expected, dtype=torch.float64)) <= tolerance


@by_elementwise
def test_lower_precisions_round_the_float64_value(spec):
    for dtype, relative, absolute in (
        (torch.float32, 1e-6, 1e-6),
        (torch.bfloat16, 2.0**-8, 1e-6),
        (torch.float16, 2.0**-10, 1e-6),
    ):
        x = POINTS.to(dtype)
        with torch.no_grad():
            module = build(spec, dtype)
            got, expected = module(x), copy.deepcopy(module).double()(x.double())
        # the phase 30·x itself is rounded to 24 bits: 240 · 2⁻²⁵ at the grid's end, more beyond
        slack = 2e-3 if spec.name == "siren" else absolute
        overflow = expected.abs() > torch.finfo(dtype).max
        error = (got.double() - expected).abs() - relative * expected.abs()
        assert got.dtype == dtype
        assert float(error[~overflow].max()) <= slack
        assert torch.isinf(got[overflow]).all()


@by_closed
def test_the_closed_derivative_is_the_gradient(spec):
    assert worst(derivative(spec, POINTS), value_and_slope(spec, POINTS)[1]) <= 1e-11


@by_elementwise
def test_the_derivative_is_the_limit_of_differences(spec):
    x, step = GRID + 0.003, 1e-6  # shifted: no point within a step of a corner
    with torch.no_grad():
        f = build(spec)
        slope = (f(x + step) - f(x - step)) / (2 * step)
    assert worst(derivative(spec, x), slope) <= 1e-6


@by_closed
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_gradients_in_lower_precisions_round_the_float64_gradient(spec, dtype):
    x = GRID.to(dtype)
    slope, exact = value_and_slope(spec, x)[1].double(), derivative(spec, x.double())
    relative = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}[dtype]
    slack = 30 * 2e-5 if spec.name == "siren" else 2e-6
    assert float(((slope - exact).abs() - relative * exact.abs()).max()) <= slack


@by_elementwise
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients_stay_finite_up_to_the_largest_numbers(spec, dtype):
    info = torch.finfo(dtype)
    top = math.sqrt(info.max)
    sizes = [0.0, info.smallest_normal, 1e-3, 89.0, 120.0, 250.0, top / 2]
    if spec.name == "poly_relu":
        sizes[-1] = info.max ** (1 / 3) / 2
        sizes = [size for size in sizes if size <= sizes[-1]]
    if spec.name not in QUADRATIC:
        sizes += [2 * top, info.max / 8]
        sizes += [] if spec.name in STEEPER_THAN_ONE | MULTIPLIED_FIRST else [info.max]
    x = torch.tensor([-size for size in sizes] + sizes, dtype=dtype)
    value, slope = value_and_slope(spec, x)
    assert torch.isfinite(value).all()
    assert torch.isfinite(slope).all()
    assert torch.isfinite(derivative(spec, x)).all()


@by_name
def test_a_nan_stays_a_nan(spec):
    x = torch.tensor([[1.0, math.nan, -1.0]])
    assert build(spec, torch.float32)(x)[0, 1].isnan()


@pytest.mark.parametrize("key", HF_ACT2FN)
def test_transformers_activations_are_here_under_their_names(key):
    x = GRID[GRID.abs() > 1e-6] if key == "xielu" else GRID
    theirs, ours = HF_ACT2FN[key].double(), make_activation(REGISTRY.get(key)).double()
    results = []
    for module in (theirs, ours):
        point = x.clone().requires_grad_()
        value = module(point)
        inputs = [point, *(p for _, p in sorted(module.named_parameters()))]
        gradients = torch.autograd.grad(value.sin().sum(), inputs)
        results.append((value.detach(), *gradients))
    for expected, got in zip(*results, strict=True):
        # gelu_fast rounds √(2/π) to ten digits: 9.1e-13 in value and 2e-12 in slope
        assert worst(got, expected) <= (5e-12 if key == "gelu_fast" else 1e-12)


def test_xielu_passes_through_the_origin_where_transformers_does_not():
    zero = torch.zeros(1, dtype=torch.float64)
    value, slope = value_and_slope(REGISTRY.get("xielu"), zero)
    assert (value.item(), slope.item()) == (0.0, 0.5)
    assert HF_ACT2FN["xielu"].double()(zero).item() == pytest.approx(-8e-7, rel=0.01)


def test_the_three_gelus_differ_by_the_known_amounts():
    exact, tanh, quick = (build(REGISTRY.get(n)) for n in ("gelu", "gelu_tanh", "quick_gelu"))
    one = torch.ones((), dtype=torch.float64)
    assert [round(f(one).item(), 9) for f in (exact, tanh, quick)] == [
        0.841344746,
        0.841191991,
        0.845795766,
    ]
    x = torch.linspace(0, 8, 80001, dtype=torch.float64)
    for other, size, place, digits in ((tanh, 4.7324e-4, 2.699, 8), (quick, 0.020335, 2.270, 6)):
        gap = (exact(x) - other(x)).abs()
        assert round(gap.max().item(), digits) == size
        assert x[gap.argmax()].item() == pytest.approx(place, abs=1e-3)


def test_gelu_tanh_differentiates_twice_and_keeps_its_gradient_where_the_cube_overflows():
    spec, x = REGISTRY.get("gelu_tanh"), torch.tensor([-1e30, 1e30], requires_grad=True)
    theirs = nn.functional.gelu(x, approximate="tanh")
    assert torch.autograd.grad(theirs.sum(), x)[0].isnan().all()
    assert value_and_slope(spec, x.detach())[1].tolist() == [0, 1]
    points = torch.linspace(-4, 4, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(build(spec), points)
    batched = torch.vmap(torch.func.grad(lambda v: build(spec)(v).sin().sum()))(points.detach())
    whole = torch.autograd.grad(build(spec)(points).sin().sum(), points)[0]
    torch.testing.assert_close(batched, whole, rtol=1e-12, atol=1e-12)


def test_sqrt_softplus_keeps_its_value_and_slope_where_softplus_underflows():
    x = torch.tensor([-150.0, -120.0, -60.0, -18.0, -17.9])
    value, slope = value_and_slope(REGISTRY.get("sqrt_softplus"), x)
    expected = torch.exp(x.double() / 2)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(slope.double(), expected / 2, rtol=1e-5, atol=0)


def test_a_half_precision_sigmoid_keeps_the_slope_of_its_tail():
    x = torch.tensor([6.0], dtype=torch.bfloat16, requires_grad=True)
    naive = torch.autograd.grad(torch.sigmoid(x), x)[0].item()
    ours = value_and_slope(REGISTRY.get("sigmoid"), x.detach())[1].item()
    assert ours == pytest.approx(0.0024665, rel=2.0**-8)
    assert abs(naive - 0.0024665) > 0.001


def test_featurewise_entries_equal_their_formulas():
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a = x.numpy()
    e = np.exp(a)
    solu = a * e / e.sum(-1, keepdims=True)
    topk = np.maximum(
        a - a.mean(-1, keepdims=True) - a.std(-1, keepdims=True) * 0.8416212335729143, 0
    )
    norms = [a**i / np.sqrt((a ** (2 * i)).mean(-1, keepdims=True) + 1e-6) for i in (1, 2, 3)]
    for name, options, expected, tolerance in (
        ("solu", {}, solu, 1e-12),
        ("gaussian_topk", {"sparsity": 0.8}, topk, 1e-12),
        ("poly_norm", {}, sum(norms) / 3, 1e-7),
    ):
        got = build(REGISTRY.get(name), **options)(x).detach()
        assert worst(got, torch.from_numpy(expected)) <= tolerance


def test_gaussian_topk_keeps_the_asked_share_of_normal_features():
    x = torch.randn(8, 4096, generator=torch.Generator().manual_seed(0))
    kept = (build(REGISTRY.get("gaussian_topk"), torch.float32)(x) > 0).float().mean()
    assert kept.item() == pytest.approx(0.05, abs=0.005)

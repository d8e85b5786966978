"""Minima and zeros, against values known from mathematics and from bisection in Python floats."""

import math

import pytest
import torch

from mlpkit.activations import derivative, make_activation
from mlpkit.figures.activations import summary
from mlpkit.figures.labels import ENGLISH, number
from mlpkit.figures.landmarks import Place, minima, zeros
from mlpkit.plugins import registries


def function_of(name):
    module = make_activation(registries().activation.get(name)).double()
    return lambda x: module(x).detach()


def slope_of(name):
    return lambda x: derivative(registries().activation.get(name), x).detach()


def bisect(f, low, high):
    """A zero by plain bisection, independent of torch."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if f(low) * f(middle) > 0 else (low, middle)
    return low


def gelu_slope(x):
    normal = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return (1 + math.erf(x / math.sqrt(2))) / 2 + x * normal


def silu_slope(x):
    s = 1 / (1 + math.exp(-x))
    return s * (1 + x * (1 - s))


def gelu(x):
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def silu(x):
    return x / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("name", "f", "slope", "known"),
    [
        ("gelu", gelu, gelu_slope, (-0.75179, -0.16997)),
        ("silu", silu, silu_slope, (-1.27846, -0.27846)),
    ],
)
def test_the_minimum_is_where_the_derivative_vanishes(name, f, slope, known):
    (place,) = minima(function_of(name), -6, 6)
    at = bisect(slope, -2, -0.1)
    assert place.low == place.high == pytest.approx(at, abs=1e-7)
    assert place.value == pytest.approx(f(at), abs=1e-14)
    assert (round(place.low, 5), round(place.value, 5)) == pytest.approx(known, abs=1.1e-5)
    (zero,) = zeros(slope_of(name), -6, 6)
    assert zero.low == pytest.approx(at, abs=1e-9)


def test_the_derivative_of_gelu_is_lowest_at_minus_the_root_of_two():
    (place,) = minima(slope_of("gelu"), -6, 6)
    assert place.low == pytest.approx(-math.sqrt(2), abs=1e-7)
    assert place.value == pytest.approx(gelu_slope(-math.sqrt(2)), abs=1e-14)


@pytest.mark.parametrize("reach", [6, 60])
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("relu", [(None, 0)]),
        ("hardswish", [(None, -3), (0, 0)]),
        ("hardsigmoid", [(None, -3)]),
        ("hardshrink", [(-0.5, 0.5)]),
        ("shifted_relu", [(0, 0)]),
        ("smelu", [(None, -1)]),
        ("lisht", [(0, 0)]),  # touches
        ("sigmoid", []),
        ("gaussian", []),
        ("gelu", [(0, 0)]),  # its tail underflows to 0 and is none
        ("logsigmoid", []),
    ],
)
def test_zeros_are_crossings_touches_and_flat_stretches(name, wanted, reach):
    found = [(p.low, p.high) for p in zeros(function_of(name), -reach, reach)]
    assert len(found) == len(wanted)
    for (low, high), (left, right) in zip(found, wanted, strict=True):
        assert low == pytest.approx(-reach if left is None else left, abs=1e-7)
        assert high == pytest.approx(right, abs=1e-7)


@pytest.mark.parametrize("name", ["tanh", "elu", "softplus", "sigmoid", "softsign", "arctan"])
@pytest.mark.parametrize("reach", [6, 100])
def test_what_is_only_approached_is_no_minimum(name, reach):
    assert minima(function_of(name), -reach, reach) == []


def test_a_flat_stretch_is_a_minimum_if_nothing_is_lower():
    (place,) = minima(function_of("hardtanh"), -6, 6)
    assert (place.low, place.high, place.value) == pytest.approx((-6, -1, -1))
    assert minima(slope_of("selu"), -6, 6) == []  # flat on the right, lower on the left
    assert minima(function_of("identity"), -6, 6) == []
    assert minima(slope_of("identity"), -6, 6) == []


def test_a_sine_has_each_of_its_minima_and_zeros():
    low = [p.low for p in minima(function_of("sine"), -6, 6)]
    assert low == pytest.approx([-math.pi / 2, 3 * math.pi / 2], abs=1e-7)
    assert [p.low for p in zeros(function_of("sine"), -6, 6)] == pytest.approx(
        [-math.pi, 0, math.pi], abs=1e-9
    )
    assert len(minima(function_of("siren"), -6, 6)) == 57  # (-180, 180) over 2π, shifted


def test_a_jump_over_zero_is_no_zero():
    assert zeros(lambda x: torch.where(x > 0.1, 1.0, -1.0), -1, 1) == []


def test_a_zero_at_the_end_of_the_range_counts():
    assert [p.low for p in zeros(function_of("silu"), 0, 6)] == [0]
    assert [p.low for p in zeros(function_of("silu"), -6, 0)] == [0]


def test_a_function_that_is_zero_everywhere_says_so():
    (place,) = zeros(function_of("relu"), -6, -1)
    assert (place.low, place.high) == (-6, -1)
    assert summary([], [place], (-6, -1), ENGLISH) == ["no minimum", "zero at all x"]


def test_gaps_in_a_functions_domain_are_passed_over():
    (place,) = zeros(torch.log, -2, 3)
    assert place.low == pytest.approx(1, abs=1e-9)
    assert minima(lambda x: x * torch.nan, -1, 1) == []


def test_places_are_told_in_words():
    point = [Place(low=x, high=x, value=-1.0) for x in (-1.5, 0.25, 2)]
    flat = Place(low=-1, high=1, value=0.0)
    right = Place(low=3, high=6, value=0.0)
    assert summary(point, [flat, right], (-6, 6), ENGLISH) == [
        "3 minima, lowest −1 at x = −1.5",
        "zero at −1 ≤ x ≤ 1, x ≥ 3",
    ]
    assert summary(point[:2], point * 2, (-6, 6), ENGLISH) == [
        "min −1 at x = −1.5",
        "min −1 at x = 0.25",
        "6 zeros",
    ]


def test_numbers_have_five_digits_and_a_minus():
    assert [number(v) for v in (-0.169971, 1e-9, -0.0, 12, 0.00123456)] == [
        "−0.16997",
        "0",
        "0",
        "12",
        "0.0012346",
    ]

"""The tutorial's measures: influence of positions and gradients by depth, against known cases."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import mlpkit
from mlpkit.figures import LanguageError, plot_gradients, plot_influence
from mlpkit.figures.lessons import gradient_norms, influence
from mlpkit.model.attention import rotary_table


def linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(*weight.shape[::-1], bias=False, dtype=weight.dtype)
    layer.weight = nn.Parameter(weight)
    return layer


def test_a_sum_over_the_past_moves_every_later_position_equally() -> None:
    x = torch.arange(1.0, 13.0).view(1, 6, 2)
    assert influence(lambda x: x.cumsum(1), x, 2) == [0, 0, 1, 1, 1, 1]


def test_a_weighted_neighbour_moves_by_its_weight() -> None:
    x = torch.ones(2, 3, 4)
    assert influence(lambda x: x + x.roll(1, dims=1) / 4, x, 0) == [1, 0.25, 0]


@pytest.mark.parametrize("name", ["naive", "swiglu", "moe"])
def test_an_ffn_moves_its_own_position_alone(name: str) -> None:
    ffn = mlpkit.build_ffn(name, hidden_size=8).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert influence(ffn, x, 3) == pytest.approx([0, 0, 0, 1, 0], abs=1e-12)


def test_causal_attention_moves_its_own_position_and_later_ones() -> None:
    model = mlpkit.build_model(["model=nano"]).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 5, 64, dtype=torch.float64, generator=generator)
    rotary = rotary_table(torch.arange(5)[None], model.head_dim, model.rope_theta, x.dtype)
    moved = influence(lambda x: model.layers[0].self_attn(x, rotary), x, 2)
    assert moved[:2] == [0, 0]
    assert min(moved[2:]) > 0.1


def test_a_part_that_ignores_its_input_has_no_influence() -> None:
    assert influence(torch.zeros_like, torch.ones(1, 3, 2), 0) == [0, 0, 0]


def test_gradients_through_known_matrices_are_products_of_their_factors() -> None:
    half, three = (factor * torch.eye(3, dtype=torch.float64) for factor in (0.5, 3.0))
    stack = [linear(half), linear(three), linear(half)]
    found = gradient_norms(stack, torch.ones(4, 3, dtype=torch.float64))
    assert found == pytest.approx([0.75, 1.5, 0.5], rel=1e-12)


def test_a_sigmoid_at_zero_passes_a_quarter() -> None:
    found = gradient_norms([nn.Sigmoid()], torch.zeros(2, 3, dtype=torch.float64))
    assert found == pytest.approx([0.25], rel=1e-12)


def test_the_chart_of_influence_has_every_number() -> None:
    x = torch.ones(1, 3, 2)
    svg = plot_influence({"past": lambda x: x.cumsum(1), "own": torch.neg}, x, 1).file()
    assert re.findall(r"<title>(.+?)</title>", svg) == [
        *("past × 0: 0.00", "past × 1: 1.00", "past × 2: 1.00"),
        *("own × 0: 0.00", "own × 1: 1.00", "own × 2: 0.00"),
    ]
    assert "只改动位置 1" in plot_influence({"past": torch.neg}, x, 1, lang="zh").file()


def test_the_chart_of_gradients_has_every_number_and_falls_where_they_do() -> None:
    svg = plot_gradients({"fading": [1e-4, 1e-2, 1.0], "steady": [1.0, 1.0, 1.0]}).file()
    tips = re.findall(r"<title>(.+?)</title>", svg)
    assert tips[:3] == ["fading, 1: 0.0001", "fading, 2: 0.01", "fading, 3: 1"]
    heights = [float(y) for y in re.findall(r'<circle class="dot" cx="[\d.]+" cy="([\d.]+)"', svg)]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.11)
    assert heights[2] == heights[3] == heights[5]


@pytest.mark.parametrize("lang", ["fr", ""])
def test_a_language_that_there_is_not_is_refused(lang: str) -> None:
    with pytest.raises(LanguageError, match="unknown language"):
        plot_gradients({"a": [1.0]}, lang=lang)
    with pytest.raises(LanguageError, match="unknown language"):
        plot_influence({"a": torch.neg}, torch.ones(1, 2, 1), 0, lang=lang)

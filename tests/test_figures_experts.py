"""Figures of experts: every number that is drawn is that of the analysis, in both languages."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from mlpkit.data.labels import CATEGORIES, END
from mlpkit.figures.experts import CATEGORIES as CHINESE
from mlpkit.figures.experts import (
    MOST_PAIRS,
    category_label,
    layer_label,
    plot_co_activation,
    plot_expert_categories,
    plot_expert_load,
    read_mixture,
)
from mlpkit.figures.routing import MEASURES, plot_routing

LIFTS = [[1.5, 0.5, None], [0.5, 1.5, None]]


def mixture(num_experts: int = 2) -> dict[str, Any]:
    """An analysis of two layers, of which the second is empty of surprises."""
    load = [30, 10, *[20] * (num_experts - 2)]
    layer = {
        "num_experts": num_experts,
        "num_experts_per_tok": 1,
        "load": load,
        "co_activation": {"conditional": [[0.25] * num_experts] * num_experts},
        "categories": {"lift_over_uniform": LIFTS},
    }
    return {
        "categories": ["comment", "sums", "end"],
        "category_tokens": [20, 20, 0],
        "layers": {"layers.0.ffn": layer, "layers.1.ffn": {**layer, "load": [20] * num_experts}},
    }


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]


def tips(svg: str) -> dict[str, str]:
    pairs = re.findall(r"<title>(.+?): (.+?)</title>", svg)
    return dict(pairs)


def test_a_load_is_drawn_as_a_multiple_of_the_fair_share() -> None:
    svg = plot_expert_load(mixture()).file()
    assert tips(svg) == {"0 × 0": "1.50", "0 × 1": "0.50", "1 × 0": "1.00", "1 × 1": "1.00"}
    assert texts(svg)[:4] == ["expert", "layer", "0", "1"]


def test_layers_of_other_sizes_leave_cells_empty() -> None:
    small, large = mixture(), mixture(4)
    small["layers"]["layers.1.ffn"] = large["layers"]["layers.1.ffn"]
    svg = plot_expert_load(small).file()
    assert svg.count('class="empty"') == 2
    assert svg.count('class="cell"') == 6


def test_categories_without_enough_tokens_are_left_out() -> None:
    svg = plot_expert_categories(mixture(), "layers.0.ffn").file()
    assert tips(svg) == {
        "0 × comment": "1.50",
        "0 × sums": "0.50",
        "1 × comment": "0.50",
        "1 × sums": "1.50",
    }
    depth = [float(v) for v in re.findall(r'fill-opacity="([\d.]+)"', svg)]
    assert depth == [0.413, 0.138, 0.138, 0.413]  # of 0.55 at the ceiling E / K = 2


def test_the_texts_are_in_the_language_that_was_asked_for() -> None:
    svg = plot_expert_categories(mixture(), "layers.0.ffn", langs=("zh",)).file()
    assert {"类别", "专家", "注释", "sums"} <= set(texts(svg))
    assert "comment" not in texts(svg)
    both = plot_expert_categories(mixture(), "layers.0.ffn", langs=("en", "zh")).inline()
    assert 'lang="zh"' in both
    assert "注释" in both
    assert "comment" in both


def test_pairs_leave_the_diagonal_empty_and_stop_at_a_size_that_can_be_read() -> None:
    svg = plot_co_activation(mixture(3), "layers.0.ffn").file()
    assert svg.count('class="empty"') == 3
    assert set(tips(svg).values()) == {"25 %"}
    large = plot_co_activation(mixture(80), "layers.0.ffn").file()
    assert large.count("<rect class") == MOST_PAIRS**2


def test_text_without_categories_gives_a_dash() -> None:
    found = mixture()
    found["layers"]["layers.0.ffn"]["categories"] = None
    assert texts(plot_expert_categories(found, "layers.0.ffn").file()) == ["–"]


def test_names_from_outside_are_escaped() -> None:
    found = mixture()
    found["categories"][1] = "<script>&"
    svg = plot_expert_categories(found, "layers.0.ffn").file()
    ElementTree.fromstring(svg)
    assert "<script>" not in svg


@pytest.mark.parametrize("measure", MEASURES)
def test_routing_over_training_has_a_point_for_each_validation(measure: str) -> None:
    lines = [{"step": 1, "loss": 5.0}, *({"step": s, measure: 1 / s} for s in (2, 4, 8))]
    svg = plot_routing({"a": lines, "b": [{"step": 1, measure: float("nan")}]}, measure).file()
    assert svg.count('class="dot"') == 3
    assert {"a: 0.5 @ 2", "a: 0.25 @ 4", "a: 0.125 @ 8"} <= set(
        re.findall("<title>(.+?)</title>", svg)
    )
    ys = [float(y) for y in re.findall(r'cy="([\d.]+)"', svg)]
    assert ys == sorted(ys)  # downwards on the page
    assert "b" not in texts(svg)
    assert texts(plot_routing({"a": []}, measure).file()) == ["–"]


def test_an_analysis_is_read_from_a_run(tmp_path: Path) -> None:
    (tmp_path / "mixture.json").write_text(json.dumps(mixture()))
    assert read_mixture(tmp_path) == mixture()
    with pytest.raises(FileNotFoundError):
        read_mixture(tmp_path / "dense")


def test_labels_are_short_where_they_can_be() -> None:
    assert layer_label("layers.12.ffn") == "12"
    assert layer_label("encoder.moe") == "encoder.moe"
    assert category_label("function_word") == {"en": "function word", "zh": "虚词"}
    assert category_label("mine") == "mine"


def test_every_category_that_ships_has_a_chinese_name() -> None:
    assert set(CHINESE) == {*CATEGORIES, END}

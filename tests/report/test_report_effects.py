"""Main effects, heatmap and Pareto fronts, against marginal means and brute force."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from synthetic import MOE, NAIVE, SWIGLU, Look, write_sweep

from mlpkit.report.comparison import compare
from mlpkit.report.effects import heatmap, main_effects, pareto, pareto_front
from mlpkit.report.runs import find_runs

FFNS, ACTIVATIONS = ("naive", "gated"), ("relu", "gelu", "silu")


def factorial(without: tuple[tuple[str, str], ...] = ()) -> tuple[Look, ...]:
    return tuple(
        Look(
            overrides=(f"ffn={ffn}", f"activation={activation}"),
            bpb=1.5 - 0.05 * (ffn == "gated") - 0.01 * ACTIVATIONS.index(activation),
        )
        for ffn, activation in itertools.product(FFNS, ACTIVATIONS)
        if (ffn, activation) not in without
    )


def cell(comparison, ffn: str, activation: str) -> float:
    return comparison.row(f"{ffn} · activation={activation}").metric.mean


def test_effects_of_a_full_grid_are_marginal_means(tmp_path):
    found = compare(find_runs(write_sweep(tmp_path, factorial())))
    scores = np.array([[cell(found, f, a) for a in ACTIVATIONS] for f in FFNS])
    effects = {(e.axis, e.value): e for e in main_effects(found)}
    assert set(effects) == {*(("ffn", f) for f in FFNS), *(("activation", a) for a in ACTIVATIONS)}
    noise = found.groups[0].noise
    for index, ffn in enumerate(FFNS):
        effect = effects["ffn", ffn]
        assert effect.mean == pytest.approx(scores[index].mean())
        assert effect.difference.mean == pytest.approx(scores[index].mean() - scores.mean())
        # half the difference of two means of 9 runs each
        error = noise.sd * np.sqrt(2 / 9) / 2
        half = stats.t.ppf(0.975, noise.df) * error
        assert effect.difference.high - effect.difference.mean == pytest.approx(half)
        assert effect.num_variants == 3
    for index, activation in enumerate(ACTIVATIONS):
        assert effects["activation", activation].mean == pytest.approx(scores[:, index].mean())


def test_effects_of_a_grid_with_a_hole_are_the_additive_models(tmp_path):
    looks = factorial(without=(("gated", "silu"),))
    found = compare(find_runs(write_sweep(tmp_path, looks, noise=1e-9)))
    effects = {(e.axis, e.value): e for e in main_effects(found)}
    # the truth is additive: plain means over the five variants would be off by 0.0067
    assert effects["ffn", "gated"].difference.mean == pytest.approx(-0.025, abs=1e-6)
    assert effects["activation", "silu"].difference.mean == pytest.approx(-0.01, abs=1e-6)
    assert effects["activation", "gelu"].difference.mean == pytest.approx(0.0, abs=1e-6)


def test_effects_that_cannot_be_told_apart_are_left_out(tmp_path):
    # only the mixture has a router: its effect is that of the mixture
    looks = (
        *(Look(overrides=("ffn=moe", f"ffn/router={r}"), parameters=820480) for r in "ab"),
        Look(overrides=("ffn=swiglu",)),
    )
    found = compare(find_runs(write_sweep(tmp_path, looks)))
    assert {axis.key for axis in found.axes} == {"ffn", "router"}
    assert [(e.axis, e.value) for e in main_effects(found)] == []


def test_one_axis_has_no_effects_beside_the_table(tmp_path):
    assert main_effects(compare(find_runs(write_sweep(tmp_path, (SWIGLU, NAIVE))))) == []


def test_what_is_not_comparable_has_no_part_in_the_effects(tmp_path):
    looks = tuple(
        replace(look, parameters=10**6) if "ffn=gated" in look.overrides else look
        for look in factorial()
    )
    found = compare(find_runs(write_sweep(tmp_path, looks)), baseline="naive · activation=relu")
    assert main_effects(found) == []  # what is left has one axis


def test_a_heatmap_holds_the_means_and_the_holes(tmp_path):
    found = compare(find_runs(write_sweep(tmp_path, factorial(without=(("gated", "relu"),)))))
    grid = heatmap(found, "ffn", "activation")
    assert set(grid.rows.values) == set(FFNS)
    for i, ffn in enumerate(grid.rows.values):
        for j, activation in enumerate(grid.columns.values):
            if (ffn, activation) == ("gated", "relu"):
                assert np.isnan(grid.values[i, j])
                assert grid.num_variants[i, j] == 0
            else:
                assert grid.values[i, j] == cell(found, ffn, activation)
    with pytest.raises(KeyError, match="router"):
        heatmap(found, "ffn", "router")


def test_a_heatmap_averages_over_a_third_axis(tmp_path):
    looks = tuple(
        Look(overrides=(f"ffn={f}", f"activation={a}", f"training.learning_rate={r}"))
        for f, a, r in itertools.product("xy", "uv", (0.1, 0.2))
    )
    found = compare(find_runs(write_sweep(tmp_path, looks)))
    grid = heatmap(found, "ffn", "activation")
    assert grid.num_variants.tolist() == [[2, 2], [2, 2]]
    wanted = [found.row(f"x · activation=u · learning_rate={r}").metric.mean for r in (0.1, 0.2)]
    place = grid.rows.values.index("x"), grid.columns.values.index("u")
    assert grid.values[place] == pytest.approx(np.mean(wanted))


def test_a_front_is_what_nothing_dominates():
    assert pareto_front([1, 2, 3, 2], [5, 3, 4, 2]) == [True, False, False, True]
    assert pareto_front([1, 1], [2, 2]) == [True, True]  # equal points do not beat each other
    assert pareto_front([1, 1], [2, 1]) == [False, True]
    draw = random.Random(0)
    points = [(draw.randrange(9), draw.randrange(9)) for _ in range(60)]
    for on_front, (cost, score) in zip(
        pareto_front(*zip(*points, strict=True)), points, strict=True
    ):
        beaten = any((c < cost and s <= score) or (c <= cost and s < score) for c, s in points)
        assert on_front is not beaten


def test_more_tokens_per_second_is_the_cheaper_side(tmp_path):
    found = compare(find_runs(write_sweep(tmp_path, (SWIGLU, NAIVE, MOE))))
    fast = {point.name: point.on_front for point in pareto(found, "tokens_per_second")}
    assert fast == {"naive": True, "swiglu": True, "moe": True}
    large = {point.name: point.on_front for point in pareto(found, "parameters")}
    assert large == {"naive": True, "swiglu": True, "moe": True}
    slow = {p.name: p.on_front for p in pareto(found, "flops_per_token")}
    assert slow["moe"] is True
    costs = [point.cost for point in pareto(found, "seconds")]
    assert costs == sorted(costs)
    assert pareto(found, "match_residual") == []  # nobody has one

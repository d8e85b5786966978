"""Curves over seeds and the cost of a target, against values by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlpkit.report.curves import cost_to_target, curve, first_reached, points, target_of
from mlpkit.report.records import Run, Variant

TRAINING = {"max_steps": 4, "batch_size": 5, "sequence_length": 10, "eval_tokens": 100}


def run(name: str, scores, *, val_tokens: int = 100, **line) -> Run:
    """A run with a validation at each step 0, 1, 2 …"""
    steps = tuple({"step": s, "val_bpb": v, **line} for s, v in enumerate(scores))
    return Run(
        path=Path(name),
        id=name,
        status="ok",
        config={"seed": int(name), "training": TRAINING},
        steps=steps,
        result={
            "model": {"training_flops_per_token": 6},
            "metrics": {"val_bpb": scores[-1], "val_tokens": val_tokens},
        },
    )


def variant(*runs: Run) -> Variant:
    return Variant(name="x", ffn="x", key=(), levels={}, runs=runs, ok=runs)


def test_a_curve_is_the_mean_over_seeds_at_common_steps():
    short = run("1", [9.0, 5.0, 3.0])
    found = curve(variant(run("0", [8.0, 4.0, 2.0, 1.0]), short), x="tokens")
    assert found.steps.tolist() == [0, 1, 2]
    assert found.x.tolist() == [0, 50, 100]  # 5 · 10 tokens a step
    assert found.mean.tolist() == [8.5, 4.5, 2.5]
    assert found.low.tolist() == [8.0, 4.0, 2.0]
    assert found.high.tolist() == [9.0, 5.0, 3.0]
    assert found.num_seeds == 2


def test_the_costs_of_a_line():
    one = run("0", [3.0, 2.0], tokens=70, seconds=1.5)
    assert points(one, x="step")[1] == (1, 2.0)
    assert points(one, x="tokens")[1] == (70, 2.0)
    assert points(one, x="flops")[1] == (420, 2.0)
    assert points(one, x="seconds")[1] == (1.5, 2.0)
    assert points(run("0", [3.0, 2.0]), x="seconds") == {}  # not logged
    assert points(run("0", [3.0, float("nan")])) == {0: (0, 3.0)}


def test_without_flops_of_the_model_the_total_is_spread_over_the_tokens():
    one = run("0", [3.0, 2.0])
    one.result["model"].clear()
    assert points(one, x="flops") == {}
    one.result["metrics"].update(tokens=200, training_flops=1000)
    assert points(one, x="flops")[1] == (250, 2.0)


def test_a_run_without_metrics_hides_no_other():
    found = curve(variant(run("0", [3.0, 2.0]), replace(run("1", [9.0, 9.0]), steps=())))
    assert (found.mean.tolist(), found.num_seeds) == ([3.0, 2.0], 1)


def test_no_curve_without_common_steps():
    assert curve(variant()) is None
    assert curve(variant(run("0", [1.0])), metric="loss") is None


def test_where_a_target_is_reached():
    assert first_reached([0, 10, 20], [5.0, 3.0, 2.0], 2.5) == pytest.approx(15)
    assert first_reached([0, 10, 20], [5.0, 3.0, 2.0], 2.0) == 20
    assert first_reached([0, 10, 20], [5.0, 1.0, 2.0], 2.0) == pytest.approx(7.5)  # the first time
    assert first_reached([0, 10], [5.0, 3.0], 5.5) == 0
    assert first_reached([0, 10], [5.0, 3.0], 2.9) is None
    assert first_reached([], [], 1.0) is None


def test_the_target_is_scored_on_the_text_of_the_other_points():
    # of 400 validation tokens the earlier points looked at 100: the last one is not like them
    base = variant(run("0", [8.0, 4.0, 3.0, 3.9], val_tokens=400))
    assert target_of(base) == 3.0
    other = variant(run("0", [8.0, 4.0, 2.0, 0.5], val_tokens=400))
    assert cost_to_target(other, target_of(base), x="tokens") == pytest.approx(75)
    assert target_of(variant(run("0", [8.0, 4.0, 3.0, 3.9]))) == 3.9  # all text each time
    # a last line of its own kind, with the score on all text in the result alone
    logged = run("0", [8.0, 4.0, 3.0], val_tokens=400)
    logged.result["metrics"]["val_bpb"] = 3.7
    assert target_of(variant(logged)) == 3.0
    assert curve(variant(logged), same_text=True).mean.tolist() == [8.0, 4.0, 3.0]


def test_no_target_no_cost():
    one = variant(run("0", [2.0, 1.0]))
    assert cost_to_target(one, None, x="tokens") is None
    assert cost_to_target(one, 0.5, x="tokens") is None
    assert target_of(variant()) is None

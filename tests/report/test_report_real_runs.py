"""A tiny sweep that is really trained, read and compared: the files are those of training."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

import mlpkit
from mlpkit.report.comparison import compare
from mlpkit.report.curves import curve
from mlpkit.report.runs import find_runs
from mlpkit.training import NonFiniteLossError, train

pytestmark = pytest.mark.slow


def test_real_runs_are_compared(tiny, tmp_path):
    variants = {"swiglu": ["ffn=swiglu"], "naive": ["ffn=naive"]}
    variants["naive · activation=gelu"] = ["ffn=naive", "activation=gelu"]
    finals: dict[tuple[str, int], dict] = {}
    for name, changes in variants.items():
        for seed in (0, 1):
            overrides = [*changes, f"seed={seed}"]
            config = mlpkit.compose([*tiny, *overrides])
            result = train(
                config,
                run_dir=tmp_path / f"{len(finals)}",
                overrides=[*tiny, *overrides],
                console=Console(file=io.StringIO()),
            )
            finals[name, seed] = result["metrics"]
    bad = [*tiny, "ffn=swiglu", "training.learning_rate=1e30", "training.max_grad_norm=1e30"]
    with pytest.raises(NonFiniteLossError):
        train(
            mlpkit.compose(bad),
            run_dir=tmp_path / "bad",
            overrides=bad,
            console=Console(file=io.StringIO()),
        )
    found = compare(find_runs(tmp_path))
    names = [row.variant.name for row in found.rows]
    assert set(variants) < set(names)
    assert len(names) == 4
    for name in variants:
        row = found.row(name)
        mean = sum(finals[name, seed]["val_bpb"] for seed in (0, 1)) / 2
        assert row.val_bpb.mean == pytest.approx(mean)
        assert row.parameters == finals[name, 0]["parameters"]
        points = curve(row.variant, x="tokens")
        assert points.steps.tolist() == [0, 3, 6]
        assert points.x.tolist() == [0, 3 * 64, 6 * 64]
        # the curve is of the first eval_tokens all along, the final score of the whole text
        last = [[line for line in run.steps if "val_bpb" in line][-1] for run in row.variant.ok]
        assert points.mean[-1] == pytest.approx(sum(line["val_bpb"] for line in last) / 2)
        assert mean == pytest.approx(sum(line["final_val_bpb"] for line in last) / 2)
        assert curve(row.variant, x="flops").x[-1] == pytest.approx(
            finals[name, 0]["training_flops"]
        )
    (failed,) = found.failures
    assert "NonFiniteLossError" in failed.error
    # naive has two matrices of this width and swiglu three: not the same budget
    assert found.row("naive").verdict == "not_comparable"
    assert found.groups[0].noise.df == 2
    runs, steps = mlpkit.load_runs(tmp_path)
    assert len(runs) == 7
    json.dumps(steps.to_dict("records"), default=str)

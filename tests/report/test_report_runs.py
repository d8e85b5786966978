"""Finding and reading runs: whole, half-finished, damaged, lost, and several together."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from synthetic import FAILING, MOE, NAIVE, SWIGLU, write_run, write_sweep

import mlpkit
from mlpkit.report.runs import NoRunsError, find_runs, read_run


def change_result(path: Path, **values) -> None:
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(result | values))


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_run_is_read_whole(tmp_path):
    bpb = write_run(tmp_path / "a", SWIGLU, seed=3)
    (tmp_path / "a" / "mixture.json").write_text('{"layers": {}}')
    run = read_run(tmp_path / "a")
    assert (run.id, run.status, run.seed, run.problems) == ("a", "ok", 3, ())
    assert run.metrics["val_bpb"] == bpb
    assert run.config["training"]["max_steps"] == 1000
    assert run.overrides == ("ffn=swiglu", "seed=3")
    assert run.steps[0] == json.loads((tmp_path / "a/metrics.jsonl").read_text().splitlines()[0])
    assert len(run.steps) == 107  # 101 of training, 6 of validation
    assert run.sample.startswith("def read")
    assert run.mixture == {"layers": {}}
    assert run.model["parameters"] == SWIGLU.parameters
    assert run.data["name"] == "pystdlib"


def test_runs_at_any_depth_and_from_several_places_each_once(tmp_path):
    write_run(tmp_path / "x" / "2026-11-29" / "10-11-12", SWIGLU)
    write_run(tmp_path / "x" / "2026-11-30" / "10-11-12", SWIGLU, seed=1)
    write_run(tmp_path / "y", NAIVE)
    (tmp_path / "x" / "2026-11-29" / "10-11-12" / "checkpoints" / "step-1").mkdir(parents=True)
    (tmp_path / "x" / ".hydra").mkdir()
    runs = find_runs([tmp_path / "x", tmp_path / "y", tmp_path / "x" / ".." / "y"])
    assert [run.id for run in runs] == ["2026-11-29/10-11-12", "2026-11-30/10-11-12", "y"]
    assert len(find_runs(str(tmp_path))) == 3


@pytest.mark.parametrize("folder", [False, True])
def test_a_sweep_lists_its_jobs_and_those_that_have_not_begun(tmp_path, folder):
    sweep = write_sweep(tmp_path, (SWIGLU, MOE), seeds=(0, 1))
    jobs = json.loads(sweep.read_text())["jobs"]
    shutil.rmtree(tmp_path / "multirun" / jobs[1]["id"])
    write_run(tmp_path / "multirun" / "other", NAIVE)  # of another sweep
    runs = find_runs(sweep.parent if folder else sweep)
    assert [run.id for run in runs] == [job["id"] for job in jobs]
    assert [run.status for run in runs] == ["ok", "missing", "ok", "ok"]
    assert runs[1].overrides == ("ffn=swiglu", "seed=1")
    assert len(find_runs(tmp_path / "multirun")) == 4  # what is there, of any sweep


def test_nothing_is_an_error_that_names_the_place(tmp_path):
    with pytest.raises(NoRunsError, match=f"no run in {tmp_path}"):
        find_runs(tmp_path)
    with pytest.raises(NoRunsError, match="nowhere does not exist"):
        find_runs(tmp_path / "nowhere")
    assert NoRunsError.exit_code == 2


def test_a_running_run_without_its_process_is_lost(tmp_path):
    write_run(tmp_path / "a", FAILING)
    change_result(tmp_path / "a", status="running", pid=dead_pid(), host=socket.gethostname())
    assert read_run(tmp_path / "a").status == "lost"
    change_result(tmp_path / "a", pid=os.getpid())
    assert read_run(tmp_path / "a").status == "running"
    for pid in (None, "x", 0, -1):  # 0 and below would mean whole groups of processes
        change_result(tmp_path / "a", pid=pid)
        assert read_run(tmp_path / "a").status == "lost"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "result.json cannot be read"),
        ('{"status": "ok"', "result.json cannot be read"),
        ("[1, 2]", "result.json holds a list"),
        ("{}", "result.json is missing or empty"),
        ('{"status": "splendid"}', "status 'splendid'"),
        ('{"status": "ok"}', "ok and has no metrics"),
        ('{"status": "ok", "metrics": 3, "overrides": 5}', "ok and has no metrics"),
        ("\x00\xff", "result.json cannot be read"),
    ],
)
def test_a_damaged_result_is_a_broken_run_that_says_why(tmp_path, content, problem):
    write_run(tmp_path / "a", SWIGLU)
    (tmp_path / "a" / "result.json").write_text(content)
    (run,) = find_runs(tmp_path)
    assert run.status == "broken"
    assert any(problem in said for said in run.problems), run.problems
    assert run.config["ffn"]["name"] == "swiglu"  # the rest is read


def test_files_that_are_folders_or_missing_are_survived(tmp_path):
    write_run(tmp_path / "a", SWIGLU)
    for name in ("config.yaml", "sample.txt"):
        (tmp_path / "a" / name).unlink()
    (tmp_path / "a" / "config.yaml").mkdir()
    (run,) = find_runs(tmp_path)
    assert (run.status, run.config, run.sample) == ("ok", {}, None)
    assert "config.yaml cannot be read" in run.problems[0]
    (tmp_path / "a" / "result.json").unlink()
    (run,) = find_runs(tmp_path)
    assert (run.status, run.problems[0]) == ("broken", "result.json is missing or empty")


def test_damaged_yaml_is_named(tmp_path):
    write_run(tmp_path / "a", SWIGLU)
    (tmp_path / "a" / "config.yaml").write_text("ffn: [1,\n")
    assert "config.yaml cannot be read" in read_run(tmp_path / "a").problems[0]
    (tmp_path / "a" / "config.yaml").write_text("!!python/object/apply:os.system ['false']\n")
    assert "config.yaml cannot be read" in read_run(tmp_path / "a").problems[0]


def test_damaged_lines_are_counted_and_left_out(tmp_path):
    write_run(tmp_path / "a", SWIGLU)
    path = tmp_path / "a" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{", "[]", '{"loss": 3}', lines[1], lines[2][:9]]))
    run = read_run(tmp_path / "a")
    assert [dict(step) for step in run.steps] == [json.loads(lines[0]), json.loads(lines[1])]
    assert run.problems == ("metrics.jsonl: 4 of 6 lines damaged (2, 3, 4 …)",)


def test_a_finished_run_without_metrics_is_said(tmp_path):
    write_run(tmp_path / "a", SWIGLU)
    (tmp_path / "a" / "metrics.jsonl").write_text("")
    run = read_run(tmp_path / "a")
    assert (run.status, run.problems) == ("ok", ("metrics.jsonl is missing or empty",))


def test_what_a_resumed_run_did_again_counts_once(tmp_path):
    write_run(tmp_path / "a", SWIGLU)
    first = [{"step": s, "loss": 9.0} for s in range(1, 6)] + [{"step": 5, "val_loss": 9.0}]
    again = [{"step": s, "loss": 1.0} for s in range(4, 7)] + [{"step": 6, "val_loss": 1.0}]
    twice = [{"step": 6, "val_loss": 0.5}]
    text = "".join(json.dumps(line) + "\n" for line in [*first, *again, *twice])
    (tmp_path / "a" / "metrics.jsonl").write_text(text)
    steps = read_run(tmp_path / "a").steps
    # the whole of step 6 was done again, and only its validation is there
    assert list(steps) == [*first[:3], *again[:2], *twice]


def test_the_end_of_a_failed_runs_log(tmp_path):
    write_run(tmp_path / "a", FAILING)
    run = read_run(tmp_path / "a")
    assert run.error.startswith("NonFiniteLossError")
    assert run.log_tail[-1].startswith("step 11/1000")
    change_result(tmp_path / "a", log_tail=None)
    (tmp_path / "a" / "log.txt").write_text("".join(f"line {i}\n" for i in range(99)))
    assert read_run(tmp_path / "a").log_tail == tuple(f"line {i}" for i in range(69, 99))


def test_a_damaged_sweep_file_is_named(tmp_path):
    (tmp_path / "sweep.json").write_text('{"jobs": [{"nr": 1}]}')
    (run,) = find_runs(tmp_path)
    assert (run.status, "KeyError" in run.problems[0]) == ("broken", True)


def test_a_job_id_cannot_point_elsewhere(tmp_path):
    sweep = write_sweep(tmp_path, (SWIGLU,), seeds=(0,))
    write_run(tmp_path / "secret", NAIVE)
    sweep.write_text(json.dumps({"jobs": [{"id": "../secret", "overrides": []}]}))
    (run,) = find_runs(sweep)
    assert (run.status, run.path) == ("missing", tmp_path / "multirun" / "secret")


def test_a_circle_of_links_ends(tmp_path):
    write_run(tmp_path / "runs" / "a", SWIGLU)
    (tmp_path / "runs" / "circle").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "b").symlink_to(tmp_path / "runs" / "a")
    assert [run.id for run in find_runs(tmp_path)] == ["a"]


def test_runs_as_frames(tmp_path):
    sweep = write_sweep(tmp_path, (SWIGLU, MOE, FAILING), seeds=(0, 1))
    runs, steps = mlpkit.load_runs(sweep)
    assert len(runs) == 6
    one = runs[(runs.variant == "moe") & (runs.seed == 1)].iloc[0]
    result = json.loads((Path(one.path) / "result.json").read_text())
    assert one.val_bpb == result["metrics"]["val_bpb"]
    assert one["ffn.num_experts"] == 8
    assert one.parameters == MOE.parameters
    assert (one.status, one.counted) == ("ok", True)
    assert set(runs[runs.status == "failed"].variant) == {"moe · learning_rate=0.3"}
    mine = steps[steps.run == one.run]
    assert mine.val_bpb.dropna().iloc[-1] == pytest.approx(one.val_bpb)
    assert mine.tokens.max() == one.tokens
    assert {"run", "variant", "seed", "step", "loss"} <= set(steps.columns)


def test_reading_needs_no_torch(tmp_path):
    sweep = write_sweep(tmp_path, (SWIGLU,), seeds=(0,))
    code = (
        "import sys, mlpkit\n"
        f"assert len(mlpkit.load_runs({str(sweep)!r}).runs) == 1\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_hundred_runs_within_seconds(tmp_path):
    write_sweep(tmp_path, (SWIGLU, NAIVE, MOE, FAILING), seeds=tuple(range(25)))
    start = time.perf_counter()
    runs, _ = mlpkit.load_runs(tmp_path)
    assert len(runs) == 100
    assert time.perf_counter() - start < 10

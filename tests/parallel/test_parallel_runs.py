"""Whole runs of two processes: they end as a run of one does, and go on in any other layout."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import launch
from runner import digest, work

from mlpkit.training.checkpoints import CheckpointStore, open_checkpoint
from mlpkit.training.checkpoints.reading import forms, read_tensors
from mlpkit.training.run_directory import load_run, read_lines, read_result

RUNNER = Path(__file__).with_name("runner.py")
STEPS, HALF = 4, 2
LAYOUTS = {
    "one": [],
    "ddp": ["parallel.data=2"],
    "fsdp": ["parallel.shard=2"],
    "ep": ["parallel.expert=2"],
    "ep_fsdp": ["parallel.shard=2", "parallel.expert=2"],
}
PAIRS = [name for name in LAYOUTS if name != "one"]
TIMED = {"seconds", "tokens_per_second"}
MEASURED = {"tokens_per_second", "training_seconds", "peak_memory_bytes"}
MOE = [
    *("ffn=moe", "ffn.num_experts=4", "ffn.expert.intermediate_size=12"),
    *("ffn.router.selection_bias=true", "+ffn.balance.selection_bias=0.05"),
    "training.gradient_accumulation_steps=2",
]


def overrides(text: Path, layout: str, *more: str) -> list[str]:
    return [
        *MOE,
        *("data=text", f"data.path={text}", "data.val_fraction=0.1"),
        *("model.hidden_size=16", "model.num_layers=2", "model.num_attention_heads=2"),
        *("model.num_key_value_heads=1", f"training.max_steps={STEPS}"),
        *("training.batch_size=4", "training.sequence_length=16", "training.eval_every=3"),
        *("training.eval_tokens=200", "training.warmup_steps=2", "training.log_every=1"),
        *("training.sample_tokens=8", "training.precision=float32", "parallel.timeout=60"),
        f"training.checkpoint_every={HALF}",
        *LAYOUTS[layout],
        *more,
    ]


def in_pair(folder: Path, jobs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What each job gave on each of two ranks."""
    folder.mkdir()
    (folder / "jobs.json").write_text(json.dumps(jobs))
    ended = launch(RUNNER, [str(folder / "jobs.json")], world=2, limit=200)
    assert [process.code for process in ended] == [0, 0], ended
    both = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    assert all(len(found) == len(jobs) for found in both)
    return [list(found) for found in zip(*both, strict=True)]


def job(text: Path, folder: Path, layout: str, *more: str, **options: Any) -> dict[str, Any]:
    name = options.pop("name", layout)
    given = overrides(text, layout, *more)
    return {"overrides": given, "run_dir": str(folder / name), **options}


def stored(run: Path, step: int) -> dict[str, str]:
    """The hash of each tensor of a checkpoint, as one process reads them."""
    folder = open_checkpoint(run / "checkpoints" / f"step_{step}").path
    tensors = {n: torch.zeros(f.shape, dtype=f.dtype) for n, f in forms(folder).items()}
    read_tensors(folder, tensors)
    return {name: digest(tensor) for name, tensor in tensors.items()}


def lines(run: Path) -> list[dict[str, Any]]:
    found = read_lines(run / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k not in TIMED} for line in found]


def equals_one_process(one: Path, run: Path, both: list[dict[str, Any]]) -> None:
    """A run of two processes against the run of one."""
    want, got = read_result(one), read_result(run)
    assert got["metrics"]["val_loss"] == pytest.approx(want["metrics"]["val_loss"], abs=1e-5)
    for name in ("val_tokens", "tokens", "training_flops", "num_experts", "parameters", "load"):
        assert got["metrics"][name] == want["metrics"][name], name
    known = [{k: v for k, v in r["metrics"].items() if k not in MEASURED} for r in (*both, got)]
    assert known[0] == known[1] == known[2]
    assert len(lines(run)) == len(lines(one))
    for mine, theirs in zip(lines(run), lines(one), strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            close = value if key == "load" else pytest.approx(value, rel=1e-4, abs=1e-5)
            assert mine[key] == close, (key, mine)
    assert "step 1/4" in both[0]["shown"]
    assert both[1]["shown"] == ""
    names = {path.name for path in run.iterdir()}
    assert names == {path.name for path in one.iterdir()}
    weights, reference = (load_run(path)[0].state_dict() for path in (run, one))
    for name, value in reference.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-5)
    found, expected = (json.loads((p / "mixture.json").read_text()) for p in (run, one))
    for name, layer in expected["layers"].items():
        assert found["layers"][name]["load"] == layer["load"]
        for key, value in layer["gradient"].items():
            assert found["layers"][name]["gradient"][key] == pytest.approx(value, rel=1e-3), key


@pytest.fixture(scope="module")
def one(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    folder = tmp_path_factory.mktemp("one")
    found = work(**job(tiny_text, folder, "one"))
    assert "metrics" in found, found
    return folder / "one"


def test_experts_in_two_processes_train_stop_and_go_on_as_in_one(
    one: Path, tiny_text: Path, tmp_path: Path
) -> None:
    told = [1, "shard", 1, signal.SIGUSR1]  # one process alone is told to stop
    whole, stopped, again = in_pair(
        tmp_path / "pair",
        [
            job(tiny_text, tmp_path, "ep"),
            job(tiny_text, tmp_path, "ep", name="stopped", told=told),
            job(tiny_text, tmp_path, "ep", "resume=auto", name="stopped"),
        ],
    )
    equals_one_process(one, tmp_path / "ep", whole)
    result = read_result(tmp_path / "ep")
    assert result["parallel"] == {"processes": 2, "data": 2, "shard": 1, "expert": 2}
    assert read_result(one)["parallel"] == {"processes": 1, "data": 1, "shard": 1, "expert": 1}
    assert "processes  2: data 2 x shard 1, experts over 2" in whole[0]["shown"]

    assert [rank["exit_code"] for rank in stopped] == [75, 75]
    last = HALF + 1
    assert f"StoppedError: stopped by SIGUSR1 after step {last} of" in stopped[0]["error"]
    assert stopped[1]["error"].startswith("FollowingError: another process")
    assert f"going on after step {last}" in again[0]["shown"]
    assert stored(tmp_path / "stopped", STEPS) == stored(tmp_path / "ep", STEPS)
    assert lines(tmp_path / "stopped") == lines(tmp_path / "ep")

    resume = f"resume={tmp_path}/ep/checkpoints/step_{STEPS}"
    alone = work(**job(tiny_text, tmp_path, "one", resume, name="alone", load=True))
    assert alone["hash"] == stored(tmp_path / "ep", STEPS)
    assert any("exp_avg_sq" in name and "experts" in name for name in alone["hash"])


@pytest.mark.slow
def test_every_layout_trains_as_one_process_and_goes_on_in_any_other(
    one: Path, tiny_text: Path, tmp_path: Path
) -> None:
    def resumed(layout: str, source: str, *more: str, **options: Any) -> dict[str, Any]:
        run = one if source == "one" else tmp_path / source
        resume, name = f"resume={run}/checkpoints/step_{HALF}", f"{layout}-from-{source}"
        return job(tiny_text, tmp_path, layout, resume, *more, name=name, **options)

    runs = [job(tiny_text, tmp_path, layout) for layout in PAIRS]
    moves = [(to, source) for to in PAIRS[:3] for source in LAYOUTS] + [(PAIRS[3], PAIRS[3])]
    loads = [resumed(to, source, load=True) for to, source in moves]
    again = [resumed(layout, layout) for layout in PAIRS]
    dropout = "model.dropout=0.1"  # what a process draws depends on its rank
    again += [
        job(tiny_text, tmp_path, "fsdp", dropout, name="dropout"),
        resumed("fsdp", "dropout", dropout),
    ]
    found = in_pair(tmp_path / "pair", [*runs, *loads, *again])
    for layout, both in zip(PAIRS, found, strict=False):
        equals_one_process(one, tmp_path / layout, both)
    hashes = {s: stored(one if s == "one" else tmp_path / s, HALF) for s in LAYOUTS}
    for (to, source), both in zip(moves, found[len(runs) :], strict=False):
        for rank in both:
            assert rank.get("hash") == hashes[source], (to, source, rank)
    for source in PAIRS:
        alone = work(**resumed("one", source, load=True))
        assert alone["hash"] == hashes[source], source
    assert all("metrics" in rank for both in found[-len(again) :] for rank in both)
    for layout, source in (*zip(PAIRS, PAIRS, strict=True), ("fsdp", "dropout")):
        run, whole = tmp_path / f"{layout}-from-{source}", tmp_path / source
        assert stored(run, STEPS) == stored(whole, STEPS), source
        assert lines(run) == lines(whole), source
        weights = [(path / "model.safetensors").read_bytes() for path in (run, whole)]
        assert weights[0] == weights[1]
    assert stored(tmp_path / "dropout", STEPS) != stored(tmp_path / "fsdp", STEPS)


@pytest.mark.slow
def test_a_job_of_a_sweep_in_two_processes_is_one_job(
    one: Path, tiny_text: Path, tmp_path: Path
) -> None:
    here = job(tiny_text, tmp_path, "ep", name=".", swept=True)
    found = in_pair(tmp_path / "pair", [here, here])
    score = read_result(one)["metrics"]["val_bpb"]
    for both in found:
        assert [rank["score"] for rank in both] == [pytest.approx(score, abs=1e-5)] * 2
    (run,) = (tmp_path / "multirun").iterdir()
    assert (run / "log.txt").read_text().count("done in ") == 1
    assert read_result(run)["parallel"]["processes"] == 2


@pytest.mark.slow
def test_a_process_that_dies_in_a_save_beside_training_costs_that_save_alone(
    one: Path, tiny_text: Path, tmp_path: Path
) -> None:
    beside = "training.checkpoint_async=true"
    folder = tmp_path / "pair"
    folder.mkdir()
    told = [1, "writing", 2, signal.SIGKILL]
    jobs = [job(tiny_text, tmp_path, "ep", beside, "training.max_steps=50", told=told)]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    first, second = launch(RUNNER, [str(folder / "jobs.json")], world=2, limit=200)
    assert second.code == -signal.SIGKILL
    assert first.seconds - second.seconds < 30  # it sees a closed connection, not the timeout
    (main,) = json.loads((folder / "0.json").read_text())
    assert main["exit_code"] in (1, 4), main  # the step or the save sees it first
    found, wrong = CheckpointStore(tmp_path / "ep" / "checkpoints").newest()
    assert found is not None
    assert (found.step, wrong) == (HALF, [])
    assert read_result(tmp_path / "ep")["status"] == "failed"
    again = work(**job(tiny_text, tmp_path, "one", "resume=auto", name="ep"))
    assert f"going on after step {HALF}" in again["shown"]
    want = read_result(one)["metrics"]["val_loss"]
    assert again["metrics"]["val_loss"] == pytest.approx(want, abs=1e-5)

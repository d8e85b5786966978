"""Killed at any moment of a save, on a full disk, with a damaged file: nothing else is lost."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mlpkit.training.checkpoints import CheckpointStore, open_checkpoint
from mlpkit.training.checkpoints.reading import forms, read_tensors
from mlpkit.training.run_directory import read_lines, read_result

STEPS, EVERY = 6, 2
STAGES = (
    *("begin", "shard", "writing", "metadata", "state", "manifest", "rename"),
    *("committed", "pruned"),
)
TIMED = ("seconds", "tokens_per_second")
MODELS = {
    "dense": ["ffn.intermediate_size=24", "model.dropout=0.1"],
    "moe": [
        *("ffn=moe", "ffn.num_experts=4", "ffn.expert.intermediate_size=12"),
        *("ffn.router.selection_bias=true", "+ffn.balance.selection_bias=0.05"),
    ],
}


class Trainer:
    """Runs of one process after the other, each of which can be killed.

    Args:
        folder: Where the runs are.
        text: What they read.
        driver: What runs them.
    """

    def __init__(self, folder: Path, text: Path, driver: Any) -> None:
        self.folder, self.driver = folder, driver
        self.common = [
            *("data=text", f"data.path={text}", "data.val_fraction=0.1"),
            *("model.hidden_size=16", "model.num_layers=1", "model.num_attention_heads=2"),
            *("model.num_key_value_heads=1", f"training.max_steps={STEPS}"),
            *("training.batch_size=4", "training.sequence_length=16", "training.eval_every=3"),
            *("training.eval_tokens=200", "training.warmup_steps=2", "training.log_every=1"),
            *("training.sample_tokens=0", "training.precision=float32"),
            f"training.checkpoint_every={EVERY}",
        ]
        self.reference: dict[str, dict[str, Any]] = {}

    def run(self, run: Path, model: str, *more: str, **job: Any) -> tuple[int, str]:
        """Trains; returns exit status and what was printed."""
        overrides = [*MODELS[model], *self.common, *more]
        self.driver.start(overrides=overrides, run_dir=str(run), **job)
        status, said = self.driver.end()
        return status, said

    def whole(self, model: str) -> dict[str, Any]:
        """What a run that nothing happens to ends with."""
        if model not in self.reference:
            run = self.folder / f"whole-{model}"
            code, said = self.run(run, model)
            assert code == 0, said
            self.reference[model] = outcome(run)
        return self.reference[model]


def outcome(run: Path) -> dict[str, Any]:
    """All that a kill must not change."""
    checkpoint = open_checkpoint(run / "checkpoints" / f"step_{STEPS}")
    tensors = {n: torch.zeros(f.shape, dtype=f.dtype) for n, f in forms(checkpoint.path).items()}
    read_tensors(checkpoint.path, tensors)
    lines = read_lines(run / "metrics.jsonl")
    return {
        "tensors": {name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
        "weights": (run / "model.safetensors").read_bytes(),
        "lines": [{k: v for k, v in line.items() if k not in TIMED} for line in lines],
        "status": read_result(run)["status"],
    }


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory, tiny_text: Path, driver: Any) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("faults"), tiny_text, driver)


def kill_and_go_on(
    trainer: Trainer, run: Path, model: str, kill: tuple[str, int, int], *more: str
) -> None:
    """One row of the table: a kill, what is left, and the run that goes on."""
    code, said = trainer.run(run, model, *more, kill=kill)
    assert code == -9, said
    assert read_result(run)["status"] == "lost"
    name, save, _ = kill
    whole = save - (STAGES.index(name) < STAGES.index("committed"))
    store = CheckpointStore(run / "checkpoints")
    assert store.steps() == [EVERY * s for s in range(whole, 0, -1)][:2]
    found, wrong = store.newest()
    assert wrong == []
    assert (found.step if found else 0) == EVERY * whole
    code, said = trainer.run(run, model, *more, "resume=auto")
    assert code == 0, said
    assert (f"going on after step {EVERY * whole}" if whole else "starting at step 0") in said
    assert outcome(run) == trainer.whole(model)
    assert not [p for p in (run / "checkpoints").iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize(
    "kill", [("writing", 2, 3), pytest.param(("committed", 1, 1), marks=pytest.mark.slow)]
)
def test_a_kill_in_a_save_loses_nothing_but_the_steps_since_the_last(
    trainer: Trainer, tmp_path: Path, kill: tuple[str, int, int]
) -> None:
    kill_and_go_on(trainer, tmp_path / "run", "dense", kill)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "background"), [("dense", False), ("moe", True)])
@pytest.mark.parametrize("stage", STAGES)
def test_a_kill_at_every_stage_of_a_save(
    trainer: Trainer, tmp_path: Path, stage: str, model: str, background: bool
) -> None:
    more = ["training.checkpoint_async=true"] if background else []
    kill_and_go_on(trainer, tmp_path / "run", model, (stage, 2, 1), *more)


@pytest.mark.soak
@pytest.mark.parametrize("background", [False, True], ids=["inline", "background"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stage", STAGES)
def test_twenty_kills_at_every_stage(
    trainer: Trainer, tmp_path: Path, stage: str, model: str, background: bool
) -> None:
    more = ["training.checkpoint_async=true"] if background else []
    draw = random.Random(f"{stage} {model} {background}")
    for number in range(20):
        call = draw.randint(1, 20) if stage == "writing" else 1
        kill = (stage, draw.randint(1, STEPS // EVERY), call)
        kill_and_go_on(trainer, tmp_path / str(number), model, kill, *more)


@pytest.mark.slow
def test_kills_one_after_the_other_of_the_same_run(trainer: Trainer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for number, stage in enumerate(STAGES[:7]):
        resume = ["resume=auto"] if number else []
        code, said = trainer.run(run, "moe", *resume, kill=(stage, 1, 1))
        assert code == -9, said
    for save in range(1, STEPS // EVERY):
        assert trainer.run(run, "moe", "resume=auto", kill=("committed", 1, 1))[0] == -9
        assert CheckpointStore(run / "checkpoints").steps()[0] == EVERY * save
    assert trainer.run(run, "moe", "resume=auto")[0] == 0
    assert outcome(run) == trainer.whole("moe")


def test_a_limit_of_the_system_on_files_ends_with_4_and_the_last_checkpoint(
    trainer: Trainer, tmp_path: Path
) -> None:
    """A file that grows too large: the failed write comes from the system."""
    run = tmp_path / "run"
    assert trainer.run(run, "dense", kill=("committed", 1, 1))[0] == -9
    code, said = trainer.run(run, "dense", "resume=auto", largest_file=60_000)
    assert code == 4, said
    assert "mlpkit: the checkpoint of step 4 could not be written" in said
    assert "the last good checkpoint is step_2, and resume=auto goes on from it" in said
    assert read_result(run)["status"] == "failed"
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step_2"]
    assert trainer.run(run, "dense", "resume=auto")[0] == 0
    assert outcome(run) == trainer.whole("dense")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with a megabyte, where one may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs rights that this process does not have")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_with_4_and_the_last_checkpoint(
    trainer: Trainer, tmp_path: Path, small_disk: Path
) -> None:
    run = small_disk / "run"
    assert trainer.run(run, "dense", kill=("committed", 1, 1))[0] == -9
    filler = small_disk / "filler"
    # another program takes the room while the run trains
    code, said = trainer.run(run, "dense", "resume=auto", fill=[str(filler), 40_000])
    assert code == 4, said
    assert "no space is left: it needs" in said
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step_2"]
    code, said = trainer.run(run, "dense", "resume=auto")
    assert code == 2, said  # it is seen before training
    assert "bytes for its checkpoints and weights, and" in said
    filler.unlink()
    assert trainer.run(run, "dense", "resume=auto")[0] == 0
    assert outcome(run) == trainer.whole("dense")

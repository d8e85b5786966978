"""SIGTERM, SIGINT and SIGUSR1 to the program itself: a checkpoint and 75; a second one: at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mlpkit.training.checkpoints import CheckpointStore
from mlpkit.training.run_directory import is_held, read_lines, read_result

NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")
SLOW = """
import os, time
from torch import nn
import mlpkit

@mlpkit.register_ffn("slow")
class Slow(nn.Module):
    def __init__(self, *, hidden_size: int):
        super().__init__()
        self.proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        if self.training and x.shape[-1] == 16:
            if os.path.exists("slow"):
                open("forward", "a").close()
                time.sleep(30)
        return self.proj(x)
"""


def overrides(text: Path, run: str) -> list[str]:
    return [
        *("data=text", f"data.path={text}", "data.val_fraction=0.1", f"run_dir={run}"),
        *("model.hidden_size=16", "model.num_layers=1", "model.num_attention_heads=2"),
        *("model.num_key_value_heads=1", "training.max_steps=100000"),
        *("training.batch_size=4", "training.sequence_length=16", "training.eval_every=50"),
        *("training.eval_tokens=200", "training.log_every=1", "training.sample_tokens=0"),
        *("training.precision=float32", "training.checkpoint_every=100000"),
    ]


@contextmanager
def started(arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The program, with its output in a file; whatever happens, it does not outlive the test."""
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlpkit", *arguments],
            cwd=folder,
            stdout=out,
            stderr=err,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_for(
    what: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120
) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def steps(run: Path) -> list[int]:
    return [line["step"] for line in read_lines(run / "metrics.jsonl") if "loss" in line]


def until(what: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


@pytest.mark.parametrize(
    "name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])]
)
def test_a_signal_ends_with_75_a_checkpoint_and_what_to_do(
    tmp_path: Path, tiny_text: Path, driver: Any, name: str
) -> None:
    arguments = ["train", *overrides(tiny_text, "run"), "ffn.intermediate_size=24"]
    run = tmp_path / "run"
    process = driver.start(arguments=arguments, folder=str(tmp_path))
    until(lambda: len(steps(run)) > 2)
    assert is_held(run)
    os.kill(process, getattr(signal, name))
    status, said = driver.end()
    assert status == 75, said
    last = steps(run)[-1]
    check_stopped(run, name, said)
    if name == "SIGTERM":
        longer = [a for a in arguments if "max_steps" not in a]
        again = [*longer, f"training.max_steps={last + 2}", "resume=auto"]
        driver.start(arguments=again, folder=str(tmp_path))
        status, said = driver.end()
        assert status == 0, said
        assert f"going on after step {last}" in said
        assert steps(run) == [*range(1, last + 3)]


def check_stopped(run: Path, name: str, said: str) -> None:
    """What a stopped run leaves and says."""
    result, taken = read_result(run), steps(run)
    assert (result["status"], result["step"]) == ("stopped", taken[-1])
    checkpoint, wrong = CheckpointStore(run / "checkpoints").newest()
    assert checkpoint is not None
    assert (checkpoint.step, wrong) == (taken[-1], [])
    assert is_held(run) is False
    assert f"{name}: stopping after this step; a second signal ends at once" in said
    assert said.splitlines()[-1] == (
        f"mlpkit: stopped by {name} after step {taken[-1]} of 100000, step_{taken[-1]} is in "
        "run/checkpoints; the same command with run_dir=run resume=auto goes on"
    )


def test_a_second_signal_ends_at_once_and_the_run_is_lost_not_damaged(
    tmp_path: Path, tiny_text: Path, driver: Any
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    arguments = ["-p", "slow.py", "train", "ffn=slow", *overrides(tiny_text, "run")]
    run, begun = tmp_path / "run", tmp_path / "forward"
    process = driver.start(
        arguments=[*arguments, "training.checkpoint_every=1"], folder=str(tmp_path)
    )
    until(lambda: CheckpointStore(run / "checkpoints").steps() != [])
    (tmp_path / "slow").touch()
    until(begun.exists)  # now it is within a step of half a minute
    os.kill(process, signal.SIGTERM)
    until(lambda: "stopping after" in driver.log.read_text())
    since = time.monotonic()
    os.kill(process, signal.SIGINT)
    status, _ = driver.end()
    assert status == -signal.SIGINT
    assert time.monotonic() - since < 20
    assert json.loads((run / "result.json").read_text())["status"] == "running"
    assert read_result(run)["status"] == "lost"
    assert CheckpointStore(run / "checkpoints").newest()[0] is not None


@pytest.mark.slow
def test_a_directory_in_use_is_refused_with_2_and_stays_as_it_is(
    tmp_path: Path, tiny_text: Path
) -> None:
    arguments = ["train", *overrides(tiny_text, str(tmp_path / "run")), "ffn.intermediate_size=24"]
    (tmp_path / "second").mkdir()
    with started(arguments, tmp_path) as first:
        wait_for(lambda: len(steps(tmp_path / "run")) > 1, first)
        with started([*arguments, "resume=auto"], tmp_path / "second") as second:
            assert second.wait(120) == 2
        said = (tmp_path / "second" / "err").read_text()
        assert f"is in use by process {first.pid} on " in said
        assert first.poll() is None
        before = len(steps(tmp_path / "run"))
        wait_for(lambda: len(steps(tmp_path / "run")) > before, first)

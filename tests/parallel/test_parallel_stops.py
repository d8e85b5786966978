"""The program under torchrun: signals and deaths of a process or of torchrun itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from launching import clean_environment, free_port
from runner import work

from mlpkit.training.checkpoints import CheckpointStore
from mlpkit.training.run_directory import is_held, read_lines, read_result

pytestmark = pytest.mark.slow
TIMEOUT = 20  # seconds that a process waits for the others


def overrides(text: Path) -> list[str]:
    return [
        *("ffn=moe", "ffn.num_experts=4", "ffn.expert.intermediate_size=12"),
        *("data=text", f"data.path={text}", "data.val_fraction=0.1"),
        *("model.hidden_size=16", "model.num_layers=1", "model.num_attention_heads=2"),
        *("model.num_key_value_heads=1", "training.batch_size=4", "training.sequence_length=16"),
        *("training.eval_every=50", "training.eval_tokens=200", "training.log_every=1"),
        *("training.sample_tokens=0", "training.precision=float32", "training.warmup_steps=2"),
        "training.checkpoint_every=2",
    ]


class Started(NamedTuple):
    """A run under torchrun: its processes, and where it writes."""

    torchrun: subprocess.Popen[bytes]
    workers: list[int]
    run: Path
    err: Path


@contextmanager
def started(folder: Path, text: Path) -> Iterator[Started]:
    """A run that has taken some steps; whatever happens, no process outlives the test."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--master-port", str(free_port()), "-m", "mlpkit", "train", *overrides(text)),
        *("training.max_steps=100000", "parallel.expert=2", f"parallel.timeout={TIMEOUT}"),
        "run_dir=run",
    ]
    run, err = folder / "run", folder / "err"
    with (folder / "out").open("w") as out, err.open("w") as errors:
        process = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=errors, env=clean_environment()
        )
    workers: list[int] = []
    try:
        until(lambda: len(steps(run)) > 2 or process.poll() is not None)
        workers = children(process.pid)
        assert len(workers) == 2, err.read_text()
        yield Started(process, workers, run, err)
    finally:
        for pid in filter(is_alive, workers):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


def until(what: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def steps(run: Path) -> list[int]:
    return [line["step"] for line in read_lines(run / "metrics.jsonl") if "loss" in line]


def children(pid: int) -> list[int]:
    """The processes that one has started, in order: rank 0 first."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sorted(map(int, found))


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent to read its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end_of(begun: Started, seconds: float) -> None:
    """Waits for every worker."""
    until(lambda: not any(map(is_alive, begun.workers)), seconds)


def check_stopped(begun: Started, reason: str) -> int:
    """What a run leaves that was told to stop; returns its last step."""
    result, last = read_result(begun.run), steps(begun.run)[-1]
    assert (result["status"], result["step"]) == ("stopped", last)
    assert f"stopped by {reason} after step {last} of" in result["error"]
    found, wrong = CheckpointStore(begun.run / "checkpoints").newest()
    assert found is not None
    assert (found.step, wrong) == (last, [])
    names = {path.name for path in found.path.glob("*.distcp")}
    assert names == {"__0_0.distcp", "__1_0.distcp"}  # both have written
    assert is_held(begun.run) is False
    said = begun.err.read_text()
    assert said.count("mlpkit: stopped by") == 1
    assert "[rank 1]" not in said
    return last


def test_a_signal_to_torchrun_stops_all_and_one_process_goes_on(
    tmp_path: Path, tiny_text: Path
) -> None:
    with started(tmp_path, tiny_text) as begun:
        assert (begun.run / ".lock").read_text().startswith(f"process {begun.workers[0]} on ")
        begun.torchrun.send_signal(signal.SIGTERM)
        assert begun.torchrun.wait(60) == 1  # torchrun has no other code
        end_of(begun, 1)
    last = check_stopped(begun, "SIGTERM")
    further = [*overrides(tiny_text), f"training.max_steps={last + 2}", "resume=auto"]
    again = work(further, str(begun.run))
    assert f"going on after step {last}" in again["shown"]
    assert "changed parallel.expert: 2 → 1" in again["shown"]
    assert steps(begun.run) == [*range(1, last + 3)]


def test_processes_without_torchrun_stop_with_a_checkpoint(tmp_path: Path, tiny_text: Path) -> None:
    with started(tmp_path, tiny_text) as begun:
        begun.torchrun.kill()
        end_of(begun, 60)
    check_stopped(begun, "the end of torchrun")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_ends_the_other_and_torchrun_names_it(
    tmp_path: Path, tiny_text: Path, rank: int
) -> None:
    with started(tmp_path, tiny_text) as begun:
        os.kill(begun.workers[rank], signal.SIGKILL)
        since = time.monotonic()
        assert begun.torchrun.wait(120) == 1
        assert time.monotonic() - since < TIMEOUT + 30  # torchrun's own patience
        end_of(begun, 1)
    said = begun.err.read_text()
    root = said[said.index("Root Cause") :]
    assert f"rank      : {rank}" in root
    assert "exitcode  : -9" in root
    assert read_result(begun.run)["status"] == ("lost" if rank == 0 else "failed")
    assert is_held(begun.run) is False
    found, _ = CheckpointStore(begun.run / "checkpoints").newest()
    assert found is not None
    assert found.step >= steps(begun.run)[-1] - 2  # one every two steps

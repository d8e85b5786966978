"""What a framework costs before it computes: start-up, composing, a job of a sweep."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mlpkit.compose import compose

from .cases import Case, Effort, from_timings
from .clock import Call, fastest

COMMANDS = {"--help": 0.4, "list": 0.5}
COMPOSE_TARGET, JOB_TARGET = 0.3, 1.0  # seconds
JOB = (
    "model=tiny",
    "training.max_steps=1",
    "training.batch_size=2",
    "training.sequence_length=8",
    "training.eval_tokens=16",
    "training.sample_tokens=0",
)


def run(effort: Effort) -> Iterator[Case]:
    """Times commands in processes of their own, then composing, then sweeps of one and three."""
    rounds = 1 if effort.quick else min(effort.rounds, 5)
    for command, target in COMMANDS.items():
        yield seconds(
            f"mlpkit {command}", lambda command=command: program(command), target, rounds, effort
        )
    yield seconds("composing a job", lambda: compose(["ffn=moe"]), COMPOSE_TARGET, rounds, effort)
    if not effort.quick:
        yield sweep_overhead()


def seconds(title: str, call: Call, target: float, rounds: int, effort: Effort) -> Case:
    """A case without peers, whose target is in seconds."""
    timings = fastest({"mlpkit": call}, rounds=rounds, budget=effort.budget)
    return from_timings(timings, part="startup", title=title, facts={"target_seconds": target})


def program(*arguments: str, folder: str | None = None) -> None:
    """Runs mlpkit as a user does.

    Raises:
        RuntimeError: It failed.
    """
    command = [sys.executable, "-m", "mlpkit", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    if ended.returncode:
        raise RuntimeError(f"mlpkit {' '.join(arguments)} failed: {ended.stderr[-300:]}")


def sweep_overhead() -> Case:
    """Seconds that a job takes beside its training, from sweeps of three jobs and of one."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
        job = (*JOB, "data=text", f"data.path={text}")
        one = _sweep(folder, job, (0,))
        three = _sweep(folder, job, (1, 2, 3))
        inside = _training_seconds(Path(folder), 3)
    overhead = max(0.0, (three - one) / 2 - inside)
    return Case(
        part="startup",
        title="a job of a sweep beside its training",
        values={"mlpkit": overhead},
        facts={"target_seconds": JOB_TARGET},
        kept=1,
    )


def _sweep(folder: str, job: Sequence[str], seeds: Sequence[int]) -> float:
    chosen = ",".join(map(str, seeds))
    start = time.perf_counter()
    program("train", "-m", *job, f"seed={chosen}", folder=folder)
    return time.perf_counter() - start


def _training_seconds(folder: Path, jobs: int) -> float:
    """The mean of what the newest jobs spent in training steps."""
    results = sorted(folder.glob("multirun/*/result.json"), key=lambda path: path.stat().st_mtime)
    found = [json.loads(path.read_text())["metrics"]["training_seconds"] for path in results]
    return sum(found[-jobs:]) / jobs

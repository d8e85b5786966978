"""A sweep of 300 jobs whose processes are killed at random moments, until it has ended."""

from __future__ import annotations

import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mlpkit.report import load_runs
from mlpkit.sweep.records import DEAD, read_state
from mlpkit.training.checkpoints.manifest import METADATA
from mlpkit.training.run_directory import LOCK, is_held

FFNS, SEEDS = ("naive", "swiglu", "geglu"), 100
APART = 25  # jobs at most between two kills
SECONDS = 1.5  # of a job, about: within them a kill comes at any moment
START = 20.0  # seconds of a start, in which some of the kills come
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


class Killer:
    """Starts the line of a sweep again and again, and kills it or one of its jobs.

    Args:
        folder: The working directory.
        line: What all jobs share.
    """

    def __init__(self, folder: Path, line: list[str]) -> None:
        self.folder, self.line = folder, line
        self.draw, self.figures = random.Random(0), Counter[str]()
        self.finished: dict[Path, dict[str, tuple[int, str]]] = {}
        self.process: subprocess.Popen[bytes]
        self.ffns: list[str] = []
        self.sessions, self.lost = set[int](), set[tuple[Path, int | None]]()

    def run(self, *axes: str, kill_jobs: bool) -> str:
        """Starts a line until it ends by itself with every job finished; what it said at last."""
        self.ffns = axes[0].removeprefix("ffn=").split(",")
        while True:
            log = self.folder / f"log-{self.figures['starts']}.txt"
            self._start(log, axes)
            if self._left():
                self._wait()
                self._kill(jobs=kill_jobs and self.draw.random() < 0.5)
            code = self.process.wait(timeout=3600)
            self._compare(log.read_text())
            if code == 0:
                return log.read_text()
            assert code in (1, -signal.SIGKILL), log.read_text()

    def jobs(self) -> list[Path]:
        """The directories of the jobs that were begun."""
        return [p for p in (self.folder / "multirun").glob("*") if p.name != "sweeps"]

    def _start(self, log: Path, axes: tuple[str, ...]) -> None:
        self.figures["starts"] += 1
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlpkit", "train", "-m", *axes, *self.line],
                cwd=self.folder,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MLPKIT_CACHE": str(self.folder / "c")},
                start_new_session=True,
            )
        self.sessions.add(self.process.pid)

    def _left(self) -> int:
        finished = [path for path in self.jobs() if done(path)]
        ffns = [read_state(path).result["overrides"][0] for path in finished]
        return SEEDS * len(self.ffns) - sum(o.removeprefix("ffn=") in self.ffns for o in ffns)

    def _wait(self) -> None:
        """Waits for a moment in the start, or after some further jobs."""
        if self.draw.random() < 0.1:
            time.sleep(self.draw.uniform(0, START))
            return
        goal = max(0, self._left() - self.draw.randint(1, APART))
        while self._left() > goal and self.process.poll() is None:
            time.sleep(1)
        time.sleep(self.draw.uniform(0, SECONDS))

    def _kill(self, *, jobs: bool) -> None:
        """Kills the sweep, or a job once one runs."""
        pids = [self.process.pid]
        while jobs and self.process.poll() is None and self._left():
            if pids := list(self._running()):
                break
            time.sleep(0.05)
        if pids and self.process.poll() is None:
            os.kill(self.draw.choice(pids), signal.SIGKILL)
            self.figures["kills of jobs" if jobs else "kills of sweeps"] += 1

    def _running(self) -> Iterator[int]:
        """The processes of running jobs, none but those that were started here."""
        for path in self.jobs():
            state = read_state(path)
            with suppress(ProcessLookupError):  # it has ended meanwhile
                pid = state.result.get("pid")
                if state.status == "running" and pid and os.getsid(pid) in self.sessions:
                    yield pid

    def _compare(self, said: str) -> None:
        """A finished job's files never change, and what was said of lost ones is right."""
        states = {path: read_state(path) for path in self.jobs()}
        lost = [s.result for s in states.values() if s.status == "lost" and s.result.get("error")]
        if self.process.returncode == 1:
            (counts,) = re.findall(r"^\d+ ok, 0 failed.*$", said, flags=re.MULTILINE)
            assert (f", {len(lost)} lost" in counts) == bool(lost), (counts, lost)
            for result in lost:
                assert f"\n{result['overrides'][1]}: lost: {DEAD}\n" in said  # the FFN is shared
        self.lost |= {(p, s.result.get("pid")) for p, s in states.items() if s.status == "lost"}
        for path, before in self.finished.items():
            assert files(path) == before
        for path in states:
            if path not in self.finished and done(path):
                self.finished[path] = files(path)


def done(path: Path) -> bool:
    """Whether a job is finished and nobody writes in its directory any more."""
    return read_state(path).status == "ok" and not is_held(path)


def files(path: Path) -> dict[str, tuple[int, str]]:
    """The files of a job, with the time and the sha256 of each; not the lock, which is touched."""
    return {
        str(file.relative_to(path)): (
            file.stat().st_mtime_ns,
            hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        for file in path.rglob("*")
        if file.is_file() and file.name != LOCK
    }


@pytest.mark.soak
def test_a_sweep_that_is_killed_at_random_finishes_every_job_once(
    tmp_path: Path, tiny: list[str]
) -> None:
    line = [o for o in tiny if not o.startswith(("ffn.", "training.max_steps"))]
    line += ["training.max_steps=4", "training.checkpoint_every=2"]
    killer, seeds = Killer(tmp_path, line), f"seed=range({SEEDS})"
    killer.run(f"ffn={FFNS[-1]}", seeds, *JOBLIB, kill_jobs=True)
    said = killer.run(f"ffn={','.join(FFNS)}", seeds, kill_jobs=False)
    print(dict(killer.figures), f"lost: {len(killer.lost)}")
    total = len(FFNS) * SEEDS
    assert f"{total} ok, 0 failed" in said
    assert len(killer.finished) == len(killer.jobs()) == total
    left = [p for p in (tmp_path / "multirun").rglob(".*") if p.name not in (LOCK, METADATA)]
    assert left == []
    sweep = max(tmp_path.glob("multirun/sweeps/*/sweep.json"), key=lambda p: p.stat().st_size)
    runs = load_runs(sweep).runs
    assert len(runs) == total
    assert set(runs["status"]) == {"ok"}
    assert f"{total} of {total} runs finished" in (sweep.parent / "report.html").read_text()

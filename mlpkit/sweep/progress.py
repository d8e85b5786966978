"""How far a sweep is: which job ended and how, what is left, the best so far; read from disk."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mlpkit.sweep.jobs import Job, labels
from mlpkit.sweep.records import State, end_running, read_state
from mlpkit.sweep.running import say

ENDED = ("ok", "failed", "stopped", "lost")
LOOK = 1.0  # seconds between looks at the records


class Progress:
    """The progress of one attempt at a sweep.

    What earlier attempts left behind is told apart by the time of the record: a job that failed
    yesterday is open until it has failed again.

    Args:
        jobs: All jobs.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = {job.id: job for job in jobs}  # what is asked for twice runs once
        self.names = dict(zip((job.id for job in jobs), labels(jobs), strict=True))
        self.stamps = {key: self._stamp(job) for key, job in self.jobs.items()}
        self.before = {
            key
            for key, job in self.jobs.items()
            if not job.config.rerun and read_state(job.path).status == "ok"
        }
        self.start = time.monotonic()

    def ended(self) -> dict[str, State]:
        """The jobs that ended in this attempt, with how."""
        found = {}
        for key, job in self.jobs.items():
            if key not in self.before and self._stamp(job) != self.stamps[key]:
                state = read_state(job.path)
                if state.status in ENDED:
                    found[key] = state
        return found

    def line(self) -> str:
        """``── 7 of 12 jobs: 6 ok, 1 failed · 3:20, about 2:30 left · best val_bpb 2.2134: …``."""
        from mlpkit.training.progress import clock

        ended = self.ended()
        states = [*ended.values(), *(read_state(self.jobs[key].path) for key in self.before)]
        counts = Counter(state.status for state in states)
        shown = ", ".join(f"{counts[status]} {status}" for status in ENDED if counts[status])
        seconds, left = time.monotonic() - self.start, len(self.jobs) - len(states)
        spent = clock(seconds)
        if left and ended:  # also right where several run at a time
            spent += f", about {clock(seconds / len(ended) * left)} left"
        parts = [f"── {len(states)} of {len(self.jobs)} jobs: {shown or 'none yet'}", spent]
        return " · ".join([*parts, *self._best(ended)])

    def say(self) -> None:
        """Prints the line."""
        say(self.line())

    def _best(self, ended: dict[str, State]) -> list[str]:
        scores = {key: state.val_bpb for key, state in ended.items()}
        scores |= {key: read_state(self.jobs[key].path).val_bpb for key in self.before}
        found = {key: score for key, score in scores.items() if score is not None}
        if not found:
            return []
        best = min(found, key=lambda key: found[key])
        return [f"best val_bpb {found[best]:.4f}: {self.names[best]}"]

    @staticmethod
    def _stamp(job: Job) -> int:
        try:
            return (job.path / "result.json").stat().st_mtime_ns
        except OSError:
            return 0


class Watcher:
    """Says what ends while a launcher runs jobs in processes of their own.

    Args:
        progress: The sweep's progress.
        stop_file: Once it is there, the jobs that still run are asked to stop.
        asked: The processes that have been asked.
    """

    def __init__(self, progress: Progress, stop_file: Path | None, asked: set[int]) -> None:
        self.progress, self.said = progress, set[str]()
        self.stop_file, self.asked = stop_file, asked
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self._look()

    def _watch(self) -> None:
        while not self.over.wait(LOOK):
            self._look()
            if self.stop_file and self.stop_file.exists():
                end_running(list(self.progress.jobs.values()), self.asked)

    def _look(self) -> None:
        ended = self.progress.ended()
        new = [key for key in ended if key not in self.said]
        for key in new:
            self.said.add(key)
            name = self.progress.names[key]
            if ended[key].status == "ok":
                say(f"ok: {name}, val_bpb {ended[key].val_bpb:.4f}")
            else:
                error = ended[key].result.get("error", "")
                say(f"mlpkit: {ended[key].status}: {name}: {error}", sys.stderr)
        if new:
            self.progress.say()

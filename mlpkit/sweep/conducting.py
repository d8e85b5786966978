"""A sweep from its first line to its exit code, around whatever launches its jobs."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Any

from mlpkit.compose import ConfigError
from mlpkit.sweep.jobs import Job, labels
from mlpkit.sweep.progress import Progress, Watcher
from mlpkit.sweep.records import (
    end_running,
    read_state,
    runs_elsewhere,
    sweep_dir,
    write_lost,
    write_sweep,
)
from mlpkit.sweep.running import POLL, STOPPED, Plan, SweepStopped, run_job, say
from mlpkit.sweep.summary import report, summarise, wait_for_others
from mlpkit.sweep.sweeper import choose_checked

Task = Callable[[Any], Any]
Launch = Callable[[Task, Sequence[str]], None]


def conduct(jobs: Sequence[Job], arguments: Sequence[str], launch: Launch, *, alone: bool) -> int:
    """Runs the jobs of a sweep and says how it went.

    Args:
        jobs: Its jobs, checked.
        arguments: What stood behind ``mlpkit train``, for the record.
        launch: Hands a task for each job to Hydra, with further overrides.
        alone: Whether the launcher runs one job after the other in this process.

    Returns:
        The exit code.
    """
    sweep = write_sweep(jobs, arguments)
    token = f"{os.getpid()}-{time.time_ns()}"
    plan = Plan(folder=sweep.parent, token=token, names=tuple(labels(jobs)), alone=alone)
    progress = Progress(jobs)
    done = f", {len(progress.before)} done before" if progress.before else ""
    jobs_text = "1 job" if len(progress.jobs) == 1 else f"{len(progress.jobs)} jobs"
    say(f"sweep of {jobs_text}{done}: {sweep.parent}")
    code = _launch(jobs, plan, progress, launch)
    if code == 0:
        wait_for_others(jobs)
    write_lost(jobs)
    _tidy(jobs, plan)
    ended = summarise(jobs)
    report(sweep)
    return code or ended


def _launch(jobs: Sequence[Job], plan: Plan, progress: Progress, launch: Launch) -> int:
    """Runs them; returns the exit code of what ended the sweep early, or 0."""
    after = progress.say if plan.alone else None
    task = partial(run_job, plan=plan, after=after) if after else partial(run_job, plan=plan)
    asked = set[int]()
    watcher = nullcontext() if plan.alone else Watcher(progress, plan.stop_file, asked)
    try:
        with _terminable(), watcher:
            launch(task, [f"hydra.sweep.dir={plan.folder}", choose_checked()])
        code, reason = 0, "a job failed and keep_going is off"
        if plan.stop_file and plan.stop_file.exists():
            code = 1
    except ConfigError:
        raise
    except (SweepStopped, KeyboardInterrupt) as error:
        code = error.exit_code if isinstance(error, SweepStopped) else STOPPED
        reason = error.reason if isinstance(error, SweepStopped) else "interrupted"
    except Exception as error:  # a launcher whose worker was killed, such as joblib's
        code, reason = 1, f"the launcher ended early: {type(error).__name__}: {error}"
    if code:
        _end(jobs, plan, reason, asked)
    return code


def _end(jobs: Sequence[Job], plan: Plan, reason: str, asked: set[int]) -> None:
    """Ends what still runs of a sweep, and says what is left."""
    if not plan.alone:
        if plan.stop_file:
            plan.stop_file.touch()  # for jobs that are only starting
        end_running(jobs, asked)
        while any(runs_elsewhere(job.path) for job in jobs):
            time.sleep(POLL)
    left = sum(read_state(job.path).status != "ok" for job in jobs)
    say(f"mlpkit: the sweep was stopped: {reason}; {left} of {len(jobs)} jobs left", sys.stderr)


def _tidy(jobs: Sequence[Job], plan: Plan) -> None:
    """Removes what Hydra and launchers leave behind and nobody needs."""
    folder = sweep_dir(jobs)
    (folder / "multirun.yaml").unlink(missing_ok=True)
    for old in folder.glob(".stop-*"):
        old.unlink(missing_ok=True)
    if all(read_state(job.path).status == "ok" for job in jobs):
        shutil.rmtree(folder / ".submitit", ignore_errors=True)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM between two jobs ends the sweep like Ctrl-C; within one, training answers it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise SweepStopped(signal.Signals(number).name, STOPPED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

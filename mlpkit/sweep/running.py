"""One job of a sweep, in whatever process its launcher runs it: take its directory, train, say."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import current_process
from pathlib import Path
from typing import IO, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from mlpkit.plugins import plugin_versions
from mlpkit.registry import printable
from mlpkit.sweep.jobs import SWEEP_ROOT, job_id, settled
from mlpkit.sweep.log import Log, logged
from mlpkit.sweep.records import clear, locked, read_state, write_end

# mlpkit.training and mlpkit.parallel are imported where they are used, as in records.py
STOPPED = 75  # the exit code of what a signal stopped, and the same line resumes
POLL = 1.0  # seconds between looks at a job that runs elsewhere


class SweepStopped(BaseException):
    """Ends a sweep at once; no Exception, since Hydra would go on to the next job.

    Args:
        reason: What happened.
        exit_code: 75 when a signal did it, else 1.
    """

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason, exit_code)
        self.reason, self.exit_code = reason, exit_code


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a job knows of its sweep; it travels to other processes.

    Args:
        folder: The sweep's own directory; None where an optimizer chooses jobs one by one.
        token: Names this process's attempt at it.
        names: What each job is called, in their order; none where that is not known.
        alone: Whether jobs run one after the other in the process that the user looks at.
        conductor: The process that runs the sweep; this one.
    """

    folder: Path | None
    token: str
    names: tuple[str, ...]
    alone: bool
    conductor: int = field(default_factory=os.getpid)

    @property
    def stop_file(self) -> Path | None:
        """It appears when no further job shall start."""
        return self.folder / f".stop-{self.token}" if self.folder else None


def run_job(config: DictConfig, plan: Plan, after: Callable[[], None] = lambda: None) -> Any:
    """Runs one job of a sweep; returns its validation bits per byte, or None.

    Args:
        config: The job's composed configuration.
        plan: What it knows of its sweep.
        after: Called when it has ended, in a sweep that runs in this process.

    Raises:
        SweepStopped: A signal came, or it failed and ``keep_going`` is off.
        Exception: It failed, and an optimizer wants to know.
    """
    state = HydraConfig.get()
    number, optimizes = state.job.num, plan.folder is None
    _leave_if_deserted(plan)
    if plan.stop_file and plan.stop_file.exists():
        return None
    name = f"job {number + 1}{of(plan)}"
    if plan.alone:
        say(f"── {name}: {plan.names[number] if plan.names else ' '.join(overrides_of(state))}")
    try:
        return _attempt(config, overrides_of(state), plan, waits=optimizes)
    except (Exception, SystemExit) as error:
        stopped = getattr(error, "exit_code", None) == STOPPED
        if optimizes and not stopped:
            raise
        if plan.alone and stopped:
            raise SweepStopped(str(error), STOPPED) from error
        _failed(name, error, plan, keep_going=stopped or config.keep_going)
        return None
    finally:
        after()
        _leave_if_deserted(plan)


def _leave_if_deserted(plan: Plan) -> None:
    """Ends a worker of joblib whose sweep was killed: nobody would ever take what it returns.

    It would wait for that without end, with all its memory.
    """
    if current_process().name.startswith("Loky") and os.getppid() != plan.conductor:
        os._exit(STOPPED)


def _failed(name: str, error: BaseException, plan: Plan, *, keep_going: bool) -> None:
    """Says that a job failed, where the user sees it; where it shall, ends the sweep."""
    if plan.alone:  # elsewhere the process that the user looks at reads it from the record
        say(f"mlpkit: {name} failed: {told(error)}", sys.stderr)
    if keep_going:
        return
    if plan.stop_file:
        plan.stop_file.touch()
    if plan.alone:
        raise SweepStopped(f"{name} failed and keep_going is off", 1) from error


def _attempt(
    config: DictConfig, overrides: Sequence[str], plan: Plan, *, waits: bool
) -> float | None:
    """Trains a job unless it is finished, or another process is at it."""
    from mlpkit.parallel import FollowingError
    from mlpkit.training.run_directory import RunDirectoryError, holder, is_held

    rerun = bool(config.rerun)
    config, match = settled(config, overrides)
    path = SWEEP_ROOT / job_id(config, plugin_versions())
    while True:
        try:
            begin = agreed(config, partial(take, path, rerun=rerun))
            if begin == "done":
                score = read_state(path).val_bpb
                say(f"done before, val_bpb {score:.4f}: {path}")
                return score
            return _train(config, path, overrides, match, plan, resume=begin == "resume")
        except (RunDirectoryError, FollowingError):
            if not is_held(path):  # it is our own mistake, not someone at work there
                raise
            say(f"running elsewhere ({holder(path)}): {path}")
            if not waits:
                return None
        while is_held(path):
            time.sleep(POLL)


def agreed(config: DictConfig, function: Callable[[], str]) -> str:
    """What a function says in the first process of a job, in all of them: Slurm may start several.

    Args:
        config: The job's configuration.
        function: Looks at what only one of them may change.
    """
    import torch

    from mlpkit.parallel import start

    with start(config.parallel, torch.device("cpu")) as parallel:
        return parallel.from_main(parallel.on_main(function) or "")


def take(path: Path, *, rerun: bool) -> str:
    """Makes a job's directory ready: a finished run stays, a failed one goes, never half of it.

    Args:
        path: The directory.
        rerun: Whether a finished run goes too.

    Returns:
        "done", "resume" where there is a checkpoint to go on from, or "fresh".

    Raises:
        RunDirectoryError: Another process trains in it.
    """
    from mlpkit.training.run_directory import CHECKPOINTS

    if not path.exists():
        return "fresh"
    with locked(path):
        status = read_state(path).status
        if status == "ok" and not rerun:
            return "done"
        # under the lock nobody runs it, whatever number its record names
        unfinished = status in ("lost", "stopped", "running") and not rerun
        if unfinished and any((path / CHECKPOINTS).glob("step_*")):
            return "resume"
        clear(path)
    return "fresh"


def _train(
    config: DictConfig,
    path: Path,
    overrides: Sequence[str],
    match: Any,
    plan: Plan,
    *,
    resume: bool,
) -> float:
    from rich.console import Console

    from mlpkit.training import train
    from mlpkit.training.run_directory import hiding

    if resume:
        config.resume = "auto"
    with logged(path, hiding(config), shown=plan.alone) if is_first() else nullcontext() as log:
        try:
            result = train(
                config, run_dir=path, overrides=overrides, console=Console(), match=match
            )
        except BaseException as error:
            if log is not None:
                _complete(path, log, error, overrides, match)
            raise
    return float(result["metrics"]["val_bpb"])


def _complete(
    path: Path, log: Log, error: BaseException, overrides: Sequence[str], match: Any
) -> None:
    """Sees to it that a job that ended badly has a record with the end of its log."""
    from mlpkit.training.run_directory import RunDirectoryError, is_held

    if isinstance(error, RunDirectoryError) and is_held(path):
        return  # the record is that of whoever runs it
    stopped = isinstance(error, KeyboardInterrupt) or getattr(error, "exit_code", 0) == STOPPED
    known = stopped or getattr(error, "exit_code", None) is not None
    log.write(f"{told(error)}\n" if known else traceback.format_exc())
    log.release()
    status = "stopped" if stopped else "failed"
    said = log.hide(told(error))
    write_end(path, status=status, error=said, overrides=overrides, match=match)


def overrides_of(state: Any) -> list[str]:
    """The overrides of a job as they were typed: null is null again, ``${oc.env:X}`` stays."""
    typed: Any = OmegaConf.to_container(state.overrides.task, resolve=False)
    return [o.replace("'null'", "null") for o in typed]


def told(error: BaseException) -> str:
    """An error in one line; sys.exit says only a number."""
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r}) was called"
    known = getattr(error, "exit_code", None) is not None
    text = " ".join(str(error).split()) or type(error).__name__
    return text if known else f"{type(error).__name__}: {text}"


def of(plan: Plan) -> str:
    """`` of 12``, where the number of jobs is known."""
    return f" of {len(plan.names)}" if plan.names else ""


def is_first() -> bool:
    """Whether this is the process of a job that prints and writes."""
    return os.environ.get("RANK", "0") == "0"


def say(text: str, stream: IO[str] | None = None) -> None:
    """Prints a line at once."""
    if is_first():
        print(printable(text), file=stream or sys.stdout, flush=True)

"""What is on disk of a sweep: its own record, and the state of each job; right for any launcher."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from mlpkit.sweep.jobs import SWEEP_ROOT, Job, sweep_id

# What is of mlpkit.training is imported where it is used: it loads torch, which takes seconds, and
# a sweep with a typing error is refused without it.
LOG = "log.txt"
TAIL = 30  # lines of a log that a record keeps: enough for a traceback
TAIL_BYTES = 20_000
DEAD = "the process ended without a word: killed, out of memory, or the machine went down"


class State(NamedTuple):
    """The state of a job.

    Args:
        status: "ok", "failed", "stopped", "lost", "running", or "none" if it never started.
        result: Its record; empty where there is none.
    """

    status: str
    result: Mapping[str, Any]

    @property
    def val_bpb(self) -> float | None:
        """Its score, once it is finished."""
        return float(self.result["metrics"]["val_bpb"]) if self.status == "ok" else None


def read_state(path: Path) -> State:
    """The state of the job in a directory; damaged it reads as lost, with a link as failed."""
    from mlpkit.training.run_directory import RunDirectoryError, is_held, read_result

    try:
        require_own(path)
    except RunDirectoryError as error:  # whatever its record says, nothing can go on there
        return State("failed", {"error": str(error)})
    try:
        result = read_result(path)
    except RunDirectoryError:
        if is_held(path):  # it has the directory, and no record yet
            return State("running", {})
        begun = path.is_dir() and any(child.name != ".lock" for child in path.iterdir())
        return State("lost" if begun else "none", {})
    return State(str(result["status"]), result)


def runs_elsewhere(path: Path) -> bool:
    """Whether another process than this one is at the job in a directory."""
    from mlpkit.training.run_directory import holder

    own = holder(path).startswith(f"process {os.getpid()} on {socket.gethostname()}")
    return read_state(path).status == "running" and not own


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a job's directory, so that nobody trains in it.

    Raises:
        RunDirectoryError: Somebody does, or what is in it, and may be removed, lies elsewhere.
    """
    from mlpkit.training.run_directory.lock import hold

    require_own(path)
    path.mkdir(parents=True, exist_ok=True)
    lock = hold(path)
    try:
        yield
    finally:
        lock.release()


def require_own(path: Path) -> None:
    """Refuses a job's directory that lies elsewhere, or holds what does; there may be none.

    Raises:
        RunDirectoryError: It is a link, or holds a link, a pipe or a device.
    """
    from mlpkit.training.run_directory import RunDirectoryError, require_own_files

    if path.is_symlink():
        raise RunDirectoryError(
            f"{path} is a link to {path.readlink()}, and a sweep empties the directory of a job "
            f"before it runs; remove the link, or link {SWEEP_ROOT} as a whole"
        )
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        require_own_files(path)


def clear(path: Path) -> None:
    """Empties a job's directory, but for the lock, which the caller holds."""
    from mlpkit.training.run_directory import LOCK

    for child in path.iterdir():
        if child.name == LOCK:
            continue
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


def write_end(
    path: Path, *, status: str, error: str, overrides: Sequence[str], match: Any = None
) -> None:
    """Completes the record of a job that did not end well, also of one that never made one.

    Args:
        path: Its directory.
        status: "failed" or "stopped"; "running" for a lost one, which is how that is written.
        error: What happened, in one line; an error that is recorded already stays.
        overrides: What it overrides, for a job without a record.
        match: How its widths came about, for the same.
    """
    from mlpkit.training.run_directory import write_atomically

    path.mkdir(parents=True, exist_ok=True)
    nothing = {"pid": 0, "overrides": list(overrides), "match": match}
    found = read_state(path).result or nothing
    record = {**found, "status": status, "error": found.get("error") or error}
    if not record.get("log_tail"):
        record["log_tail"] = log_tail(path)
    text = json.dumps(record, indent=2, ensure_ascii=False)
    write_atomically(path / "result.json", f"{text}\n".encode())


def log_tail(path: Path) -> list[str]:
    """The last lines of a job's log."""
    try:
        with (path / LOG).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()[-TAIL:]
    except OSError:
        return []


def write_lost(jobs: Sequence[Job]) -> None:
    """Completes the records of jobs whose process is gone, with the end of what they said."""
    from mlpkit.training.run_directory import RunDirectoryError

    for job in jobs:
        if read_state(job.path).status != "lost":
            continue
        try:
            with locked(job.path):
                write_end(
                    job.path,
                    status="running",
                    error=DEAD,
                    overrides=job.overrides,
                    match=job.match,
                )
        except RunDirectoryError:  # another sweep has taken it up meanwhile
            continue


def sweep_dir(jobs: Sequence[Job]) -> Path:
    """Where a sweep's own files lie: the same for the same jobs."""
    return SWEEP_ROOT / "sweeps" / sweep_id(jobs)


def write_sweep(jobs: Sequence[Job], arguments: Sequence[str]) -> Path:
    """Writes what a sweep is before its first job starts; returns the file.

    Args:
        jobs: Its jobs; one that is asked for twice is one.
        arguments: What stood behind ``mlpkit train``.
    """
    from mlpkit.training.run_directory import write_atomically

    folder, first = sweep_dir(jobs), jobs[0]
    folder.mkdir(parents=True, exist_ok=True)
    unique = {job.id: job for job in jobs}
    content = {
        "command": command(arguments),
        "jobs": [{"id": job.id, "overrides": list(job.overrides)} for job in unique.values()],
        "baseline": first.match["to"] if first.match else None,
    }
    text = json.dumps(content, indent=2, ensure_ascii=False)
    write_atomically(folder / "sweep.json", f"{text}\n".encode())
    return folder / "sweep.json"


def command(arguments: Sequence[str]) -> str:
    """The line that runs a sweep again, with the local plugins that it needs."""
    modules = [m for m in re.split(r"\s*,\s*", os.environ.get("MLPKIT_PLUGIN_MODULES", "")) if m]
    plugins = [word for module in modules for word in ("-p", module)]
    return shlex.join(["mlpkit", *plugins, "train", *arguments])


def end_running(jobs: Sequence[Job], asked: set[int]) -> None:
    """Asks the jobs that run on this machine to save and stop.

    Args:
        jobs: Those of a sweep whose launcher runs them in processes of their own.
        asked: The processes that have been asked; a second time would end them where they are.
    """
    from mlpkit.training.run_directory import holder

    for job in jobs:
        pid = int(read_state(job.path).result.get("pid") or 0)
        here = holder(job.path).endswith(f" on {socket.gethostname()}")
        if not (pid and here and runs_elsewhere(job.path)) or pid in asked:
            continue
        asked.add(pid)
        with suppress(ProcessLookupError, PermissionError):  # it ended meanwhile
            os.kill(pid, signal.SIGTERM)

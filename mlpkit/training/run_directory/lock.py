"""The lock of a run directory, held by the process that trains in it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from mlpkit.training.run_directory.files import LOCK, RunDirectoryError

# Readers that ask whether a lock is free hold it for microseconds; a second trainer for hours.
PATIENCE = 0.5  # seconds


def hold(directory: Path) -> FileLock:
    """Takes the lock of a run directory.

    The system frees it when the process ends, however it ends. The holder's number and machine
    stand in the file.

    Args:
        directory: The run directory; it exists.

    Raises:
        RunDirectoryError: Another process, or another run of this one, holds it.
    """
    lock = FileLock(directory / LOCK, timeout=PATIENCE)
    try:
        lock.acquire(poll_interval=0.01)
    except Timeout as error:
        raise RunDirectoryError(
            f"run_dir {directory} is in use by {holder(directory)}; wait for it, stop it, or "
            "choose another directory"
        ) from error
    (directory / LOCK).write_text(f"process {os.getpid()} on {socket.gethostname()}")
    return lock


def holder(directory: Path) -> str:
    """Who holds a lock, in words."""
    try:
        return (directory / LOCK).read_text().strip() or "another process"
    except OSError:
        return "another process"


def is_held(directory: Path) -> bool | None:
    """Whether a process trains in a run directory; None where that cannot be said."""
    try:
        import fcntl  # not on Windows

        # no link is followed, and none waits for the other end of a pipe
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False

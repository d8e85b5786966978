"""A job's log: what it prints, also in its own directory."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO

from mlpkit.sweep.records import LOG


class Log:
    """The log of a job, once the job has a directory.

    Before the run's own record, a file in the directory would make the run refuse it: lines that
    come earlier are kept back.

    Args:
        path: The job's directory.
        hide: Makes a text one that a file may hold, without values of the environment.
    """

    def __init__(self, path: Path, hide: Callable[[str], str]) -> None:
        self.path, self.hide = path, hide
        self.held: list[str] = []

    def write(self, text: str) -> None:
        """Adds text."""
        self.held.append(self.hide(text))
        if (self.path / "result.json").exists():
            self.release()

    def release(self) -> None:
        """Writes out what was kept back, at once, so that a kill loses nothing."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOG).open("a", encoding="utf-8", errors="replace") as file:
            file.write("".join(self.held))
        self.held.clear()


class Tee(io.TextIOBase):
    """A text stream that goes to a log and to another one.

    It is no terminal, so that progress comes as plain lines, which suit a log.

    Args:
        log: The log.
        stream: Where else it goes; None: nowhere.
    """

    def __init__(self, log: Log, stream: IO[str] | None) -> None:
        self.log, self.stream = log, stream

    def write(self, text: str) -> int:
        """Writes to both."""
        if self.stream is not None:
            self.stream.write(text)
        self.log.write(text)
        return len(text)

    def flush(self) -> None:
        """Brings the other stream up to date."""
        if self.stream is not None:
            self.stream.flush()


@contextmanager
def logged(path: Path, hide: Callable[[str], str], *, shown: bool) -> Iterator[Log]:
    """What is printed inside goes to the job's log.

    Args:
        path: The job's directory.
        hide: Makes a text one that a file may hold.
        shown: Whether it is printed too.
    """
    log = Log(path, hide)
    out, err = Tee(log, sys.stdout if shown else None), Tee(log, sys.stderr if shown else None)
    with redirect_stdout(out), redirect_stderr(err):
        yield log

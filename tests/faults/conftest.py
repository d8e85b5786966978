"""What the tests of faults share: a process that runs jobs in forks, which can be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Driver:
    """Runs jobs of ``driver.py``, one at a time.

    Args:
        process: The process of ``driver.py``.
        log: Where a job's output goes.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log = process, log

    def start(self, **job: Any) -> int:
        """Starts a job; returns its process id."""
        assert self.process.stdin is not None
        self.log.write_text("")
        self.process.stdin.write(json.dumps({"log": str(self.log), **job}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def end(self) -> tuple[int, str]:
        """Waits for the job; returns its exit status and its output."""
        return self._answer(), self.log.read_text()

    def _answer(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("driver.py"))],
        stdin=pipe,
        stdout=pipe,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        yield Driver(process, tmp_path_factory.mktemp("driver") / "log")
        assert process.stdin is not None
        process.stdin.close()

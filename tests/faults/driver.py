"""Trains in a fork for each job on standard input, and kills it at a stage of a save if asked to.

A job is a JSON line: ``log``, and either ``arguments`` (of the program, which runs in ``folder``)
or ``overrides`` and ``run_dir``; and perhaps ``kill``: the name of a stage, which save it is in and
which call of the stage in that save (from 1), or ``fill``: a file that takes what is free on its
disk when a save begins, but for some bytes, or ``largest_file``: bytes. The answers are the job's
process id, and at its end its exit status as the system gives it: -9 for one that was killed.
Loading torch once for all jobs saves most of the time; each fork is a process of its own, and a
signal to it is a real one.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

import mlpkit
from mlpkit import cli
from mlpkit.compose import compose
from mlpkit.training import train


def killer(kill: list[Any]) -> Callable[[str], None]:
    """Kills this process at a stage of a save."""
    name, save, call = kill
    count = {"save": 0, "call": 0}

    def stage(reached: str) -> None:
        if reached == "begin":
            count["save"] += 1
        if reached == name and count["save"] == save:
            count["call"] += 1
            if count["call"] == call:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)  # another thread than the main one lives on for a moment

    return stage


def filler(path: str, left: int) -> Callable[[str], None]:
    """Fills a disk when a save begins."""

    def stage(reached: str) -> None:
        if reached == "begin":
            disk = os.statvfs(Path(path).parent)
            Path(path).write_bytes(bytes(disk.f_bavail * disk.f_frsize - left))

    return stage


def work(job: dict[str, Any]) -> int:
    """Runs a job as the command line does; returns its exit code."""
    if "arguments" in job:
        os.chdir(job["folder"])
        sys.path.insert(0, job["folder"])
        return cli.main(job["arguments"])
    if limit := job.get("largest_file"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    stage = {"stage": killer(job["kill"])} if job.get("kill") else {}
    stage = {"stage": filler(*job["fill"])} if job.get("fill") else stage
    try:
        train(
            compose(job["overrides"]),
            run_dir=Path(job["run_dir"]),
            console=Console(width=300),
            **stage,
        )
    except Exception as error:
        if not hasattr(error, "exit_code"):
            traceback.print_exc()
        print(f"mlpkit: {error}", flush=True)
        return int(getattr(error, "exit_code", 1))
    return 0


def main() -> None:
    """Answers jobs until the input ends."""
    importlib.import_module("torch.distributed.checkpoint")
    mlpkit.describe([])  # torch imports a good part of itself on first use
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            code = 1
            try:
                log = os.open(job["log"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
                os.dup2(log, 1)
                os.dup2(log, 2)
                code = work(job)
            finally:
                sys.stdout.flush()
                os._exit(code)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()

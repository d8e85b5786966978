"""Starting a script in several processes, as torchrun does, and what became of each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """How one process ended: its exit code, what it printed, and after how many seconds."""

    code: int | None
    out: str
    err: str
    seconds: float


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clean_environment() -> dict[str, str]:
    ours = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "SLURM_", "TORCHELASTIC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "OMP_NUM_THREADS": "1"}


def launch(script: Path, arguments: Sequence[str], *, world: int, limit: float) -> list[Ended]:
    """Runs a script once for each rank; those that outlast the limit are killed: code None."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={
                **clean_environment(),
                **address,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    ended: dict[int, float] = {}
    while len(ended) < world and time.monotonic() - started < limit:
        for rank, process in enumerate(processes):
            if rank not in ended and process.poll() is not None:
                ended[rank] = time.monotonic() - started
        time.sleep(0.05)
    for process in processes:
        process.kill()
    found = [process.communicate() for process in processes]
    return [
        Ended(process.returncode if rank in ended else None, *found[rank], ended.get(rank, limit))
        for rank, process in enumerate(processes)
    ]

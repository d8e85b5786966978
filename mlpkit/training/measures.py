"""What a run measures of its process, its disk and its failure."""

from __future__ import annotations

import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

TAIL = 30  # lines of a failure's trace that are kept


class DiskSpaceError(ValueError):
    """A disk without room for what a run will write."""

    exit_code = 2


def free_bytes(path: Path) -> int:
    """The room on the disk that a path is, or will be, on."""
    existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free


def require_space(path: Path, needed: int) -> None:
    """Refuses a run that would fill its disk, before it takes hours to do so.

    Args:
        path: The run directory, which need not exist.
        needed: Bytes of the checkpoints and weights that it will hold at once.

    Raises:
        DiskSpaceError: There is less room.
    """
    if (free := free_bytes(path)) < needed:
        raise DiskSpaceError(
            f"{path} needs {needed:,} bytes for its checkpoints and weights, and {free:,} are free "
            "on its disk; make room, choose another run_dir, or keep none with "
            "training.checkpoint_every=0"
        )


def start_peak(device: torch.device) -> None:
    """Forgets the peak of earlier runs of this process, such as other jobs of a sweep."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak becomes what is used now
    except OSError:
        return


def peak_memory_bytes(device: torch.device) -> int | None:
    """The most memory that was used at once since ``start_peak``.

    Args:
        device: Where the model is: on CUDA what torch allocated there; on a CPU what the process
            had in memory, with Python and torch themselves.

    Returns:
        Bytes; None where the system does not say.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
        return int(peak) * 1024
    except (OSError, ValueError):
        return _peak_since_the_process_began()


def _peak_since_the_process_began() -> int | None:
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)


def failure(error: BaseException) -> dict[str, Any]:
    """A failure for a record: ``error`` in one line, and ``log_tail``, the end of its trace."""
    trace = "".join(traceback.format_exception(error)).splitlines()
    said = f"{type(error).__name__}: {error}".rstrip(": ")
    return {"error": " ".join(said.split()), "log_tail": trace[-TAIL:]}

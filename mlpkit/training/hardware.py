"""What machine a run is computed on, for its record."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from mlpkit.sizing import bytes_text


def hardware(device: torch.device) -> str:
    """Processor, its cores that this process may use, memory, and on CUDA the GPU.

    Args:
        device: What the model is trained on.

    Returns:
        As "AMD EPYC 7B13, 16 cores, 62.8 GiB, NVIDIA H200"; what the system does not say is left
        out.
    """
    count = cores()
    found = [processor(), f"{count} {'core' if count == 1 else 'cores'}", memory()]
    if device.type == "cuda":
        found.append(torch.cuda.get_device_name(device))
    return ", ".join(part for part in found if part)


def processor() -> str:
    """The processor's name; on Linux the one that it has for people."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may use: in a container or job often fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> str:
    """The machine's memory."""
    try:
        return bytes_text(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return ""

"""What this machine can do at most: matrix products and copies, measured in the same run."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from .clock import fastest

Peaks = dict[str, dict[str, float]]


def facts() -> dict[str, Any]:
    """The machine and the versions, for people who compare."""
    return {
        "processor": processor(),
        "device": device(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "mlpkit", "transformers")},
    }


def device() -> str:
    """Where the benchmarks run: "cuda" where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def processor() -> str:
    """The name of the GPU, or of the processor."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def version(distribution: str) -> str | None:
    """A distribution's version; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def dtypes() -> tuple[torch.dtype, ...]:
    """float32 and bfloat16; on a GPU what it trains in, which is bfloat16."""
    return (torch.bfloat16,) if device() == "cuda" else (torch.float32, torch.bfloat16)


def short(dtype: torch.dtype) -> str:
    """A dtype's name without torch's."""
    return str(dtype).removeprefix("torch.")


def peaks(size: int, rounds: int, budget: float) -> Peaks:
    """The fastest matrix product and copy of each dtype.

    Args:
        size: Rows and columns of the matrices; their copy must not fit into caches to tell of
            memory.
        rounds: Measurements of each.
        budget: Seconds for each dtype.

    Returns:
        dtype → ``flops`` per second (a multiply-add is 2) and ``bytes`` per second, read and
        written.
    """
    found = {}
    for dtype in dtypes():
        a, b = (torch.randn(size, size, device=device(), dtype=dtype) for _ in range(2))
        out, long = torch.empty_like(a), torch.empty(16 * size * size, device=device(), dtype=dtype)
        copy = torch.empty_like(long)
        calls = {
            "product": lambda a=a, b=b, out=out: torch.mm(a, b, out=out),
            "copy": lambda copy=copy, long=long: copy.copy_(long),
        }
        timings = fastest(calls, rounds=rounds, budget=budget, device=device())
        found[short(dtype)] = {
            "flops": 2 * size**3 / timings["product"].best,
            "bytes": 2 * long.numel() * long.element_size() / timings["copy"].best,
        }
    return found

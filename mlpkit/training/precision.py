"""Which device and number format a run uses, and why."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


class DeviceError(ValueError):
    """A device that this machine does not have."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Where and in which format matrix products are computed; parameters stay float32.

    Args:
        device: Where.
        dtype: float32, or bfloat16 by autocast.
        reason: Why, for people.
    """

    device: torch.device
    dtype: torch.dtype
    reason: str

    def autocast(self) -> AbstractContextManager[object]:
        """The context that a forward runs in."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def __str__(self) -> str:
        return f"{self.device.type}, {str(self.dtype).removeprefix('torch.')} ({self.reason})"


def choose_precision(device: str, precision: str) -> Precision:
    """The device and format that a configuration asks for.

    Args:
        device: "auto", "cpu" or "cuda".
        precision: "auto", "float32" or "bf16".

    Raises:
        DeviceError: CUDA is asked for and there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("training.device is 'cuda', but torch finds no CUDA device; use auto")
    chosen = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if precision != "auto":
        dtype, reason = _named(precision), f"training.precision={precision}"
    else:
        dtype, reason = _bf16_cuda() if chosen == "cuda" else _bf16_cpu()
    return Precision(device=torch.device(chosen), dtype=dtype, reason=reason)


def _named(precision: str) -> torch.dtype:
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _bf16_cuda() -> tuple[torch.dtype, str]:
    # Before compute capability 8.0 bfloat16 is emulated, and slower than float32.
    if torch.cuda.get_device_capability() >= (8, 0):
        return torch.bfloat16, "the GPU has bf16 in hardware"
    return torch.float32, "the GPU has no bf16 in hardware"


def _bf16_cpu() -> tuple[torch.dtype, str]:
    # newer than torch 2.6
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    for feature in ("amx_bf16", "avx512_bf16"):
        if capabilities.get(feature):
            return torch.bfloat16, f"the CPU has bf16 in hardware: {feature}"
    return torch.float32, "the CPU has no bf16 in hardware"

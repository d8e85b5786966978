"""Memory of a training step, in bytes: what each parameter costs, and the activations."""

from __future__ import annotations

from dataclasses import dataclass

FLOAT32 = 4  # bytes; parameters and optimizer state are float32 also under bf16 autocast
ADAMW_STATES = 2  # first and second moment; its step counters are 4 bytes a tensor, not counted
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes that one optimizer step needs at once; temporary buffers come on top.

    Args:
        weights: Of all parameters, float32.
        gradients: As many.
        optimizer: AdamW's two moments.
        activations: What the backward needs of one micro-batch's forward; None: unknown.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int | None

    @property
    def total(self) -> int:
        """All of it that is known."""
        return self.weights + self.gradients + self.optimizer + (self.activations or 0)


def training_memory(parameters: int, activations: int | None = None) -> Memory:
    """The memory of training all parameters with AdamW.

    Args:
        parameters: How many.
        activations: Bytes that the backward needs; None: unknown.
    """
    weights = FLOAT32 * parameters
    return Memory(
        weights=weights,
        gradients=weights,
        optimizer=ADAMW_STATES * weights,
        activations=activations,
    )


def bytes_text(size: int) -> str:
    """Bytes in the largest unit that gives at least 1: 3,145,728 is ``3.0 MiB``."""
    power = 0
    while power + 1 < len(UNITS) and size >= 1024 ** (power + 1):
        power += 1
    return f"{size / 1024**power:.1f} {UNITS[power]}" if power else f"{size} B"

"""A model in numbers, as a tree of text or as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlpkit.describe.parts import Part
from mlpkit.sizing import Memory, bytes_text, training_flops

Row = tuple[str, ...]  # what it is, parameters, active parameters, FLOPs


@dataclass(frozen=True, kw_only=True)
class Description:
    """A model in numbers.

    Args:
        ffn: What its FFN is, whatever the configuration called it.
        width: How the width of its FFN, or of its experts, came about.
        backend: How its experts are run, and why; empty without experts.
        batch_size: Sequences of an optimizer step.
        sequence_length: The length that attention's FLOPs are counted for.
        parts: Its parts from input to output.
        parameters: Of the whole model; a tied matrix is counted once.
        active_parameters: Those that one token uses, with all experts used equally often.
        active_range: The fewest and the most, by the types of experts that a token is sent to.
        flops_per_token: Forward, of the whole model, with all experts used equally often.
        flops_range: The fewest and the most.
        memory: Bytes of a training step.
        note: What a reader should know about the names; empty if nothing.
    """

    ffn: str
    width: str
    backend: str
    batch_size: int
    sequence_length: int
    parts: tuple[Part, ...]
    parameters: int
    active_parameters: int
    active_range: tuple[int, int]
    flops_per_token: int
    flops_range: tuple[int, int]
    memory: Memory
    note: str

    @property
    def training_flops_per_token(self) -> int:
        """Forward and backward."""
        return training_flops(self.flops_per_token)

    @property
    def training_flops_per_step(self) -> int:
        """Forward and backward of an optimizer step's tokens."""
        return self.training_flops_per_token * self.batch_size * self.sequence_length

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **asdict(self),
            "memory": {**asdict(self.memory), "total": self.memory.total},
            "training_flops_per_token": self.training_flops_per_token,
            "training_flops_per_step": self.training_flops_per_step,
        }

    def __str__(self) -> str:
        sums = (self.parameters, self.active_parameters, self.flops_per_token)
        rows: list[Row] = [("", "parameters", "active", "forward FLOPs/token"), *tree(self.parts)]
        rows.append(("total", *(f"{n:,}" for n in sums)))
        if self.active_parameters == self.parameters:
            rows = [(head, parameters, flops) for head, parameters, _, flops in rows]
        return "\n".join([*aligned(rows), *self.remarks()])

    def remarks(self) -> list[str]:
        """The lines below the tree."""
        lines = [
            f"training {self.training_flops_per_token:,} FLOPs/token at sequence length "
            f"{self.sequence_length}, {self.training_flops_per_step:.4g} FLOPs/step of "
            f"{self.batch_size} × {self.sequence_length} tokens",
            f"memory   {memory_text(self.memory)}",
        ]
        if self.backend:
            lines.append(f"experts  {self.backend}")
        for words, (low, high) in (
            ("parameters", self.active_range),
            ("forward FLOPs", self.flops_range),
        ):
            if low != high:
                lines.append(
                    f"range    a token uses {low:,} to {high:,} {words}, by its experts; shown is "
                    "the mean with all experts used equally often"
                )
        return [*lines, *([f"note: {self.note}"] if self.note else [])]


def tree(parts: tuple[Part, ...], stem: str = "") -> Iterator[Row]:
    """The rows of parts and of the parts in them, with branches."""
    for part in parts:
        last = part is parts[-1]
        times = f" ×{part.count}" if part.count > 1 else ""
        numbers = (part.parameters, part.active_parameters, part.flops)
        cells = [f"{n:,}" if n else "" for n in numbers]
        head = f"{stem}{'└─' if last else '├─'} {part.name}{times}  {part.detail}".rstrip()
        yield (head, *cells)
        below = f"{stem}{'   ' if last else '│  '}"
        if part.width:
            inner = "│  " if part.parts else "   "
            yield (f"{below}{inner}width {part.width}", "", "", "")
        yield from tree(part.parts, below)


def aligned(rows: Sequence[Sequence[str]], side: str = ">") -> list[str]:
    """Rows of cells as lines with equal columns.

    Args:
        rows: As many cells in each.
        side: Where the columns behind the first one stand: ">" to the right, as numbers do, or
            "<" to the left.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<", *(side for _ in widths[1:])]
    return [
        "  ".join(
            f"{cell:{to}{width}}" for cell, to, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def memory_text(memory: Memory) -> str:
    """The bytes of a training step in words."""
    known = (
        f"weights {bytes_text(memory.weights)} + gradients {bytes_text(memory.gradients)} + "
        f"AdamW {bytes_text(memory.optimizer)}"
    )
    if memory.activations is None:
        return f"{known} = {bytes_text(memory.total)}, and activations that cannot be estimated"
    return (
        f"{known} + activations {bytes_text(memory.activations)} in float32 = "
        f"{bytes_text(memory.total)}"
    )

"""The auto backend: experts in turn, or side by side where that was measured to be faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from mlpkit.experts.backends import Backend, Loop, Padded, Tensors, host_sizes

# What an expert's turn costs beyond its products, in multiply-adds of one row's forward, and what
# padding costs at all. Fitted to milliseconds of forward + backward on CPU, one thread, SwiGLU,
# random routing, minima of CPU time (torch 2.13); "normed" has an RMSNorm, so it is not grouped:
#   E  H   I   rows  dtype     loop  grouped  padded  gather | normed: loop  padded
#   8  128 192  256  float32    4.6      4.9     5.5     261 |          8.2     6.5
#   8  128 192 2048  float32   16.9     13.7    17.8       - |         18.1    17.6
#  64  128  64    8  float32    7.3      6.0     6.1     3.9 |          5.1     5.0
#  64  128  64  256  float32   20.6     10.1     7.6      61 |         23.4     5.9
#  64  128  64 2048  float32   31.7     13.8    12.2     986 |         25.1    12.6
#  64  128  64  256  bfloat16  27.7     17.7     7.7      47
#  64  128  64 2048  bfloat16  29.6     21.5    12.2     453
#  32  128 192 2048  float32   32.1     22.9    24.0
#  32  128 192 2048  bfloat16  28.5     24.0    21.5
#  64  256 128 2048  float32   45.9     29.1    46.3
#  64  256 128 2048  bfloat16  62.9     51.0    63.8
#  64  512 176 2048  float32  111.1     92.8   114.7
#  64  512 176 2048  bfloat16  99.4     64.0   106.1
#   8  512 704    8  float32   24.4     20.4    35.0     100
# gather wins by a hair for a few rows and loses by tens elsewhere, so it is taken only by name.
TURN = {
    ("loop", torch.float32): 2.4e6,
    ("loop", torch.bfloat16): 2.4e6,
    ("grouped", torch.float32): 1.0e6,
    ("grouped", torch.bfloat16): 2.0e6,
}
PADDING = 1.0e7
WIDEST = 75_000  # wider experts' products hide a turn's cost: see 64 × (256, 128)


@final
class Auto(Backend):
    """Runs experts in turn (grouped, or the loop), or side by side where that is faster.

    Args:
        template: The FFN whose code all experts share.
        in_turn: The way that runs one expert after the other.
        padded: The way that runs them side by side, or None where it cannot.
    """

    name = "auto"

    def __init__(
        self, template: nn.Module, in_turn: Backend | None = None, padded: Padded | None = None
    ) -> None:
        super().__init__(template)
        self.in_turn = in_turn or Loop(template)
        self.padded = padded

    def __call__(self, tensors: Tensors, rows: Tensor, counts: Tensor) -> Tensor:
        """Picks a way and runs the experts; see Backend."""
        way = self.in_turn
        # Only CPUs were measured, and a compiler must know the padded size before the routing.
        if self.padded is not None and rows.device.type == "cpu":
            sizes = host_sizes(counts)
            if sizes is not None and not torch.compiler.is_compiling():
                way = self.pick(sizes, row_cost(tensors), rows.dtype)
        return way(tensors, rows, counts)

    def pick(self, sizes: Sequence[int], cost: int, dtype: torch.dtype) -> Backend:
        """The faster way, as far as measured.

        Args:
            sizes: Rows of each expert.
            cost: Multiply-adds of one row's forward.
            dtype: Of the rows; one that was not measured is taken as float32.
        """
        if self.padded is None or cost > WIDEST:
            return self.in_turn
        name = self.in_turn.name
        turn = TURN.get((name, dtype), TURN[name, torch.float32])
        spare = len(sizes) * max(sizes) - sum(sizes)
        in_turn = turn * sum(size > 0 for size in sizes)
        return self.padded if PADDING + spare * cost < in_turn else self.in_turn

    def train(self, mode: bool) -> None:
        """Switches the code of every way between training and evaluation."""
        super().train(mode)
        for way in (self.in_turn, self.padded):
            if way is not None:
                way.train(mode)


def row_cost(tensors: Tensors) -> int:
    """Multiply-adds of one row's forward: one for each weight of an expert's matrices."""
    return sum(t[0].numel() for t in tensors.values() if t.ndim > 2)

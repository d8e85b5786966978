"""The auto backend: experts in turn, or side by side where that was measured to be faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from mlpkit.experts.backends import Backend, Loop, Padded, Tensors, host_sizes
from mlpkit.experts.shapes import computed_in


class Price(NamedTuple):
    """What decides between experts in turn and side by side, in multiply-adds of a row's forward.

    Args:
        turn: What an expert's turn costs beyond its products.
        padding: What padding costs at all.
    """

    turn: float
    padding: float


# Fitted by ``mlpkit bench backends``: the prices that lose the least time over 60 cases in each
# dtype (five sizes, 1 to 2,048 tokens, forward and forward + backward; one thread, torch 2.13,
# AVX512-bf16 and AMX, freed memory kept). Milliseconds of some, forward + backward, SwiGLU:
#   E  H   I    tokens  K  float32: in turn  side by side | bfloat16: in turn  side by side
#   64 128  64      32  8               6.5           4.0 |              27.9           4.7
#   64 128  64    2048  8              35.7          53.3 |              34.7          25.9
#   64 512 256      32  8              38.0          42.1 |              49.0          26.9
#   64 512 256    2048  8             404.5         557.7 |             125.9         241.9
#    8 128 192    2048  2              19.3          22.9 |              11.5          10.9
# These lose less than 2 % on average to the faster way. Always in turn would lose 4 % in float32
# and 54 % in bfloat16, whose products take 30 µs to start; always side by side 35 % and 9 %.
PRICES = {
    ("grouped", torch.float32): Price(5.6e5, 5e6),
    ("grouped", torch.bfloat16): Price(1e7, 1e7),
    ("loop", torch.float32): Price(2.4e6, 1e7),
    ("loop", torch.bfloat16): Price(2.4e6, 1e7),
}
IDLE = 10  # rows that reading the weights of an expert without rows costs
WIDEST = 75_000  # a wider expert, run by vmap, gains nothing: its products hide a turn's cost


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
                way = self.pick(sizes, row_cost(tensors), computed_in(rows))
        return way(tensors, rows, counts)

    def pick(self, sizes: Sequence[int], cost: int, dtype: torch.dtype) -> Backend:
        """The faster way, as far as measured.

        Args:
            sizes: Rows of each expert.
            cost: Multiply-adds of one row's forward.
            dtype: Of the rows; one that was not measured is taken as float32.
        """
        if self.padded is None:
            return self.in_turn
        name = self.in_turn.name
        price = PRICES.get((name, dtype), PRICES[name, torch.float32])
        active = sum(size > 0 for size in sizes)
        spare = len(sizes) * max(sizes) - sum(sizes) + IDLE * (len(sizes) - active)
        worth = price.padding + spare * cost < price.turn * active
        return self.padded if worth else self.in_turn

    def train(self, mode: bool) -> None:
        """Switches the code of every way between training and evaluation."""
        super().train(mode)
        for way in (self.in_turn, self.padded):
            if way is not None:
                way.train(mode)


def row_cost(tensors: Tensors) -> int:
    """Multiply-adds of one row's forward: one for each weight of an expert's matrices."""
    return sum(t.shape[1:].numel() for t in tensors.values() if t.ndim > 2)

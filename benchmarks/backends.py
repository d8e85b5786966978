"""The prices of the auto backend, fitted to what its ways take on this machine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mlpkit.experts import Experts, Grouped, Padded
from mlpkit.experts.auto import IDLE, row_cost
from mlpkit.experts.backends import Backend
from mlpkit.ffns import GatedFFN

from .cases import Case, Effort
from .clock import Call, fastest
from .machine import device, dtypes, short
from .mixtures import Shape

SHAPES = (
    Shape(128, 64, 64, 8),
    Shape(512, 256, 64, 8),
    Shape(512, 1408, 8, 2),
    Shape(128, 192, 8, 2),
    Shape(256, 128, 32, 4),
)
TOKENS = (1, 8, 32, 128, 512, 2048)
TURNS = [10 ** (power / 8) for power in range(40, 68)]
PADDINGS = (0.0, 1e6, 2e6, 5e6, 1e7, 2e7, 4e7)
IN_TURN, SIDE_BY_SIDE = "mlpkit in turn", "mlpkit side by side"


class Seen(NamedTuple):
    """One measurement: what the choice may look at, and what either way took."""

    cost: int
    spare: int  # rows of padding, idle experts included
    active: int
    in_turn: float
    side_by_side: float


class Fit(NamedTuple):
    """Prices, and the mean of log(time of the way they choose / time of the faster way)."""

    regret: float
    turn: float
    padding: float


def run(effort: Effort) -> Iterator[Case]:
    """Times both ways over sizes and loads, then says which constants lose the least time."""
    shapes = (Shape(16, 16, 4, 2),) if effort.quick else SHAPES
    for dtype in dtypes():
        seen: list[Seen] = []
        for shape, tokens in itertools.product(shapes, TOKENS[:2] if effort.quick else TOKENS):
            for backward in (False, True):
                found, case = measured(shape, tokens, dtype, backward, effort)
                seen.append(found)
                yield case
        best = fitted(seen)
        yield Case(
            part="backends",
            title=(
                f"{short(dtype)}: Price({best.turn:.2g}, {best.padding:.2g}) loses "
                f"{math.expm1(best.regret):.1%} on average to the faster way"
            ),
            values={
                "mlpkit always in turn": math.exp(regret(seen, math.inf, math.inf)),
                "mlpkit always side by side": math.exp(regret(seen, math.inf, 0.0)),
                "mlpkit by these prices": math.exp(best.regret),
            },
            unit="times the faster way",
            facts={"dtype": short(dtype), **best._asdict()},
        )


def measured(
    shape: Shape, tokens: int, dtype: torch.dtype, backward: bool, effort: Effort
) -> tuple[Seen, Case]:
    """Both ways on random routings."""
    experts = Experts(copies(shape), backend="grouped").to(device(), dtype)
    template, tensors = experts._template[0], experts.tensors()
    ways: dict[str, Backend] = {
        IN_TURN: Grouped(template),
        SIDE_BY_SIDE: Padded(template, grouped=Grouped(template)),
    }
    chosen = [torch.randperm(shape.experts)[: shape.per_token] for _ in range(tokens)]
    counts = torch.bincount(torch.cat(chosen), minlength=shape.experts).to(device())
    rows = torch.randn(int(counts.sum()), shape.hidden, device=device(), dtype=dtype)
    rows.requires_grad_(backward)
    calls = {name: expert_call(way, tensors, rows, counts) for name, way in ways.items()}
    with torch.set_grad_enabled(backward):
        timings = fastest(calls, rounds=effort.rounds, budget=effort.budget / 4, device=device())
    active, most = int((counts > 0).sum()), int(counts.max())
    spare = shape.experts * most - len(rows) + IDLE * (shape.experts - active)
    took = {name: timing.best for name, timing in timings.items()}
    case = Case(
        part="backends",
        title=f"E {shape.experts}, H {shape.hidden}, I {shape.width}, {tokens} tokens, "
        f"{short(dtype)}, {'forward + backward' if backward else 'forward'}",
        values=took,
        facts={"spare_rows": spare, "active_experts": active, "dtype": short(dtype)},
        kept=sum(timing.kept for timing in timings.values()),
        discarded=sum(timing.discarded for timing in timings.values()),
    )
    return Seen(row_cost(tensors), spare, active, took[IN_TURN], took[SIDE_BY_SIDE]), case


def copies(shape: Shape) -> list[nn.Module]:
    """E SwiGLUs."""
    return [
        GatedFFN(hidden_size=shape.hidden, intermediate_size=shape.width, activation=nn.SiLU())
        for _ in range(shape.experts)
    ]


def expert_call(way: Backend, tensors: dict[str, Tensor], rows: Tensor, counts: Tensor) -> Call:
    """A way on rows; with a backward where the rows want a gradient."""

    def call() -> None:
        out = way(tensors, rows, counts)
        if rows.requires_grad:
            for tensor in (*tensors.values(), rows):
                tensor.grad = None
            out.backward(torch.ones_like(out))

    return call


def fitted(seen: Sequence[Seen]) -> Fit:
    """The prices with the least regret, over a grid; among equal ones the lowest."""
    prices = itertools.product(TURNS, PADDINGS)
    return min(Fit(regret(seen, turn, padding), turn, padding) for turn, padding in prices)


def regret(seen: Sequence[Seen], turn: float, padding: float) -> float:
    """The mean of log(chosen / faster) that these prices give.

    Args:
        seen: Measurements.
        turn: What an expert's turn costs; infinite with an infinite padding: always in turn.
        padding: What padding costs at all.
    """
    lost = 0.0
    for one in seen:
        aside = padding + one.spare * one.cost < turn * one.active
        took = one.side_by_side if aside else one.in_turn
        lost += math.log(took / min(one.in_turn, one.side_by_side))
    return lost / len(seen)

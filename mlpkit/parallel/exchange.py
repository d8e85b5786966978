"""Exchange: rows go to the process that holds their expert, and their outputs come back."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from mlpkit.experts.backends import Tensors
from mlpkit.experts.stack import Run
from mlpkit.parallel.collectives import exchange_rows, with_divided_gradient


class Trip(NamedTuple):
    """How many rows go where, and in which order they are computed there.

    Args:
        given: Rows that this process gives to each.
        taken: Rows that it takes from each.
        order: Of the taken rows, sorted by process and then expert, those sorted by expert.
        counts: (E / processes,) int64, taken rows of each of its experts.
    """

    given: list[int]
    taken: list[int]
    order: Tensor
    counts: Tensor


@final
class Exchange:
    """What an expert stack's ``exchange`` is when its experts are spread over processes.

    Args:
        group: The processes; the first holds the first experts, and so on, all as many.
    """

    def __init__(self, *, group: dist.ProcessGroup) -> None:
        self.group = group
        self.size = dist.get_world_size(group)

    # A compiler leaves it outside of its graphs: how much travels is known only when it runs.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, run: Run, tensors: Tensors, rows: Tensor, counts: Tensor) -> Tensor:
        """Computes (N, H) rows, sorted by expert, wherever their experts are.

        Args:
            run: Computes rows of the experts that are here.
            tensors: Their tensors.
            rows: (N, H), sorted by expert.
            counts: (E,) int64 over all experts; their sum is at most N.

        Returns:
            (N, H); zeros for the rows past the last expert's.
        """
        trip = self.plan(counts)
        sent, rest = torch.split(rows, [sum(trip.given), len(rows) - sum(trip.given)])
        there = exchange_rows(sent, taken=trip.taken, given=trip.given, group=self.group)
        done = run(self.averaged(tensors), there.index_select(0, trip.order), trip.counts)
        back = done.index_select(0, _inverse(trip.order))
        out = exchange_rows(back, taken=trip.given, given=trip.taken, group=self.group)
        return torch.cat([out, torch.zeros_like(rest, dtype=out.dtype)])

    def plan(self, counts: Tensor) -> Trip:
        """What this process gives and takes, from everyone's counts.

        Args:
            counts: (E,) int64, this process's rows of all experts.
        """
        each = len(counts) // self.size
        even = [each] * self.size
        theirs = exchange_rows(counts, taken=even, given=even, group=self.group)
        given = counts.view(self.size, each).sum(1)  # (P,)
        taken = theirs.view(self.size, each)  # (P, E / P)
        expert = torch.arange(each, device=counts.device).repeat(self.size)
        order = expert.repeat_interleave(theirs).argsort(stable=True)
        numbers = torch.stack([given, taken.sum(1)]).tolist()  # one wait for the device, not two
        return Trip(numbers[0], numbers[1], order, taken.sum(0))

    def averaged(self, tensors: Tensors) -> Tensors:
        """The tensors, their gradients divided by the processes whose rows they see."""
        # Each process's loss is its own mean. What is no expert gets the mean of the processes'
        # gradients; an expert has already summed those of its group.
        known: dict[int, Tensor] = {}
        for tensor in tensors.values():
            if id(tensor) not in known:
                # a compiler that traced the caller hands the DTensors over as they are
                part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                trained = part.requires_grad
                known[id(tensor)] = with_divided_gradient(part, self.size) if trained else part
        return {name: known[id(tensor)] for name, tensor in tensors.items()}


def _inverse(order: Tensor) -> Tensor:
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return back

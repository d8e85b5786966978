"""Tap: what a record hangs into one MoE layer to receive its routings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from mlpkit.routing.triples import Routing


@torch.library.custom_op("mlpkit::outside_backward", mutates_args=())
def outside_backward(logits: Tensor) -> Tensor:
    """1 in a forward, 0 where a checkpoint recomputes it: a question only the run can answer.

    As an operator it is asked each time a compiled graph runs, not once when it is traced.
    """
    return logits.new_full((), int(not in_backward()), dtype=torch.int64)


@outside_backward.register_fake
def _(logits: Tensor) -> Tensor:
    return logits.new_empty((), dtype=torch.int64)


def in_backward() -> bool:
    """Whether the autograd engine is running, as it is when a checkpoint recomputes."""
    return torch._C._current_graph_task_id() != -1


class Entry(NamedTuple):
    """One call of one layer.

    Args:
        routing: What its router decided.
        training: Whether the layer was in training mode.
        live: None, or from a compiled graph 0-dim int64: 0 for a recomputation.
    """

    routing: Routing
    training: bool
    live: Tensor | None

    def counts(self) -> bool:
        """Whether this is a forward and not its recomputation."""
        return self.live is None or bool(self.live)


class Tap:
    """What a record hangs into one layer; the layer calls it with each routing.

    It reads nothing that differs from layer to layer, so that compiled layers share one graph,
    and it touches no hook, so that a model compiled before the record opened is recorded too.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.balance: Mapping[str, Any] = getattr(layer, "balance", None) or {}
        self.mask: Tensor | None = None  # what the record's mask says about padding
        self.unread: list[Entry] = []  # calls whose terms still have to reach a loss
        self.latest: Entry | None = None
        self.train_load: Tensor | None = None
        self.eval_load: Tensor | None = None
        self.step_load: Tensor | None = None  # training counts since the last bias update

    def __call__(self, routing: Routing) -> None:
        """Keeps a routing and counts its load, unless a checkpoint is recomputing it."""
        counts, live = routing.load(self.mask), None
        if torch.compiler.is_compiling():
            live = outside_backward(routing.logits.detach())
            counts = counts * live
        elif in_backward():
            return
        entry = Entry(routing, self.layer.training, live)
        if self.balance and routing.logits.requires_grad:
            self.unread.append(entry)
        else:  # nothing to lose: keeping one bounds the memory of a long evaluation
            self.latest = entry
        if entry.training:
            self.train_load = added(self.train_load, counts)
            self.step_load = added(self.step_load, counts)
        else:
            self.eval_load = added(self.eval_load, counts)

    def read(self) -> list[Entry]:
        """The calls since the last reading, which are forgotten here."""
        entries = self.unread or [entry for entry in (self.latest,) if entry is not None]
        self.unread, self.latest = [], None
        return [entry for entry in entries if entry.counts()]


def added(total: Tensor | None, counts: Tensor) -> Tensor:
    """The running total with more counts; None is nothing yet."""
    return counts if total is None else total + counts


def taps_of(layer: nn.Module) -> list[Any]:
    """The list of callables that a layer hands its routing to."""
    return cast(list[Any], vars(layer)["taps"])

"""What a run does for its MoE layers: balance losses, bias updates, and the health of the load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mlpkit.balance import update_router_bias
from mlpkit.moe import expert_capacity
from mlpkit.parallel import OneProcess, Parallel
from mlpkit.routing import (
    Record,
    Routing,
    complementary_collapse,
    confidence,
    dead_experts,
    dropped_share,
    load_cv,
    load_entropy,
    max_violation,
    max_violation_share,
    record_routing,
    routing_entropy,
)


class Mixture:
    """The routing of one model in training.

    The record is open while training forwards run and closed in between: validation and
    sampling leave the counts, and the routers' bias, as they are.

    Args:
        model: A model with MoE layers.
        parallel: The processes that share its batches; None: this one alone.
    """

    def __init__(self, model: nn.Module, parallel: Parallel | None = None) -> None:
        self.model, self.parallel = model, parallel or OneProcess()
        with record_routing(model) as record:
            self.record: Record = record
        self.terms: dict[str, float] = {}
        self.limited = [name for name, layer in record.layers.items() if _has_capacity(layer)]
        self.kept = self.chosen = 0  # choices of limited layers since the last health
        self.certainty: dict[str, float] = {}  # of the step before a resume

    def __enter__(self) -> Mixture:
        self.terms = {}
        self.record.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.record.close()

    def losses(self, share: float) -> Tensor | float:
        """What the last forward's balance terms add to the loss.

        Args:
            share: The forward's share of the step's tokens.

        Raises:
            NoRouterGradientError: A configured term would not reach its router.
        """
        losses = self.record.losses()
        self._count_dropped()
        for name, value in losses.items():
            key = f"balance_{name}"
            self.terms[key] = self.terms.get(key, 0.0) + share * value.item()
        return sum(losses.values(), start=0.0) * share

    def after_step(self) -> None:
        """Moves selection biases, once per optimizer step."""
        update_router_bias(self.model, self.record)

    def health(self) -> dict[str, Any]:
        """The load since the last call, and how sure the routers were in the last forward.

        Returns:
            ``max_violation`` of the worst layer (Wang 2024, arXiv:2408.15664) and its share of
            the ceiling E/K - 1, ``load_cv`` and ``load_entropy`` of the worst layer,
            ``complementary_collapse`` over layers of equal E, ``dead_experts``, ``num_experts``,
            ``router_entropy`` in nats and ``router_confidence`` as means over layers,
            ``dropped_share`` of all choices in layers with a capacity, and ``load``: layer name
            to tokens per expert. Empty when nothing was trained.
        """
        loads = self.parallel.reduce_load(self.record.load(training=True))
        self.record.reset()
        dropped = {"dropped_share": dropped_share(*self._choices(), 1)}
        self.kept, self.chosen = 0, 0
        if not loads:
            return {}
        layers: dict[str, Any] = {**self.record.layers}
        per_token = {name: layers[name].router.num_experts_per_tok for name in loads}
        return {
            "max_violation": max(max_violation(load) for load in loads.values()),
            "max_violation_share": max(
                max_violation_share(load, per_token[name]) for name, load in loads.items()
            ),
            "load_cv": max(load_cv(load) for load in loads.values()),
            "load_entropy": min(load_entropy(load) for load in loads.values()),
            **self._across_layers(list(loads.values())),
            **self._certainty(),
            **(dropped if self.limited else {}),
            "dead_experts": sum(len(dead_experts(load)) for load in loads.values()),
            "num_experts": sum(load.numel() for load in loads.values()),
            "load": {name: load.tolist() for name, load in loads.items()},
        }

    def state(self) -> dict[str, Any]:
        """What ``health`` looks at, of all processes, as plain values for a checkpoint."""
        loads = self.parallel.reduce_load(self.record.load(training=True))
        kept, chosen = self._choices()
        return {
            "load": {name: load.tolist() for name, load in loads.items()},
            "kept": kept,
            "chosen": chosen,
            "certainty": self._certainty(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a ``state``."""
        device = next(self.model.parameters()).device
        # The counts of all processes are the main one's from here on: they are added up again.
        mine = int(self.parallel.is_main)
        load = {
            name: mine * torch.tensor(counts, device=device)
            for name, counts in state["load"].items()
        }
        self.record.restore(load)
        self.kept, self.chosen = mine * state["kept"], mine * state["chosen"]
        self.certainty = state["certainty"]

    def _count_dropped(self) -> None:
        if not self.limited:
            return
        routings = self.record.routings()
        for name in self.limited:
            for routing in routings.get(name, ()):
                self.kept += kept_choices(self.record.layers[name], routing)
                self.chosen += routing.expert.numel()

    def _choices(self) -> tuple[int, int]:
        """The kept and the chosen of all processes."""
        if not self.limited:
            return 0, 0
        return int(self.parallel.total(self.kept)), int(self.parallel.total(self.chosen))

    def _across_layers(self, loads: list[Tensor]) -> dict[str, float]:
        if len(loads) < 2 or len({load.numel() for load in loads}) > 1:
            return {}
        return {"complementary_collapse": complementary_collapse(torch.stack(loads))}

    def _certainty(self) -> dict[str, float]:
        scores = [r.scores for calls in self.record.routings().values() for r in calls]
        if not scores:
            return self.certainty
        # the processes have as many tokens each: the mean of their means is that of all tokens
        return {
            "router_entropy": self._mean(map(routing_entropy, scores)),
            "router_confidence": self._mean(map(confidence, scores)),
        }

    def _mean(self, values: Iterable[float]) -> float:
        numbers = list(values)
        return self.parallel.mean(sum(numbers) / len(numbers))


def kept_choices(layer: nn.Module, routing: Routing) -> int:
    """How many choices of a forward are computed: those that find room in their expert.

    The tap of a layer sees a routing before capacity takes choices away, and its policy decides
    which go, not how many.

    Args:
        layer: The MoE.
        routing: What its router decided.
    """
    if not _has_capacity(layer):
        return routing.expert.numel()
    factor: Any = layer.capacity_factor
    capacity = expert_capacity(routing.expert.numel(), routing.num_experts, factor)
    return int(routing.load().clamp(max=capacity).sum())


def _has_capacity(layer: nn.Module) -> bool:
    return getattr(layer, "capacity_factor", None) is not None

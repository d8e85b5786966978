"""What a run does for its MoE layers: balance losses, bias updates, and the health of the load."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mlpkit.balance import update_router_bias
from mlpkit.routing import (
    Record,
    complementary_collapse,
    confidence,
    dead_experts,
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
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        with record_routing(model) as record:
            self.record: Record = record
        self.terms: dict[str, float] = {}

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
            ``router_entropy`` in nats and ``router_confidence`` as means over layers, and
            ``load``: layer name to tokens per expert. Empty when nothing was trained.
        """
        loads = self.record.load(training=True)
        self.record.reset()
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
            "dead_experts": sum(len(dead_experts(load)) for load in loads.values()),
            "num_experts": sum(load.numel() for load in loads.values()),
            "load": {name: load.tolist() for name, load in loads.items()},
        }

    def _across_layers(self, loads: list[Tensor]) -> dict[str, float]:
        if len(loads) < 2 or len({load.numel() for load in loads}) > 1:
            return {}
        return {"complementary_collapse": complementary_collapse(torch.stack(loads))}

    def _certainty(self) -> dict[str, float]:
        scores = [r.scores for calls in self.record.routings().values() for r in calls]
        if not scores:
            return {}
        return {
            "router_entropy": sum(map(routing_entropy, scores)) / len(scores),
            "router_confidence": sum(map(confidence, scores)) / len(scores),
        }

"""What a run does for its MoE layers: balance losses, bias updates, and the health of the load."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mlpkit.balance import update_router_bias
from mlpkit.routing import (
    Record,
    dead_experts,
    load_cv,
    max_violation,
    max_violation_share,
    record_routing,
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
        """The load since the last call: worst MaxVio of a layer, dead experts, spread.

        MaxVio is (largest load - mean) / mean (Wang 2024, arXiv:2408.15664); its share is over
        the largest value that it can have, E/K - 1.
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
            "dead_experts": sum(len(dead_experts(load)) for load in loads.values()),
            "num_experts": sum(load.numel() for load in loads.values()),
            "load": {name: load.tolist() for name, load in loads.items()},
        }

"""Watching the MoE layers of a model read validation text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from mlpkit.data import Dataset
from mlpkit.data.batches import val_batches
from mlpkit.routing import (
    Routing,
    confidence,
    max_violation,
    record_routing,
    routing_entropy,
)
from mlpkit.routing.health import shares
from mlpkit.training.mixture import kept_choices
from mlpkit.training.mixture_analysis.counts import Floats, Ints
from mlpkit.training.precision import Precision


@dataclass(kw_only=True)
class Observed:
    """What one layer chose, over all batches.

    Args:
        layer: The MoE.
        num_experts: E.
        tokens: The token of each choice, batch by batch.
        experts: The expert of each choice, batch by batch.
        kept: How many choices capacity left.
        num_tokens: T.
        entropy: Sum over tokens of the entropy of a token's scores, nats.
        confidence: Sum over tokens of the share of the best expert.
        violations: MaxVio of each batch.
        share: Sum over tokens of the experts' shares of the score, (E,).
    """

    layer: nn.Module
    num_experts: int
    tokens: list[Ints] = field(default_factory=list)
    experts: list[Ints] = field(default_factory=list)
    kept: int = 0
    num_tokens: int = 0
    entropy: float = 0.0
    confidence: float = 0.0
    violations: list[float] = field(default_factory=list)
    share: Floats = field(default_factory=lambda: np.zeros(1))

    @property
    def token(self) -> Ints:
        """The token of each choice, (N,), counted from the first validation token."""
        return np.concatenate(self.tokens)

    @property
    def expert(self) -> Ints:
        """The expert of each choice, (N,)."""
        return np.concatenate(self.experts)

    def add(self, routing: Routing, offset: int) -> None:
        """Takes in the routing of a batch.

        Args:
            routing: What the router decided.
            offset: The number of tokens in earlier batches.
        """
        size = routing.num_tokens
        self.tokens.append(routing.token.cpu().numpy() + offset)
        self.experts.append(routing.expert.cpu().numpy())
        self.kept += kept_choices(self.layer, routing)
        self.num_tokens += size
        self.entropy += routing_entropy(routing.scores) * size
        self.confidence += confidence(routing.scores) * size
        self.violations.append(max_violation(routing.load()))
        self.share = self.share + shares(routing.scores).sum(0).cpu().numpy()


def observe(
    model: nn.Module,
    dataset: Dataset,
    *,
    precision: Precision,
    batch_size: int,
    sequence_length: int,
    max_tokens: int,
) -> dict[str, Observed]:
    """What each MoE layer chooses for the first validation tokens, in evaluation mode.

    Args:
        model: The model; it is in the mode it was afterwards.
        dataset: The tokens.
        precision: Where and how to compute.
        batch_size: Sequences at once.
        sequence_length: Tokens a sequence.
        max_tokens: How many tokens at most, rounded to whole batches, at least one.

    Returns:
        Layer name to what it chose, for the layers that ran.
    """
    batches = val_batches(
        dataset,
        batch_size=batch_size,
        sequence_length=sequence_length,
        max_batches=max(1, max_tokens // (batch_size * sequence_length)),
    )
    seen: dict[str, Observed] = {}
    offset = 0
    with evaluating(model), torch.inference_mode(), record_routing(model) as record:
        for batch in batches:
            with precision.autocast():
                model(batch.inputs.to(precision.device))
            for name, calls in record.routings().items():
                empty = Observed(layer=record.layers[name], num_experts=calls[-1].num_experts)
                seen.setdefault(name, empty).add(calls[-1], offset)
            offset += batch.inputs.numel()
    return seen


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A block in evaluation mode and without compiled code, which the taps would compile anew."""
    was_training = model.training
    model.eval()
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        model.train(was_training)

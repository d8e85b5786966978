"""What upcycling changed, measured: the largest difference of every layer and of the logits."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from mlpkit.convert.upcycling.parts import TOLERANCE, positions
from mlpkit.model import Decoder
from mlpkit.moe import MoE

POSITIONS = 64
TOKENS = (2, 32)  # of the batch whose logits are compared


@dataclass(frozen=True, kw_only=True)
class LayerReceipt:
    """One layer.

    Args:
        layer: Its number, from 0.
        experts: How many.
        parts: In how many of them a copy of the dense FFN stands.
        scale: What the router's weights were multiplied by.
        weight_sum: How often a token's weights count the dense FFN: least and most.
        difference: The largest of |MoE − dense| over random positions, in float64.
        relative: That over the largest output of the dense FFN.
        reasons: Why it is not 0; empty if nothing is against it.
    """

    layer: int
    experts: int
    parts: int
    scale: float
    weight_sum: tuple[float, float]
    difference: float
    relative: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What upcycling changed.

    Args:
        layers: Those that became mixtures.
        logits_difference: The largest of |after − before| over a random batch, in the model's
            precision.
        largest_logit: The largest size of a logit before, to compare with.
        parameters: Before and after.
    """

    layers: tuple[LayerReceipt, ...]
    logits_difference: float
    largest_logit: float
    parameters: tuple[int, int]

    @property
    def preserved(self) -> bool:
        """Whether every layer computes what it did, up to rounding in float64."""
        return all(layer.relative <= TOLERANCE and not layer.reasons for layer in self.layers)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the function is another one, each once."""
        found = [reason for layer in self.layers for reason in layer.reasons]
        if not self.preserved and not found:
            found = ["the outputs differ, and none of the known reasons applies"]
        return tuple(dict.fromkeys(found))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "preserved": self.preserved, "reasons": list(self.reasons)}

    def __str__(self) -> str:
        first = self.layers[0]
        split = f", the FFN split into {first.parts}" if first.parts > 1 else ""
        scale = f", router weights times {first.scale:g}" if first.scale != 1 else ""
        worst = max(self.layers, key=lambda layer: layer.relative)
        verdict = "the same function" if self.preserved else "another function"
        return "\n".join(
            [
                f"layers     {len(self.layers)} of {first.experts} experts each{split}{scale}",
                f"parameters {self.parameters[0]:,} → {self.parameters[1]:,}",
                f"logits     differ by at most {self.logits_difference:.3g} "
                f"(the largest is {self.largest_logit:.3g})",
                f"FFNs       differ by at most {worst.difference:.3g} in float64, "
                f"{worst.relative:.2g} of the largest output (layer {worst.layer})",
                f"receipt    {verdict}{''.join(f'; {reason}' for reason in self.reasons)}",
            ]
        )


@torch.no_grad()
def ffn_difference(dense: nn.Module, moe: MoE) -> tuple[float, float]:
    """The largest |MoE − dense| in float64, and that over the largest output."""
    x = positions(POSITIONS, moe.hidden_size)
    before, after = (copy.deepcopy(module).double().eval() for module in (dense, moe))
    wanted = before(x)
    difference = float((after(x) - wanted).abs().max())
    return difference, difference / max(float(wanted.abs().max()), 1e-30)


@torch.no_grad()
def logits_difference(before: Decoder, after: Decoder) -> tuple[float, float]:
    """The largest |after − before| of a random batch's logits, and the largest |before|."""
    weight = before.embed_tokens.weight
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(weight.shape[0], TOKENS, generator=generator).to(weight.device)
    modes = [model.training for model in (before, after)]
    first, second = (model.eval()(tokens).double() for model in (before, after))
    for model, training in zip((before, after), modes, strict=True):
        model.train(training)
    return float((second - first).abs().max()), float(first.abs().max())

"""SparseMixerRouter: PhiMoE's router, whose every choice is a softmax over its near rivals."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from mlpkit.routers.base import Router, init_weight, router_logits, token_choice
from mlpkit.routers.topk import in_range
from mlpkit.routing import Routing


@final
class SparseMixerRouter(Router):
    """SparseMixer-v2's deterministic path (PhiMoE, arXiv:2409.12136).

    Choice j is the best expert not chosen yet; its weight is its share in a softmax over the
    experts not chosen yet whose logit is within a relative distance of 2·jitter of it. The
    weights of a token do not sum to 1. Training takes this path too, with plain gradients: the
    paper's sampled choice and its Heun estimator are not part of it.

    Args:
        hidden_size: H.
        num_experts: E.
        num_experts_per_tok: K, in [1, E].
        jitter: Half the relative distance, in [0, 1).
        apply_on: "output" or "input" of the experts.

    Raises:
        RouterError: Sizes or options out of range.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        num_experts: int,
        num_experts_per_tok: int,
        jitter: float = 0.01,
        apply_on: str = "output",
    ) -> None:
        super().__init__(
            num_experts=num_experts, num_experts_per_tok=num_experts_per_tok, apply_on=apply_on
        )
        in_range("jitter", jitter, 0.0, 1.0)
        self.jitter = jitter
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weight."""
        init_weight(self.weight)

    def forward(self, x: Tensor) -> Routing:
        """Maps (T, H) to T·K triples in token-major order."""
        logits = router_logits(x, self.weight, None, "float32")  # (T, E)
        remaining, experts, weights = logits, [], []
        for _ in range(self.num_experts_per_tok):
            expert = remaining.argmax(-1, keepdim=True)  # (T, 1)
            rivals = remaining.masked_fill(self.far(logits, expert), float("-inf"))
            weights.append(rivals.softmax(-1).gather(-1, expert))
            experts.append(expert)
            remaining = remaining.scatter(-1, expert, float("-inf"))
        expert, weight = torch.cat(experts, -1), torch.cat(weights, -1)  # (T, K)
        return token_choice(expert, weight, logits, logits.softmax(-1))

    @torch.no_grad()
    def far(self, logits: Tensor, expert: Tensor) -> Tensor:
        """Which experts are too far below the chosen one to share its softmax: (T, E) bool."""
        best = logits.gather(-1, expert)  # (T, 1)
        scale = torch.maximum(logits.abs(), best)
        return (best - logits) / scale > 2 * self.jitter

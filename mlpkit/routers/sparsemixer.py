"""SparseMixerRouter: PhiMoE's router, whose every choice is a softmax over its near rivals."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from mlpkit.routers.base import Router, in_range, init_weight, router_logits, token_choice
from mlpkit.routing import Routing


@final
class SparseMixerRouter(Router):
    """SparseMixer-v2 (PhiMoE, arXiv:2409.12136; Liu 2023, arXiv:2304.08612).

    Rivals of choice j are the experts not chosen yet whose logit is within a relative distance of
    2·jitter of the best one's, which is chosen. Its weight is its share p of a softmax over the
    rivals; the weights of a token do not sum to 1.

    If it samples, training draws the choice with the probabilities p instead. An expert that is
    not the best then weighs p / 3 in three of four draws, and the gradient is that of p all the
    same: Heun's third-order estimate of what another choice would have given.

    Args:
        hidden_size: H.
        num_experts: E.
        num_experts_per_tok: K, in [1, E].
        jitter: Half the relative distance, in [0, 1).
        sample: Whether training draws its choices, as the paper does.
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
        sample: bool = False,
        apply_on: str = "output",
    ) -> None:
        super().__init__(
            num_experts=num_experts, num_experts_per_tok=num_experts_per_tok, apply_on=apply_on
        )
        in_range("jitter", jitter, 0.0, 1.0)
        self.jitter, self.sample = jitter, sample
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weight."""
        init_weight(self.weight)

    def forward(self, x: Tensor) -> Routing:
        """Maps (T, H) to T·K triples in token-major order."""
        logits = router_logits(x, self.weight, None, "float32")  # (T, E)
        remaining, experts, weights = logits, [], []
        samples = self.sample and self.training
        for _ in range(self.num_experts_per_tok):
            best = remaining.argmax(-1, keepdim=True)  # (T, 1)
            rivals = remaining.masked_fill(self.far(logits, best), float("-inf"))
            expert = self.drawn(rivals) if samples else best
            weight = rivals.softmax(-1).gather(-1, expert)
            if samples:
                weight = weight - self.withheld(weight.detach(), expert == best)
            weights.append(weight)
            experts.append(expert)
            remaining = remaining.scatter(-1, expert, float("-inf"))
        chosen, weighed = torch.cat(experts, -1), torch.cat(weights, -1)  # (T, K)
        return token_choice(chosen, weighed, logits, logits.softmax(-1))

    @torch.no_grad()
    def drawn(self, rivals: Tensor) -> Tensor:
        """An expert of each token, drawn from the softmax of its rivals by Gumbel noise: (T, 1)."""
        return (rivals - torch.empty_like(rivals).exponential_().log()).argmax(-1, keepdim=True)

    @torch.no_grad()
    def withheld(self, weight: Tensor, is_best: Tensor) -> Tensor:
        """What Heun's rule takes from the weights (T, 1); a value, so that gradients stay whole."""
        whole = is_best | (torch.rand_like(weight) > 0.75)
        return torch.where(whole, 0.0, weight * 2 / 3)

    @torch.no_grad()
    def far(self, logits: Tensor, expert: Tensor) -> Tensor:
        """Which experts are too far below the chosen one to share its softmax: (T, E) bool."""
        best = logits.gather(-1, expert)  # (T, 1)
        scale = torch.maximum(logits.abs(), best)
        return (best - logits) / scale > 2 * self.jitter

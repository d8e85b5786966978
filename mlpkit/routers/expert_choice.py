"""ExpertChoiceRouter: the experts choose their tokens."""

from __future__ import annotations

from typing import final

import torch
from einops import rearrange
from torch import Tensor, nn

from mlpkit.routers.base import Router, first_largest, init_weight, router_logits
from mlpkit.routing import Routing


@final
class ExpertChoiceRouter(Router):
    """Each expert takes its C best tokens (Zhou 2022, arXiv:2202.09368).

    Perfectly balanced, and not causal: whether a token is taken depends on every other token,
    later ones too. A token may get no expert, or many.

    Args:
        hidden_size: H.
        num_experts: E.
        num_experts_per_tok: The mean number of experts per token: C = ceil(T·K / E).
        apply_on: "output" or "input" of the experts.

    Raises:
        RouterError: Sizes out of range.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        num_experts: int,
        num_experts_per_tok: int,
        apply_on: str = "output",
    ) -> None:
        super().__init__(
            num_experts=num_experts, num_experts_per_tok=num_experts_per_tok, apply_on=apply_on
        )
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weight."""
        init_weight(self.weight)

    def forward(self, x: Tensor) -> Routing:
        """Maps (T, H) to E·C triples in expert-major order."""
        logits = router_logits(x, self.weight, None, "float32")  # (T, E)
        scores = logits.softmax(-1)
        capacity = -(-x.shape[0] * self.num_experts_per_tok // self.num_experts)  # at most T
        by_expert = rearrange(scores, "t e -> e t")
        token = first_largest(by_expert.detach(), capacity)  # (E, C)
        expert = torch.arange(self.num_experts, device=x.device).repeat_interleave(capacity)
        weight = by_expert.gather(-1, token)  # (E, C)
        return Routing(token.reshape(-1), expert, weight.reshape(-1), None, logits, scores)

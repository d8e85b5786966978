"""A router that looks at directions alone."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlpkit.routers import Router
from mlpkit.routers.base import first_largest, token_choice
from mlpkit.routing import Routing


class CosineRouter(Router):
    """Top-k of softmax(cosine / temperature): a long token is no louder than a short one.

    Args:
        hidden_size: H.
        num_experts: E.
        num_experts_per_tok: K, in [1, E].
        temperature: Above 0; small is decided.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        num_experts: int,
        num_experts_per_tok: int,
        temperature: float = 0.3,
    ) -> None:
        super().__init__(num_experts=num_experts, num_experts_per_tok=num_experts_per_tok)
        self.temperature = temperature
        self.weight = nn.Parameter(torch.randn(num_experts, hidden_size))

    def forward(self, x: Tensor) -> Routing:
        """Maps (T, H) to T·K triples in token-major order."""
        wide = torch.promote_types(x.dtype, torch.float32)  # near ties are not for bfloat16
        rows = F.normalize(x.to(wide), dim=-1)
        directions = F.normalize(self.weight.to(wide), dim=-1)
        logits = rows @ directions.T / self.temperature  # (T, E)
        scores = logits.softmax(-1)
        expert = first_largest(scores.detach(), self.num_experts_per_tok)  # (T, K)
        return token_choice(expert, scores.gather(-1, expert), logits, scores)

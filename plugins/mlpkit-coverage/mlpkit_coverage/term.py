"""A balance term: the entropy of the experts' mean score."""

import math

import torch
from torch import Tensor

from mlpkit.balance import BalanceTerm
from mlpkit.balance.terms import shares
from mlpkit.routing import Routing


class Coverage(BalanceTerm):
    """log E - entropy(P), with P the mean of the tokens' scores.

    Args:
        coefficient: The factor; 0 switches it off.
    """

    def __init__(self, *, coefficient: float = 0.01) -> None:
        super().__init__(coefficient=coefficient)

    def __call__(self, routing: Routing, mask: Tensor | None = None) -> Tensor:
        """The nats that are missing; 0 without real tokens."""
        score = shares(routing.scores)  # (T, E)
        real = torch.ones_like(score[:, 0]) if mask is None else mask.to(score.dtype)
        mean = (score * real.unsqueeze(-1)).sum(0) / real.sum().clamp(min=1)  # (E,)
        missing = math.log(routing.num_experts) + torch.special.xlogy(mean, mean).sum()
        return missing * (real.sum() > 0)

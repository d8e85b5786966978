"""GroupLimit: lets each token choose only from its best groups of experts."""

from __future__ import annotations

from typing import final

import torch
from einops import rearrange, repeat
from torch import Tensor

from mlpkit.routers.base import RouterError, first_largest, one_of

SCORES = {"max": 1, "top2": 2}  # how many of a group's best are added up
FILLS = {"-inf": float("-inf"), "zero": 0.0}


@final
class GroupLimit:
    """Masks the experts of all but a token's best groups (DeepSeek-V2, arXiv:2405.04434).

    Args:
        num_experts: E, a multiple of ``n_group``.
        num_experts_per_tok: K, at most the experts of the chosen groups.
        n_group: Groups of E / n_group neighbours.
        topk_group: Groups a token keeps, in [1, n_group].
        score: "max", or "top2": the sum of a group's two best (of its only one, if it has one).
        fill: "-inf", or "zero".

    Raises:
        RouterError: The sizes do not fit.
    """

    def __init__(
        self,
        *,
        num_experts: int,
        num_experts_per_tok: int,
        n_group: int,
        topk_group: int,
        score: str,
        fill: str,
    ) -> None:
        one_of("group_score", score, tuple(SCORES))
        one_of("group_fill", fill, tuple(FILLS))
        if n_group < 1 or num_experts % n_group:
            raise RouterError(f"n_group={n_group} does not divide num_experts={num_experts}")
        if not 1 <= topk_group <= n_group:
            raise RouterError(f"topk_group is {topk_group}; choose between 1 and n_group={n_group}")
        size = num_experts // n_group
        if num_experts_per_tok > topk_group * size:
            raise RouterError(
                f"num_experts_per_tok={num_experts_per_tok}, but {topk_group} groups of {size} "
                f"hold {topk_group * size} experts; raise topk_group or lower n_group"
            )
        self.limits = topk_group < n_group
        self.n_group, self.topk_group = n_group, topk_group
        self.best, self.fill = min(SCORES[score], size), FILLS[fill]

    def __call__(self, choice: Tensor) -> Tensor:
        """Fills the rejected groups: (T, E) to (T, E)."""
        if not self.limits:
            return choice
        grouped = rearrange(choice, "t (g e) -> t g e", g=self.n_group)
        best = grouped.topk(self.best, dim=-1).values.sum(-1)  # (T, G)
        kept = first_largest(best, self.topk_group)
        rejected = torch.ones_like(best, dtype=torch.bool).scatter(-1, kept, False)
        rejected = repeat(rejected, "t g -> t (g e)", e=grouped.shape[-1])  # (T, E)
        return choice.masked_fill(rejected, self.fill)

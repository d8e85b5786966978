"""LoadBalance: the Switch and GShard loss E·Σ f·P, with its scope and scale declared."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from mlpkit.balance.terms import SummedTerm, one_of, shares, table
from mlpkit.routing import Routing

OVER_TOKENS = ("batch", "sequence", "token")
PROBABILITIES = ("scores", "softmax")

# Switch's 0.01 left the worst layer's MaxVio at 2.1 after 100 steps of the default model on 1,024
# bytes, and at 1.2 after 600; with 0.03 it was 0.83 after 100 and 0.70 after 400, at no cost in
# bits per byte (3.38 and 3.39 after 100).
DEFAULT = 0.03


@final
class LoadBalance(SummedTerm):
    """E·Σ_e f_e·P_e (Switch, Fedus 2021, arXiv:2101.03961; GShard, arXiv:2006.16668).

    f_e is the share of choices that expert e got (a constant for the gradient), P_e the mean
    of its normalised scores. With ``divide_by_k`` a uniform router gives 1 for every E and K,
    and collapse onto K experts E/K; without, both are K times as much.

    Args:
        coefficient: The factor.
        over_layers: "mean", "sum" or "pooled".
        over_tokens: Among which tokens balance is wanted: "batch", each "sequence" (the last
            leading dimension; mean over sequences), or each "token".
        divide_by_k: Whether f is a share of the T·K choices, else choices per token.
        probability: P from the router's own "scores", or from the "softmax" of its logits.

    Raises:
        BalanceError: An option is none of its words.
    """

    def __init__(
        self,
        *,
        coefficient: float = DEFAULT,
        over_layers: str = "mean",
        over_tokens: str = "batch",
        divide_by_k: bool = True,
        probability: str = "scores",
    ) -> None:
        super().__init__(coefficient=coefficient, over_layers=over_layers)
        one_of("over_tokens", over_tokens, OVER_TOKENS)
        one_of("probability", probability, PROBABILITIES)
        self.over_tokens, self.divide_by_k = over_tokens, divide_by_k
        self.probability = probability

    def __call__(self, routing: Routing, mask: Tensor | None = None) -> Tensor:
        """The loss of each group of tokens, mean over the groups with a real token."""
        own = self.probability == "scores"
        share = shares(routing.scores) if own else routing.logits.softmax(-1)  # (T, E)
        real = torch.ones_like(share[:, 0]) if mask is None else mask.to(share.dtype)  # (T,)
        groups = (*group_sizes(routing, self.over_tokens), routing.num_experts)
        tokens = real.reshape(groups[:2]).sum(1)  # (G,)
        mass = (share * real.unsqueeze(-1)).reshape(groups).sum(1)  # (G, E)
        chosen = table(routing, real.detach()[routing.token]).reshape(groups).sum(1)  # (G, E)
        if self.over_tokens == "batch":
            tokens, mass, chosen = map(self.total, (tokens, mass, chosen))
        whole = chosen.sum(-1) if self.divide_by_k else tokens
        f = chosen / whole.clamp(min=1).unsqueeze(-1)
        p = mass / tokens.clamp(min=1).unsqueeze(-1)
        value = routing.num_experts * (f * p).sum(-1)  # (G,), 0 for a group without tokens
        return self.total(value.sum()) / self.total((tokens > 0).sum()).clamp(min=1)


def load_hf(*, coefficient: float = 0.001) -> LoadBalance:
    """The term as transformers computes it: layers pooled, softmax, f per token (uniform: K).

    Args:
        coefficient: What transformers calls ``router_aux_loss_coef``.
    """
    return LoadBalance(
        coefficient=coefficient,
        over_layers="pooled",
        divide_by_k=False,
        probability="softmax",
    )


def load_minimind(*, coefficient: float = 5e-4) -> LoadBalance:
    """The term as MiniMind computes it: summed over layers, f per token (uniform: L·K).

    Args:
        coefficient: What MiniMind calls ``router_aux_loss_coef``.
    """
    return LoadBalance(
        coefficient=coefficient,
        over_layers="sum",
        divide_by_k=False,
        probability="softmax",
    )


def group_sizes(routing: Routing, over_tokens: str) -> tuple[int, int]:
    """How many groups of how many tokens: (G, T / G)."""
    tokens = routing.num_tokens
    length = {
        "batch": tokens,
        "sequence": routing.leading[-1] if routing.leading else tokens,
        "token": 1,
    }[over_tokens]
    return (tokens // length if length else 0), length

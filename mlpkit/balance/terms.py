"""Balance terms over one layer's routing: z-loss, importance CV², L1 and entropy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from mlpkit.routing import Routing

OVER_LAYERS = ("mean", "sum", "pooled")


class BalanceError(ValueError):
    """Options of a balance term or bias rule that do not fit."""

    exit_code = 2


class BalanceTerm(ABC):
    """A scalar that is added to the task loss, times its coefficient.

    Args:
        coefficient: The factor; 0 switches the term off.
        over_layers: How a model's layers become one number: "mean", "sum", or "pooled": the
            term of all layers' tokens at once, which cannot see that layers collapse onto
            different experts.

    Raises:
        BalanceError: ``over_layers`` is none of the three.
    """

    def __init__(self, *, coefficient: float, over_layers: str = "mean") -> None:
        one_of("over_layers", over_layers, OVER_LAYERS)
        self.coefficient = coefficient
        self.over_layers = over_layers

    @abstractmethod
    def __call__(self, routing: Routing, mask: Tensor | None = None) -> Tensor:
        """The term, without coefficient.

        Args:
            routing: One layer's routing of T tokens.
            mask: (T,) bool, True for a real token; None: all are.

        Returns:
            A scalar, at least float32; 0 without real tokens.
        """


class SummedTerm(BalanceTerm):
    """A term made of sums over tokens, so that it can be taken over the tokens of many processes.

    ``total`` completes such a sum; ``mlpkit.parallel`` sets it to one over processes.
    """

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes of one over this process's tokens: there is only this one."""
        return value

    def token_mean(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """The mean of (T,) values over the real tokens; 0 where there are none."""
        real = torch.ones_like(values) if mask is None else mask.to(values.dtype)
        return self.total((values * real).sum()) / self.total(real.sum()).clamp(min=1)


@final
class ZLoss(SummedTerm):
    """Keeps logits small: mean over tokens of logsumexp(z)² (Zoph 2022, arXiv:2202.08906).

    E equal logits of 0 give log(E)².

    Args:
        coefficient: The factor.
        over_layers: "mean", "sum" or "pooled".
    """

    def __init__(self, *, coefficient: float = 0.001, over_layers: str = "mean") -> None:
        super().__init__(coefficient=coefficient, over_layers=over_layers)

    def __call__(self, routing: Routing, mask: Tensor | None = None) -> Tensor:
        """The mean squared log-partition of the real tokens."""
        return self.token_mean(routing.logits.logsumexp(-1).square(), mask)


@final
class ImportanceCV(SummedTerm):
    """Squared coefficient of variation of the experts' importance (Shazeer 2017, arXiv:1701.06538).

    Importance is the sum of an expert's weights over the tokens. 0 where all are equal; E - 1
    where one expert has everything.

    Args:
        coefficient: The factor.
        over_layers: "mean", "sum" or "pooled".
    """

    def __init__(self, *, coefficient: float = 0.01, over_layers: str = "mean") -> None:
        super().__init__(coefficient=coefficient, over_layers=over_layers)

    def __call__(self, routing: Routing, mask: Tensor | None = None) -> Tensor:
        """Population variance over squared mean of the summed weights."""
        weight = table(routing, routing.weight)  # (T, E)
        real = weight if mask is None else weight * mask.unsqueeze(-1)
        importance = self.total(real.sum(0))  # (E,)
        square = importance.mean().square()
        return importance.var(unbiased=False) / square.masked_fill(square == 0, 1.0)


@final
class L1(SummedTerm):
    """Sparsity of scores that may be zero: mean over tokens of Σ|s| (ReMoE, arXiv:2412.14711).

    Constant for softmax, whose scores sum to 1.

    Args:
        coefficient: The factor.
        over_layers: "mean", "sum" or "pooled".
    """

    def __init__(self, *, coefficient: float = 0.01, over_layers: str = "mean") -> None:
        super().__init__(coefficient=coefficient, over_layers=over_layers)

    def __call__(self, routing: Routing, mask: Tensor | None = None) -> Tensor:
        """The mean L1 norm of the real tokens' scores."""
        return self.token_mean(routing.scores.abs().sum(-1), mask)


@final
class Entropy(SummedTerm):
    """Mean entropy, in nats, of a token's normalised scores: 0 is certain, log E undecided.

    A positive coefficient makes the router decide, a negative one keeps it open.

    Args:
        coefficient: The factor.
        over_layers: "mean", "sum" or "pooled".
    """

    def __init__(self, *, coefficient: float = 0.001, over_layers: str = "mean") -> None:
        super().__init__(coefficient=coefficient, over_layers=over_layers)

    def __call__(self, routing: Routing, mask: Tensor | None = None) -> Tensor:
        """The mean entropy of the real tokens."""
        share = shares(routing.scores)
        # log of 0 is cut off before it meets its factor 0, in the gradient too.
        log = share.clamp(min=torch.finfo(share.dtype).tiny).log()
        return self.token_mean(-(share * log).sum(-1), mask)


def table(routing: Routing, values: Tensor) -> Tensor:
    """The values of a routing's triples by token and expert.

    Args:
        routing: N triples.
        values: (N,).

    Returns:
        (T, E), with gradient; 0 where a token has not chosen an expert.
    """
    # Every (token, expert) occurs once: a scatter, unlike a scatter_add, is deterministic.
    cell = routing.token * routing.num_experts + routing.expert
    empty = values.new_zeros(routing.num_tokens * routing.num_experts)
    return empty.scatter(0, cell, values).view(routing.num_tokens, routing.num_experts)


def shares(scores: Tensor) -> Tensor:
    """Scores that sum to 1 per token, with gradient.

    No epsilon stands in the denominator: with one, tiny sigmoid scores would lower a balance
    term below its floor without balancing anything.

    Args:
        scores: (T, E); a negative score counts as none.

    Returns:
        (T, E); a token without any score is shared evenly.
    """
    positive = scores.clamp(min=0)
    total = positive.sum(-1, keepdim=True)
    nothing = total == 0
    even = torch.full_like(positive, 1 / positive.shape[-1])
    return torch.where(nothing, even, positive / total.masked_fill(nothing, 1.0))


def one_of(option: str, value: str, words: tuple[str, ...]) -> None:
    """Refuses an option's value that is none of its words.

    Raises:
        BalanceError: It is none of them.
    """
    if value not in words:
        raise BalanceError(f"{option} is {value!r}; choose one of {', '.join(words)}")

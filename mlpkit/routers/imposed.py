"""Routers whose choice is imposed: forced, uniform, and replay of a recorded one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from mlpkit.routers.base import Router, RouterError, token_choice
from mlpkit.routers.topk import TopKRouter
from mlpkit.routing import ReplayError, Routing, plain_name


@final
class ForcedRouter(Router):
    """Every token goes to the same K experts with weight 1/K; nothing is learned.

    Args:
        hidden_size: H; nothing depends on it.
        num_experts: E.
        num_experts_per_tok: K, in [1, E].
        experts: K different experts in [0, E); None: the first K.

    Raises:
        RouterError: The experts are not K different ones of E.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        num_experts: int,
        num_experts_per_tok: int,
        experts: Sequence[int] | None = None,
    ) -> None:
        super().__init__(num_experts=num_experts, num_experts_per_tok=num_experts_per_tok)
        self.experts = list(range(num_experts_per_tok) if experts is None else experts)
        wrong = [e for e in self.experts if not 0 <= e < num_experts]
        if wrong or len(set(self.experts)) != num_experts_per_tok:
            raise RouterError(
                f"experts={self.experts}; give {num_experts_per_tok} different numbers from 0 to "
                f"{num_experts - 1}"
            )

    def forward(self, x: Tensor) -> Routing:
        """Maps (T, H) to T·K triples in token-major order."""
        chosen = torch.tensor(self.experts, device=x.device)
        return evenly(x, chosen.expand(x.shape[0], -1), self.num_experts)


@final
class UniformRouter(Router):
    """Row t goes to experts t·K … t·K + K - 1, modulo E: perfect balance, nothing learned.

    The baseline for what routing is worth, and the load for measuring speed. A row's experts
    depend on where it stands in the batch.

    Args:
        hidden_size: H; nothing depends on it.
        num_experts: E.
        num_experts_per_tok: K, in [1, E].
    """

    def __init__(self, *, hidden_size: int, num_experts: int, num_experts_per_tok: int) -> None:
        super().__init__(num_experts=num_experts, num_experts_per_tok=num_experts_per_tok)

    def forward(self, x: Tensor) -> Routing:
        """Maps (T, H) to T·K triples in token-major order."""
        rows, per_token = x.shape[0], self.num_experts_per_tok
        turn = torch.arange(rows * per_token, device=x.device) % self.num_experts
        return evenly(x, turn.view(rows, per_token), self.num_experts)


@final
class ReplayRouter(Router):
    """Scores and weighs as another router does, for experts that were chosen before.

    The gradient reaches the router through the weights, as it would have then.

    Args:
        router: The router that scores and weighs.
        choices: (T, K) int64, from ``Record.replay``.
    """

    def __init__(self, *, router: TopKRouter, choices: Tensor) -> None:
        super().__init__(
            num_experts=router.num_experts,
            num_experts_per_tok=choices.shape[-1],
            apply_on=router.apply_on,
        )
        self.router = router
        self.register_buffer("choices", choices, persistent=False)
        self.choices: Tensor

    def forward(self, x: Tensor) -> Routing:
        """Maps (T, H), with the T that was recorded, to T·K triples in token-major order.

        Raises:
            ReplayError: Another number of tokens was recorded.
        """
        if x.shape[0] != self.choices.shape[0]:
            raise ReplayError(
                f"{x.shape[0]} tokens to route, but choices of {self.choices.shape[0]} were "
                "recorded; replay the batch that was recorded"
            )
        own = self.router(x)
        weight = self.router.weigh(own.scores, self.choices)  # (T, K)
        return token_choice(self.choices, weight, own.logits, own.scores)


@contextmanager
def replay_routing(module: nn.Module, choices: Mapping[str, Tensor]) -> Iterator[None]:
    """Routes every recorded layer as it was recorded while the block runs.

    Args:
        module: The module that was recorded, or one with layers of the same names.
        choices: Layer name to (T, K) int64, from ``Record.replay``.

    Raises:
        ReplayError: A layer is missing, or its router has no weights for a foreign choice.
    """
    layers = {plain_name(name): layer for name, layer in module.named_modules()}
    routers = {name: replayable(name, layers) for name in choices}
    for name, router in routers.items():
        layers[name].router = ReplayRouter(router=router, choices=choices[name])
    try:
        yield
    finally:
        for name, router in routers.items():
            layers[name].router = router


def replayable(name: str, layers: Mapping[str, nn.Module]) -> TopKRouter:
    """The router of the layer of a name.

    Raises:
        ReplayError: There is no such layer, or its router is not a ``TopKRouter``.
    """
    if name not in layers:
        raise ReplayError(f"no layer {name!r} to replay; was another model recorded?")
    router = getattr(layers[name], "router", None)
    if not isinstance(router, TopKRouter):
        raise ReplayError(f"layer {name!r} has no topk router; only that one can be replayed")
    return router


def evenly(x: Tensor, expert: Tensor, num_experts: int) -> Routing:
    """A routing of fixed experts (T, K) with weight 1/K, whose logits are all zero."""
    logits = x.new_zeros(x.shape[0], num_experts, dtype=torch.promote_types(x.dtype, torch.float32))
    weight = torch.full_like(logits[:, :1], 1 / expert.shape[-1]).expand(expert.shape)
    scores = torch.scatter(logits, -1, expert, 1 / expert.shape[-1])
    return token_choice(expert, weight, logits, scores)

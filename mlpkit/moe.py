"""MoE: experts behind a router, itself an FFN: route, dispatch, experts, combine (and shared)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from mlpkit.experts import ExpertGroups, Experts
from mlpkit.experts.rows import Places, gathered_sum, places, to_rows
from mlpkit.ffns import FeedForward
from mlpkit.routers import Router
from mlpkit.routing import Routing

SHARED_COMBINES = ("sum", "average", "gated")
DROP_POLICIES = ("position", "probs")


class MoEOptionError(ValueError):
    """Options of a MoE that do not fit together."""

    exit_code = 2


class Dispatch(NamedTuple):
    """How rows sorted by expert go back to their tokens.

    Args:
        counts: (E,) int64, rows of each expert.
        token: (N,) int64, the token of each row.
        weight: What a row's output is multiplied by: (T, K) with places, else (N,); None: it was
            done on the input.
        places: Where each token's K rows are; None where tokens have different numbers of rows.
    """

    counts: Tensor
    token: Tensor
    weight: Tensor | None
    places: Places | None


@final
class MoE(FeedForward):
    """Several FFNs behind a router (Shazeer 2017, arXiv:1701.06538).

    Args:
        hidden_size: H, width of input and output.
        router: Chooses experts and weights for each token.
        experts: E experts in a stack, or in several of different types.
        shared: An FFN that every token passes; None: none.
        shared_combine: How its output joins: "sum" (DeepSeek), "average" (half the sum, Cohere)
            or "gated" (times a learned sigmoid gate of the token, Qwen).
        latent_size: The width that the experts work in, between a projection down and one up
            (Nemotron); None: H.
        capacity_factor: An expert takes at most ceil(factor · N / E) of the N rows, at least 1,
            and the rest of its rows contribute 0. None: nothing is dropped. A factor makes a
            token's output depend on its neighbours.
        drop_policy: Who stays when an expert is full: "position" (the earlier token) or "probs"
            (the larger weight).
        output_bias: Whether a learned vector (H,), at first zero, is added last (JetMoE).
        balance: Balance terms and their coefficients or options, for the record; not used here.

    Raises:
        MoEOptionError: Router and experts count differently, or an option is out of its range.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        router: Router,
        experts: Experts | ExpertGroups,
        shared: nn.Module | None = None,
        shared_combine: str = "sum",
        latent_size: int | None = None,
        capacity_factor: float | None = None,
        drop_policy: str = "position",
        output_bias: bool = False,
        balance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if router.num_experts != experts.num_experts:
            raise MoEOptionError(
                f"the router knows {router.num_experts} experts and there are "
                f"{experts.num_experts}; give both the same num_experts"
            )
        _check_options(shared, shared_combine, latent_size, capacity_factor, drop_policy)
        self.hidden_size = hidden_size
        self.router = router
        self.experts = experts
        self.shared = shared
        self.shared_combine = shared_combine
        self.capacity_factor = capacity_factor
        self.drop_policy = drop_policy
        self.balance = dict(balance or {})
        self.taps: list[Callable[[Routing], None]] = []
        gated = shared is not None and shared_combine == "gated"
        self.shared_gate = nn.Linear(hidden_size, 1, bias=False) if gated else None
        latent = latent_size is not None
        width = latent_size or hidden_size
        self.latent_down_proj = nn.Linear(hidden_size, width, bias=False) if latent else None
        self.latent_up_proj = nn.Linear(width, hidden_size, bias=False) if latent else None
        self.output_bias = nn.Parameter(torch.zeros(hidden_size)) if output_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H), in the dtype of x."""
        tokens = x.reshape(-1, self.hidden_size)  # (T, H)
        routing = self.route(tokens, x.shape[:-1])
        rows, dispatch = self.dispatch(tokens, routing)
        rows = self.experts(rows, dispatch.counts)
        routed = self.combine(rows, dispatch, tokens)
        out = self.add_shared(routed, tokens)
        if self.output_bias is not None:
            out = out + self.output_bias
        return out.to(x.dtype).reshape(x.shape)

    def route(self, tokens: Tensor, leading: tuple[int, ...]) -> Routing:
        """Asks the router and shows its answer to the taps.

        Args:
            tokens: (T, H).
            leading: The shape that T came from.
        """
        routing: Routing = self.router(tokens)._replace(leading=tuple(leading))
        for tap in self.taps:
            tap(routing)
        return routing

    def dispatch(self, tokens: Tensor, routing: Routing) -> tuple[Tensor, Dispatch]:
        """Copies each token once for each expert that gets it, sorted by expert.

        Args:
            tokens: (T, H).
            routing: What the router decided.

        Returns:
            (N, H), and the way back.
        """
        routing = self.limit(routing)
        order = routing.expert.argsort(stable=True)  # (N,), the triple of each row
        token = routing.token.index_select(0, order)
        counts = _count(routing.expert, self.experts.num_experts)
        if self.latent_down_proj is not None:
            tokens = self.latent_down_proj(tokens)
        # All rows of a single token are its own: there is nothing to place.
        k = None if len(tokens) == 1 else routing.num_experts_per_tok
        where = None if k is None else places(order, token, k)
        rows = tokens.index_select(0, token) if where is None else to_rows(tokens, where)  # (N, H)
        if self.router.apply_on == "input":
            weight = routing.weight.index_select(0, order)
            rows = (rows * weight.unsqueeze(1)).to(rows.dtype)
            return rows, Dispatch(counts, token, None, where)
        if k is None:
            return rows, Dispatch(counts, token, routing.weight.index_select(0, order), None)
        return rows, Dispatch(counts, token, routing.weight.view(-1, k), where)

    def limit(self, routing: Routing) -> Routing:
        """Takes away the triples that find no room in their expert, if there is a capacity."""
        if self.capacity_factor is None:
            return routing
        num_experts = self.experts.num_experts
        capacity = expert_capacity(len(routing.expert), num_experts, self.capacity_factor)
        keep = within_capacity(routing, num_experts, capacity, self.drop_policy)
        return _drop(routing, keep, num_experts)

    def combine(self, rows: Tensor, dispatch: Dispatch, tokens: Tensor) -> Tensor:
        """Adds each token's weighted rows.

        Args:
            rows: (N, H), the experts' output.
            dispatch: The way back.
            tokens: (T, H), for the number of tokens.

        Returns:
            (T, H); zeros for a token that no expert has.
        """
        weight = dispatch.weight
        if dispatch.places is None:
            rows = rows if weight is None else rows * weight.unsqueeze(1)
            zeros = rows.new_zeros(tokens.shape[0], rows.shape[1])
            routed = zeros.index_add(0, dispatch.token, rows)
        else:
            # Weights in the rows' dtype: multiplying in float32 took 2.5 times as long.
            weight = None if weight is None else weight.to(rows.dtype)
            routed = gathered_sum(rows, weight, dispatch.places)
        if self.latent_up_proj is not None:
            routed = self.latent_up_proj(routed.to(tokens.dtype))
        return routed

    def add_shared(self, routed: Tensor, tokens: Tensor) -> Tensor:
        """Joins the shared FFN's output to the routed one, both (T, H)."""
        if self.shared is None:
            return routed
        shared: Tensor = self.shared(tokens)
        if self.shared_gate is not None:
            shared = self.shared_gate(tokens).sigmoid() * shared
        total = routed + shared
        return total / 2 if self.shared_combine == "average" else total

    def extra_repr(self) -> str:
        """The options that no part shows."""
        parts = [f"hidden_size={self.hidden_size}"]
        if self.shared is not None:
            parts.append(f"shared_combine={self.shared_combine}")
        if self.capacity_factor is not None:
            parts.append(f"capacity_factor={self.capacity_factor}, drop_policy={self.drop_policy}")
        return ", ".join(parts)


def _check_options(
    shared: nn.Module | None,
    shared_combine: str,
    latent_size: int | None,
    capacity_factor: float | None,
    drop_policy: str,
) -> None:
    for option, value, words in (
        ("shared_combine", shared_combine, SHARED_COMBINES),
        ("drop_policy", drop_policy, DROP_POLICIES),
    ):
        if value not in words:
            raise MoEOptionError(f"{option} is {value!r}; choose one of {', '.join(words)}")
    if shared is None and shared_combine != "sum":
        raise MoEOptionError(
            f"shared_combine is {shared_combine!r}, and there is no shared FFN to combine; "
            "give shared an FFN"
        )
    if capacity_factor is None and drop_policy != "position":
        raise MoEOptionError(
            f"drop_policy is {drop_policy!r}, and without a capacity_factor nothing is dropped; "
            "give capacity_factor a number"
        )
    if capacity_factor is not None and not 0 < capacity_factor < math.inf:
        raise MoEOptionError(
            f"capacity_factor is {capacity_factor}; give a number above 0, or null to drop nothing"
        )
    if latent_size is not None and latent_size < 1:
        raise MoEOptionError(f"latent_size is {latent_size}; give a width of at least 1, or null")


def expert_capacity(num_rows: int, num_experts: int, factor: float) -> int:
    """How many of N rows one of E experts takes: ceil(factor · N / E), within [1, N].

    Args:
        num_rows: N, rows to hand out, T·K for a token-choice router.
        num_experts: E.
        factor: 1 lets exactly a perfectly balanced routing through.
    """
    # Rounded first: 1.1 · 100 / 10 is 11.000000000000002 in floating point, and not 12 rows.
    wanted = math.ceil(round(factor * num_rows / num_experts, 6))
    return max(1, min(num_rows, wanted))


def within_capacity(routing: Routing, num_experts: int, capacity: int, policy: str) -> Tensor:
    """Which triples stay when an expert takes at most ``capacity``.

    Args:
        routing: What the router decided.
        num_experts: E.
        capacity: Rows per expert, at least 1.
        policy: "position": the first triples stay; "probs": those of the largest weights.

    Returns:
        (N,) bool.
    """
    expert = routing.expert
    position = torch.arange(len(expert), device=expert.device)
    first = position
    if policy == "probs":
        first = routing.weight.detach().argsort(descending=True, stable=True)
    order = first[expert[first].argsort(stable=True)]  # by expert, then by priority
    counts = _count(expert, num_experts)
    rank = position - (counts.cumsum(0) - counts)[expert[order]]
    return torch.empty_like(rank, dtype=torch.bool).scatter(0, order, rank < capacity)


def _drop(routing: Routing, keep: Tensor, num_experts: int) -> Routing:
    if torch.compiler.is_compiling():
        # A filter's shape depends on the routing. In a full graph the dropped triples stay, with
        # weight 0 and an expert past the last: they sort to the end, where nothing is computed.
        return routing._replace(
            expert=torch.where(keep, routing.expert, num_experts),
            weight=torch.where(keep, routing.weight, 0.0),
        )
    return routing._replace(
        token=routing.token[keep],
        expert=routing.expert[keep],
        weight=routing.weight[keep],
        num_experts_per_tok=None,
    )


def _count(expert: Tensor, num_experts: int) -> Tensor:
    """Rows of each expert; what is past the last expert is not counted."""
    zeros = torch.zeros(num_experts + 1, dtype=torch.int64, device=expert.device)
    return zeros.scatter_add(0, expert, torch.ones_like(expert))[:num_experts]

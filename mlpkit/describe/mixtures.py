"""Parameters and FLOPs of a MoE, part by part: router, experts, shared FFN, latent, combine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from mlpkit.build import Component, seeded
from mlpkit.build.moe import build_router, match_width
from mlpkit.configs.moe import expert_types, moe_options
from mlpkit.describe.sizes import Size, Span, count_parameters, ffn_size, fixed
from mlpkit.sizing import combine_flops, linear_params

TOKENS = 64  # that a router is tried on; each of its numbers is per token


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One part of a MoE.

    Args:
        name: router, experts, shared, shared_gate, latent or combine.
        size: Of one of it.
        count: How many of it there are.
        least: How many of them a token uses at least.
        used: How many on average, with every expert used equally often.
        most: How many at most.
        hidden_size: The width of its input.
        component: The FFN that it is, as configured; None: it is none.
        matched: The same with its width put in.
    """

    name: str
    size: Size
    hidden_size: int
    count: int = 1
    least: int = 1
    used: Fraction = Fraction(1)
    most: int = 1
    component: Component | None = None
    matched: Component | None = None

    @property
    def active(self) -> Span:
        """The parameters of it that a token uses."""
        return self._used(self.size.active)

    @property
    def flops(self) -> Span:
        """What it costs a token, in forward FLOPs."""
        return self._used(self.size.flops)

    def _used(self, one: Span) -> Span:
        mean = round(self.used * one.mean)
        return Span(low=self.least * one.low, mean=mean, high=self.most * one.high)


def moe_size(
    options: dict[str, Any], *, hidden_size: int, inherited_activation: Component | None = None
) -> Size:
    """The size of a MoE; rows that a capacity would drop are counted as if they were kept.

    Args:
        options: As in ``MoEConfig``; what is missing has its default.
        hidden_size: H.
        inherited_activation: The run's activation, for the experts.

    Raises:
        ValueError: An option or a value that a part refuses.
    """
    pieces = moe_pieces(options, hidden_size=hidden_size, inherited_activation=inherited_activation)
    rest = [piece.size for piece in pieces if piece.name != "experts"]
    experts = [piece for piece in pieces if piece.name == "experts"]
    chosen = moe_options(options)["num_experts_per_tok"]
    active = mixed([piece.size.active for piece in experts], experts, chosen)
    flops = mixed([piece.size.flops for piece in experts], experts, chosen)
    return Size(
        parameters=sum(piece.count * piece.size.parameters for piece in pieces),
        active=sum((size.active for size in rest), active),
        flops=sum((size.flops for size in rest), flops),
    )


def mixed(spans: Sequence[Span], experts: Sequence[Piece], chosen: int) -> Span:
    """What K different experts cost together, of types that may differ.

    Args:
        spans: The number for one expert of each type.
        experts: The types.
        chosen: K.
    """
    pairs = list(zip(spans, experts, strict=True))
    low = sorted(span.low for span, piece in pairs for _ in range(piece.count))
    high = sorted(span.high for span, piece in pairs for _ in range(piece.count))
    mean = sum((span.mean * piece.used for span, piece in pairs), Fraction(0))
    return Span(low=sum(low[:chosen]), mean=round(mean), high=sum(high[-chosen:]))


def moe_pieces(
    options: dict[str, Any], *, hidden_size: int, inherited_activation: Component | None = None
) -> list[Piece]:
    """The parts of a MoE that have parameters or FLOPs, from input to output.

    Args:
        options: As in ``MoEConfig``; what is missing has its default.
        hidden_size: H.
        inherited_activation: The run's activation, for the experts.

    Raises:
        ValueError: An option or a value that a part refuses.
    """
    given = moe_options(options)
    per_token, width = given["num_experts_per_tok"], given["latent_size"] or hidden_size
    types = expert_types(given["experts"] or given["expert"], given["num_experts"])
    router, weighs_once = _router(given, hidden_size)
    pieces = [router]
    if given["latent_size"]:
        both = 2 * linear_params(hidden_size, width)  # a projection down and one up
        pieces.append(Piece(name="latent", size=fixed(both, 2 * both), hidden_size=hidden_size))
    for component, number in types:
        matched = match_width(component, width, per_token, inherited_activation)
        size = ffn_size(matched, hidden_size=width, inherited_activation=inherited_activation)
        pieces.append(
            Piece(
                name="experts",
                size=size,
                hidden_size=width,
                count=number,
                least=max(0, per_token - (given["num_experts"] - number)),
                used=Fraction(per_token * number, given["num_experts"]),
                most=min(per_token, number),
                component=component,
                matched=matched,
            )
        )
    if weighs_once:
        flops = combine_flops(width, num_experts_per_tok=per_token)
        pieces.append(Piece(name="combine", size=fixed(0, flops), hidden_size=width))
    pieces += _shared(given, hidden_size, inherited_activation)
    if given["output_bias"]:
        pieces.append(
            Piece(name="output_bias", size=fixed(hidden_size, 0), hidden_size=hidden_size)
        )
    return pieces


def _shared(
    given: dict[str, Any], hidden_size: int, inherited_activation: Component | None
) -> list[Piece]:
    shared = given["shared"]
    if shared is None:
        return []
    matched = match_width(shared, hidden_size, given["num_experts_per_tok"], inherited_activation)
    size = ffn_size(matched, hidden_size=hidden_size, inherited_activation=inherited_activation)
    pieces = [
        Piece(name="shared", size=size, hidden_size=hidden_size, component=shared, matched=matched)
    ]
    if given["shared_combine"] == "gated":
        gate = fixed(hidden_size, 2 * hidden_size)
        pieces.append(Piece(name="shared_gate", size=gate, hidden_size=hidden_size))
    return pieces


def _router(given: dict[str, Any], hidden_size: int) -> tuple[Piece, bool]:
    """The router, and whether the experts' outputs are weighed by a matrix product.

    A router is small enough to be built and tried, whoever wrote it. Its product is one where
    each token has K rows in a table and they have not been weighed before.
    """
    with seeded(0, "router"), torch.device("cpu"), torch.no_grad():
        router = build_router(
            given["router"],
            hidden_size=hidden_size,
            num_experts=given["num_experts"],
            num_experts_per_tok=given["num_experts_per_tok"],
        ).eval()
        with FlopCounterMode(display=False) as counter:
            routing = router(torch.ones(TOKENS, hidden_size))
    flops = int(counter.get_total_flops()) // TOKENS
    piece = Piece(
        name="router", size=fixed(count_parameters([router]), flops), hidden_size=hidden_size
    )
    table = routing.num_experts_per_tok is not None and given["capacity_factor"] is None
    return piece, table and router.apply_on == "output"

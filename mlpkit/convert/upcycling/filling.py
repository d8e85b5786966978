"""Filling a MoE from a dense FFN: experts, shared FFN, router, and the scale that keeps the sum."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from mlpkit.convert.upcycling.parts import (
    Piece,
    UpcycleError,
    bias_shares,
    even_pieces,
    positions,
    tensors_of,
    write_piece,
)
from mlpkit.experts import Experts
from mlpkit.moe import MoE
from mlpkit.routers import Router

PROBED = 256  # random positions on which a router's weights and the outputs are looked at
SCALING = "routed_scaling_factor"
CONSTANT = 1e-6  # weights of float32 that add up to the same within this are told to be constant


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How a dense FFN of some width becomes the experts of a MoE.

    Args:
        width: Units of the dense FFN.
        routed: The routed experts' pieces, expert e having number e mod their number.
        shared: The shared FFN's piece; None: there is none, or it has all units.
    """

    width: int
    routed: tuple[Piece, ...]
    shared: Piece | None = None

    @classmethod
    def of(cls, width: int, expert_width: int, shared_width: int | None) -> Cut:
        """The shared FFN takes the first units, the experts equal shares of the others.

        Args:
            width: Units of the dense FFN.
            expert_width: Units of an expert.
            shared_width: Units of the shared FFN; None: there is none.

        Raises:
            UpcycleError: The units cannot be shared out so.
        """
        if expert_width == width and shared_width in (None, width):
            return cls(width=width, routed=(Piece(0, width),))
        first = shared_width or 0
        number, rest = divmod(width - first, expert_width)
        if rest or number < 1:
            raise UpcycleError(
                f"the dense FFN has {width} units: a shared FFN of {first} and experts of "
                f"{expert_width} do not share them out; choose another split, or another "
                "ffn.shared.intermediate_size"
            )
        sizes = [*([first] if first else []), *[expert_width] * number]
        pieces = even_pieces(width, sizes)
        own = pieces.pop(0) if first else None
        return cls(width=width, routed=tuple(pieces), shared=own)

    @property
    def parts(self) -> tuple[Piece, ...]:
        """All pieces, whose outputs add up to the dense FFN's."""
        return (*([self.shared] if self.shared else []), *self.routed)


@dataclass(frozen=True, kw_only=True)
class Filled:
    """What filling did.

    Args:
        scale: What the weights of every token were multiplied by.
        weight_sum: How often a token's weights count the dense FFN: least and most, 1 and 1 if
            it is the same function.
        reasons: Why the MoE does not compute what the dense FFN does; empty if it does.
    """

    scale: float
    weight_sum: tuple[float, float]
    reasons: tuple[str, ...]


def fill(
    moe: MoE, dense: nn.Module, cut: Cut, *, noise: float, scale: float | None, seed: int
) -> Filled:
    """Writes a dense FFN's weights into a MoE of its pieces.

    Experts of one copy of the dense FFN get the same row of the router, so that a token that
    chooses one of them chooses them all (He 2024, arXiv:2410.07524).

    Args:
        moe: As it was initialised; its router keeps those values for the first of each copy.
        dense: The dense FFN.
        cut: Which units each expert has.
        noise: Standard deviation of what is added to every matrix, relative to its own.
        scale: What to multiply a token's weights by; None: what makes them count each part once.
        seed: Of the noise.

    Raises:
        UpcycleError: The experts are no pieces of the dense FFN.
    """
    stack = _stack(moe)
    shared = [moe.shared] if cut.shared and moe.shared is not None else []
    narrow = [*shared, *[stack.expert(0)] * len(cut.routed)]
    shares = bias_shares(dense, narrow, cut.parts, moe.hidden_size) if len(cut.parts) > 1 else 1
    for index in range(stack.num_experts):
        piece = cut.routed[index % len(cut.routed)]
        write_piece(stack.expert(index), dense, piece, cut.width, shares)
    if moe.shared is not None:
        whole = cut.shared or Piece(0, cut.width)
        write_piece(moe.shared, dense, whole, cut.width, shares)
    _tie_rows(moe.router, len(cut.routed))
    _add_noise(stack, noise, seed)
    reasons = list(_obstacles(moe, cut, shares, noise))
    used = rescale(moe.router, len(cut.routed), moe.hidden_size, scale)
    sums = weight_sums(moe.router, moe.hidden_size) / len(cut.routed)
    low, high = float(sums.min()), float(sums.max())
    if high - low > CONSTANT:
        reasons.append(
            "a token's weights do not add up to the same for every token; "
            "ffn.router.norm_topk_prob=true makes their sum constant"
        )
    elif abs(high - 1) > CONSTANT:
        reasons.append(f"a token's weights add up to {high:.6g}, not to 1")
    return Filled(scale=used, weight_sum=(low, high), reasons=tuple(reasons))


def _stack(moe: MoE) -> Experts:
    if not isinstance(moe.experts, Experts):
        raise UpcycleError("experts of several types cannot all be the dense FFN; drop ffn.experts")
    return moe.experts


def _tie_rows(router: Router, parts: int) -> None:
    """Gives the parts of a copy the router's row of the first."""
    if router.num_experts % parts:
        raise UpcycleError(
            f"num_experts is {router.num_experts} and the dense FFN is split into {parts}; give a "
            f"multiple of {parts}"
        )
    first = torch.arange(router.num_experts) // parts * parts
    with torch.no_grad():
        for tensor in tensors_of(router).values():
            if tensor.dim() and len(tensor) == router.num_experts:
                tensor.copy_(tensor[first.to(tensor.device)])


def _add_noise(stack: Experts, noise: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in stack.tensors().values() if noise else ():
            if tensor.dim() > 2 and tensor.is_floating_point():
                drawn = torch.randn(tensor.shape, generator=generator).to(tensor)
                tensor.add_(drawn * tensor.std() * noise)


def _obstacles(moe: MoE, cut: Cut, shares: int, noise: float) -> Iterator[str]:
    """What keeps the MoE from computing the dense FFN, apart from the router's weights."""
    parts = len(cut.routed)
    if noise:
        yield f"noise of {noise:g} standard deviations was added to the experts"
    if not shares:
        yield f"parts of a {type(moe.experts.expert(0)).__name__} do not add up to the whole"
    if moe.router.num_experts_per_tok % parts:
        yield (
            f"num_experts_per_tok={moe.router.num_experts_per_tok} is no multiple of the {parts} "
            "parts, so that a token does not get all of one copy"
        )
    if moe.shared is not None and cut.shared is None and moe.shared_combine != "average":
        yield (
            "the shared FFN is a copy beside the routed ones; split the FFN, or take "
            "ffn.shared_combine=average"
        )
    if cut.shared is not None and moe.shared_combine != "sum":
        yield f"shared_combine={moe.shared_combine} does not add the shared part as it is"
    if moe.capacity_factor is not None:
        yield "capacity_factor drops tokens"
    if moe.router.apply_on == "input":
        yield "the router's weights multiply the experts' input"


def rescale(router: Router, parts: int, hidden_size: int, scale: float | None) -> float:
    """Makes a token's weights count every part once, on average where they are no constant.

    Args:
        router: Its weights are measured on random positions; its scaling factor is set.
        parts: In how many experts a copy of the dense FFN stands.
        hidden_size: H.
        scale: The factor; None: parts over the mean sum of a token's weights.

    Returns:
        The factor; 1 for a router without one.

    Raises:
        UpcycleError: A factor is given, and the router has none.
    """
    mean = float(weight_sums(router, hidden_size).mean())
    factor = scale if scale is not None else parts / mean if mean > 0 else 1.0
    if abs(factor - 1) <= CONSTANT:
        return 1.0
    if not hasattr(router, SCALING):
        if scale is None:
            return 1.0
        raise UpcycleError(f"scale is {scale:g}, and a {type(router).__name__} has no {SCALING}")
    setattr(router, SCALING, cast(float, router.routed_scaling_factor) * factor)
    return factor


@torch.no_grad()
def weight_sums(router: Router, hidden_size: int) -> Tensor:
    """The sum of the weights of each of some random positions, (256,) in float64."""
    probe = copy.deepcopy(router).double().eval()
    routing = probe(positions(PROBED, hidden_size))
    zeros = torch.zeros(PROBED, dtype=torch.float64)
    return zeros.index_add(0, routing.token, routing.weight.double())

"""Router: the contract of what maps tokens to experts, and what implementations share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlpkit.routing import Routing

PRECISIONS = ("float32", "float64", "input")
SIDES = ("output", "input")
FEW = 1 << 11  # scores that a sort orders in less time than the steps around a topk take


class RouterError(ValueError):
    """Options of a router that do not fit each other."""

    exit_code = 2


class Router(nn.Module, ABC):
    """Maps each token to experts with weights.

    The input is never changed, noise acts only here and only in training, and one learned
    matrix, if any, is 2-D ``weight (E, H)``.

    Args:
        num_experts: E, at least 1.
        num_experts_per_tok: K, in [1, E].
        apply_on: "output": a weight multiplies what its expert computed; "input": what the
            expert is given (Llama 4). The MoE reads the attribute of this name.

    Raises:
        RouterError: K is not in [1, E], or ``apply_on`` is neither word.
    """

    def __init__(
        self, *, num_experts: int, num_experts_per_tok: int, apply_on: str = "output"
    ) -> None:
        super().__init__()
        if not 1 <= num_experts_per_tok <= num_experts:
            raise RouterError(
                f"num_experts_per_tok={num_experts_per_tok} with num_experts={num_experts}; "
                "choose between 1 and num_experts"
            )
        one_of("apply_on", apply_on, SIDES)
        self.num_experts = num_experts
        self.num_experts_per_tok = num_experts_per_tok
        self.apply_on = apply_on

    @abstractmethod
    def forward(self, x: Tensor) -> Routing:
        """Maps (T, H) to a routing of T tokens."""

    def extra_repr(self) -> str:
        """E and K, for the module's printed form."""
        return f"num_experts={self.num_experts}, num_experts_per_tok={self.num_experts_per_tok}"


def one_of(option: str, value: str, words: tuple[str, ...]) -> None:
    """Refuses an option's value that is none of its words.

    Raises:
        RouterError: It is none of them.
    """
    if value not in words:
        raise RouterError(f"{option} is {value!r}; choose one of {', '.join(words)}")


def in_range(option: str, value: float, low: float, high: float = float("inf")) -> None:
    """Refuses a number outside [low, high).

    Raises:
        RouterError: It is outside, or not a number.
    """
    if not low <= value < high:
        raise RouterError(f"{option} is {value}; choose a number in [{low:g}, {high:g})")


def init_weight(weight: Tensor) -> None:
    """Draws a router's weight as ``nn.Linear`` does: uniform in ±1/sqrt(H)."""
    nn.init.kaiming_uniform_(weight, a=5**0.5)


def router_logits(x: Tensor, weight: Tensor, bias: Tensor | None, precision: str) -> Tensor:
    """The raw logits, at least float32.

    Args:
        x: (T, H).
        weight: (E, H), of any dtype.
        bias: (E,) or None.
        precision: "float32": computed in float32, or in the input's dtype where that is finer
            (near-equal logits in bfloat16 would else be ordered by rounding); "float64": in
            float64; "input": in the input's dtype and widened afterwards.

    Returns:
        (T, E), float32 or float64.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    dtype = {"float32": wide, "float64": torch.float64, "input": x.dtype}[precision]
    # Entering the block takes as long as the product for one token.
    lowered = x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)
    with without_autocast(x.device.type) if lowered else nullcontext():
        bias = None if bias is None else bias.to(dtype)
        logits = F.linear(x.to(dtype), weight.to(dtype), bias)  # (T, E)
    return logits.to(torch.promote_types(dtype, torch.float32))


@contextmanager
def without_autocast(device_type: str) -> Iterator[None]:
    """A block in which autocast does not lower the precision that was asked for."""
    if not torch.amp.is_autocast_available(device_type):
        yield
        return
    with torch.autocast(device_type=device_type, enabled=False):
        yield


def first_largest(values: Tensor, count: int) -> Tensor:
    """The indices of the largest values in the last dimension, larger first.

    Among equal values the lower index comes first, on every device and in every batch;
    ``torch.topk`` promises no order.

    Args:
        values: (..., M).
        count: How many, in [0, M].

    Returns:
        (..., count) int64.
    """
    if values.dtype != torch.float32 or _few(values):
        return torch.sort(values, dim=-1, descending=True, stable=True).indices[..., :count]
    # A unique integer per value and index: 1.3 times topk's time, where a sort takes 3 to 4.
    size = values.shape[-1]
    reverse = torch.arange(size - 1, -1, -1, device=values.device)
    keys = (in_order(values).long() << 32) | reverse
    return size - 1 - (keys.topk(count, dim=-1).values & 0xFFFFFFFF)


def _few(values: Tensor) -> bool:
    # A compiler that follows the shape would have to make two programs of it.
    return not torch.compiler.is_compiling() and values.numel() <= FEW


def in_order(values: Tensor) -> Tensor:
    """float32 as int32 in the same order, with -0.0 equal to 0.0."""
    bits = (values + 0.0).view(torch.int32)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def token_choice(expert: Tensor, weight: Tensor, logits: Tensor, scores: Tensor) -> Routing:
    """The routing of a choice table.

    Args:
        expert: (T, K) int64.
        weight: (T, K).
        logits: (T, E).
        scores: (T, E).
    """
    tokens, per_token = expert.shape
    position = torch.arange(tokens * per_token, device=expert.device)
    token = position.div(per_token, rounding_mode="floor")
    return Routing(token, expert.reshape(-1), weight.reshape(-1), per_token, logits, scores)

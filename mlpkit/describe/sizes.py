"""Parameters and FLOPs of any FFN from its name and options, without building all of it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mlpkit.build import Component, build_ffn, effective_activation, plain
from mlpkit.build.parts import split
from mlpkit.plugins import registries
from mlpkit.schema import holds_experts
from mlpkit.specs import FFNSpec, resolve

KINDS = ("params", "active_params", "flops")


@dataclass(frozen=True, kw_only=True)
class Span:
    """A number that may depend on which experts a token is sent to.

    Args:
        low: For the cheapest choice of experts.
        mean: With every expert used equally often, rounded to a whole number.
        high: For the dearest choice.
    """

    low: int
    mean: int
    high: int

    def __add__(self, other: Span) -> Span:
        return Span(
            low=self.low + other.low, mean=self.mean + other.mean, high=self.high + other.high
        )


def always(value: int) -> Span:
    """A number that is the same for every token."""
    return Span(low=value, mean=value, high=value)


@dataclass(frozen=True, kw_only=True)
class Size:
    """What an FFN holds and what it costs.

    Args:
        parameters: All of them.
        active: Those that one token uses: K of E experts, and everything else.
        flops: Forward FLOPs per token of the matrix products; a multiply-add is 2.
    """

    parameters: int
    active: Span
    flops: Span

    def of(self, kind: str) -> int:
        """One number: "params", "active_params" or "flops", the latter two on average.

        Raises:
            KeyError: Another kind.
        """
        numbers = (self.parameters, self.active.mean, self.flops.mean)
        return dict(zip(KINDS, numbers, strict=True))[kind]


def fixed(parameters: int, flops: int) -> Size:
    """The size of a part that every token uses in the same way."""
    return Size(parameters=parameters, active=always(parameters), flops=always(flops))


def ffn_size(
    ffn: Component, *, hidden_size: int, inherited_activation: Component | None = None
) -> Size:
    """The size of an FFN: by its spec's formulas, part by part in a MoE, else counted.

    Args:
        ffn: Its name, or its mapping.
        hidden_size: H.
        inherited_activation: The run's activation.

    Raises:
        UnknownNameError: No FFN, router or activation has the name.
        ValueError: An option it does not have, or a value it refuses.
    """
    name, options = split(plain(ffn), {})
    spec = registries().ffn.get(name)
    if holds_experts(spec):
        from mlpkit.describe.mixtures import moe_size  # a dense model loads no MoE code

        return moe_size(options, hidden_size=hidden_size, inherited_activation=inherited_activation)
    formulas = has_formulas(spec, options, inherited_activation)
    if formulas and spec.num_params is not None and spec.flops_per_token is not None:
        return fixed(
            int(resolve(spec.num_params)(hidden_size, **options)),
            int(resolve(spec.flops_per_token)(hidden_size, **options)),
        )
    with torch.device("meta"):
        module = build_ffn(
            {"name": name, **options},
            hidden_size=hidden_size,
            inherited_activation=inherited_activation,
        )
    return fixed(count_parameters([module]), count_flops(module, hidden_size))


def has_formulas(
    spec: FFNSpec, options: dict[str, Any], inherited_activation: Component | None
) -> bool:
    """Whether an FFN's formulas count everything: an activation may have parameters of its own."""
    chosen = effective_activation(spec, options.get("activation"), inherited_activation)
    if spec.num_params is None or spec.flops_per_token is None or isinstance(chosen, nn.Module):
        return False
    if chosen is None:
        return True
    return not registries().activation.get(split(chosen, {})[0]).parameters


def count_parameters(modules: Iterable[nn.Module]) -> int:
    """Parameters of modules together, each tensor once."""
    unique = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(unique.values())


def count_flops(module: nn.Module, hidden_size: int) -> int:
    """Forward FLOPs per token of a module (..., H), as torch counts matrix products."""
    tokens = 64  # enough for parts that work on groups of tokens; the count is an average
    module = copy.deepcopy(module).to("meta")
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.empty(1, tokens, hidden_size))
    return int(counter.get_total_flops()) // tokens

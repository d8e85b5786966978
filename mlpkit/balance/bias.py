"""SelectionBias and update_router_bias: balance without a loss, once per optimizer step."""

from __future__ import annotations

from typing import Protocol, cast, final

import torch
from torch import Tensor, nn

from mlpkit.balance.terms import BalanceError, one_of
from mlpkit.routing import Record

STEPS = ("sign", "proportional")


class BiasRule(Protocol):
    """What ``update_router_bias`` asks of an entry of a layer's ``balance``; it is no term."""

    def update(self, bias: Tensor, load: Tensor) -> None:
        """Moves the bias (E,) in place, by the tokens (E,) that each expert got in the step."""
        ...


class BiasUpdateError(ValueError):
    """A bias rule that finds no bias to update."""

    exit_code = 2


@final
class SelectionBias:
    """Raises the selection bias of experts with too few tokens, lowers that of the others.

    b ← (1 - decay)·b + coefficient·step(error), with error = mean(load) - load. "sign" is
    Wang 2024 (arXiv:2408.15664), as DeepSeek-V3 uses it; "proportional" takes error / mean, and
    with decay d the bias is coefficient/d times the moving average of that.

    Args:
        coefficient: The speed, in units of the score; 0 switches the rule off.
        step: "sign" or "proportional".
        zero_mean: Whether the mean of each step is taken out, so that the bias cannot drift.
        decay: In [0, 1); 0 keeps everything.

    Raises:
        BalanceError: An option out of range.
    """

    def __init__(
        self,
        *,
        coefficient: float = 0.001,
        step: str = "sign",
        zero_mean: bool = False,
        decay: float = 0.0,
    ) -> None:
        one_of("step", step, STEPS)
        if not 0 <= decay < 1:
            raise BalanceError(f"decay is {decay}; choose a number in [0, 1)")
        self.coefficient, self.step = coefficient, step
        self.zero_mean, self.decay = zero_mean, decay

    @torch.no_grad()
    def update(self, bias: Tensor, load: Tensor) -> None:
        """Moves the bias (E,) in place, by the tokens (E,) that each expert got in the step."""
        counts = load.to(bias.device, torch.float64)  # exact for any count
        mean = counts.mean()
        error = (mean - counts) / mean.clamp(min=1e-12)
        move = self.coefficient * (error.sign() if self.step == "sign" else error)
        if self.zero_mean:
            move = move - move.mean()
        bias.mul_(1 - self.decay).add_(move.to(bias.dtype))


def update_router_bias(model: nn.Module, record: Record) -> None:
    """Applies every layer's bias rule to the training tokens since the last call.

    Call it once per optimizer step, after it: several forwards of accumulation count together,
    forwards in evaluation mode do not count, and a layer that did not run keeps its bias. Under
    ``torch.distributed`` the counts of all ranks are summed first, so every rank must call it.

    Args:
        model: The model that was recorded.
        record: Its open (or closed) record; the counts are taken out of it.

    Raises:
        BiasUpdateError: A layer has a rule, but its router was built without selection bias.
    """
    inside = set(model.modules())
    loads = record.take_step_load()
    for name, layer in record.layers.items():
        rules = bias_rules(layer)
        if layer not in inside or not rules:
            continue
        bias = selection_bias(name, layer)
        # Every process takes part in the sum, also one where the layer did not run.
        own = torch.zeros_like(bias, dtype=torch.int64) + loads.get(name, 0)
        total = summed_over_ranks(own)
        if total.sum() > 0:
            for rule in rules:
                rule.update(bias, total)


def bias_rules(layer: nn.Module) -> list[BiasRule]:
    """The rules among a layer's balance entries that are switched on."""
    balance = getattr(layer, "balance", None) or {}
    return [
        rule
        for rule in balance.values()
        if hasattr(rule, "update") and getattr(rule, "coefficient", 0.0) != 0.0
    ]


def selection_bias(name: str, layer: nn.Module) -> Tensor:
    """The selection bias of a layer's router.

    Raises:
        BiasUpdateError: It has none.
    """
    bias = getattr(getattr(layer, "router", None), "e_score_correction_bias", None)
    if bias is None:
        raise BiasUpdateError(
            f"layer {name!r} has a bias rule, but its router has no selection bias; set "
            "router.selection_bias=true or remove the rule"
        )
    return cast(Tensor, bias)


def summed_over_ranks(load: Tensor) -> Tensor:
    """The counts of all ranks, where there are several."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(load)
    return load

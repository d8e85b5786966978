"""Known traps, as pure functions over a configuration; each names the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mlpkit.lint.findings import Finding
from mlpkit.lint.mixtures import (
    balance_trains_a_router,
    bias_rule_has_a_bias,
    capacity_leaves_room,
    coefficient_fits_its_convention,
    experts_per_token_fit,
    groups_hold_enough_experts,
    options_are_read,
    router_is_balanced,
    routing_is_causal,
    top1_trains_its_router,
)
from mlpkit.lint.models import (
    activation_is_read,
    experts_are_plain,
    heads_divide,
    slots_are_used,
    takes_activation,
    width_is_valid,
    width_suits_the_hardware,
)
from mlpkit.plugins import Registries

# What ``lint.allow`` may name: the errors of runs that can be made all the same.
CODES = (
    "non-causal",
    "small-capacity",
    "top1-normalised",
    "two-conventions",
    "unread-activation",
)

__all__ = ["CODES", "RULES", "Finding", "TrapWarning", "lint", "lint_ffn", "takes_activation"]

RULES: tuple[Callable[[Any, Registries], Iterator[Finding]], ...] = (
    heads_divide,
    width_is_valid,
    width_suits_the_hardware,
    activation_is_read,
    experts_per_token_fit,
    groups_hold_enough_experts,
    top1_trains_its_router,
    routing_is_causal,
    router_is_balanced,
    balance_trains_a_router,
    bias_rule_has_a_bias,
    capacity_leaves_room,
    coefficient_fits_its_convention,
    options_are_read,
    experts_are_plain,
    slots_are_used,
)
# Those that hold whatever stands around the FFN (an encoder may look ahead), and that its
# constructor does not refuse.
FFN_RULES = (top1_trains_its_router,)


class TrapWarning(UserWarning):
    """A known trap that an FFN built in Python walks into."""


def lint(config: Any, regs: Registries) -> list[Finding]:
    """Everything found, without the errors that ``lint.allow`` names.

    Args:
        config: A composed configuration, or a mapping of the same shape.
        regs: The registries that its names are looked up in.
    """
    allowed = set(config["lint"]["allow"])
    found = [finding for rule in RULES for finding in rule(config, regs)]
    return [f for f in found if not (f.is_error and f.code and f.code in allowed)]


def lint_ffn(ffn: Mapping[str, Any], regs: Registries) -> list[Finding]:
    """The traps of a single FFN, without the notes.

    Args:
        ffn: Its mapping with ``name`` and, of a MoE, all of ``MoEConfig``'s options.
        regs: The registries that its names are looked up in.
    """
    found = [finding for rule in FFN_RULES for finding in rule({"ffn": ffn}, regs)]
    return [finding for finding in found if finding.is_error]

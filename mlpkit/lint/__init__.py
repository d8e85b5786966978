"""Known traps, as pure functions over a configuration; each names the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mlpkit.lint.findings import Finding
from mlpkit.lint.mixtures import (
    balance_trains_a_router,
    bias_rule_has_a_bias,
    capacity_leaves_room,
    coefficient_fits_its_convention,
    experts_per_token_fit,
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

# What ``lint.allow`` may name.
CODES = (
    "large-balance",
    "non-causal",
    "small-capacity",
    "top1-normalised",
    "two-conventions",
    "unread-activation",
    "unread-option",
)

__all__ = ["CODES", "RULES", "Finding", "lint", "takes_activation"]

RULES: tuple[Callable[[Any, Registries], Iterator[Finding]], ...] = (
    heads_divide,
    width_is_valid,
    width_suits_the_hardware,
    activation_is_read,
    experts_per_token_fit,
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


def lint(config: Any, regs: Registries) -> list[Finding]:
    """Everything found, without the errors that ``lint.allow`` names.

    Args:
        config: A composed configuration, or a mapping of the same shape.
        regs: The registries that its names are looked up in.
    """
    allowed = set(config["lint"]["allow"])
    found = [finding for rule in RULES for finding in rule(config, regs)]
    return [f for f in found if not (f.is_error and f.code and f.code in allowed)]

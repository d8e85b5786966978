"""How an FFN's width came about, in words: the rule, its steps and the rounding."""

from __future__ import annotations

from mlpkit.build import Component, plain
from mlpkit.build.parts import split
from mlpkit.describe.sizes import ffn_size
from mlpkit.plugins import registries
from mlpkit.sizing import (
    MULTIPLE,
    WIDTH_RULES,
    WidthError,
    explain_width,
    resolve_width,
    round_steps,
)

RULED = "intermediate_size"  # the option that the rules are for
ELSEWHERE = 1000  # a hidden size at which every rule gives another width


def width_steps(ffn: Component, hidden_size: int) -> str:
    """How a dense FFN's width came about: ``8/3·512 = 1365.33 ↑64 → 1408``.

    Args:
        ffn: Its name, or its mapping.
        hidden_size: H.

    Returns:
        The steps; empty if it has no width, or one by a rule of its own.
    """
    name, options = split(plain(ffn), {})
    spec = registries().ffn.get(name)
    value = options.get(spec.width) if spec.width else None
    if spec.width != RULED:
        return "" if value is None else f"{spec.width} = {value}, as given"
    # the rule that null means matters only for null
    rule = null_rule(ffn, hidden_size) if value is None else str(value)
    try:
        return explain_width(value, hidden_size, rule) if rule else ""
    except WidthError:  # a stranger's own rule
        return ""


def expert_width_steps(
    expert: Component, matched: Component, hidden_size: int, num_experts_per_tok: int
) -> str:
    """How an expert's width came about: without one of its own, it is the dense width over K.

    Args:
        expert: Its name or mapping, as configured.
        matched: The same with the width that the MoE put in, if it put in one.
        hidden_size: The width that it works in.
        num_experts_per_tok: K.

    Returns:
        The steps; empty if it has no width, or one by a rule of its own.
    """
    steps = width_steps(expert, hidden_size)
    rule = null_rule(expert, hidden_size)
    if matched == expert or not steps or not rule:
        return steps
    dense = resolve_width(None, hidden_size, rule)
    share = dense / num_experts_per_tok
    return f"{steps}, {round_steps(f'{dense}/{num_experts_per_tok}', share, MULTIPLE)}"


def null_rule(ffn: Component, hidden_size: int) -> str | None:
    """The rule that an FFN takes for a null width: the one with which it counts the same.

    Args:
        ffn: Its name, or its mapping.
        hidden_size: H.

    Returns:
        The rule's name; None if it has one of its own, or cannot be counted.
    """
    name, options = split(plain(ffn), {})

    def counts(width: str | None) -> list[int]:
        sized = {"name": name, **options, RULED: width}
        sizes = (hidden_size, ELSEWHERE)
        return [ffn_size(sized, hidden_size=size).parameters for size in sizes]

    if registries().ffn.get(name).width != RULED:
        return None
    try:
        null = counts(None)
        found = [rule for rule in WIDTH_RULES if counts(rule) == null]
    except (TypeError, ValueError):  # it knows no rules, or not this hidden size
        return None
    return found[0] if len(found) == 1 else None

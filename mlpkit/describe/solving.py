"""The width of any FFN for a budget of parameters, active parameters or FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlpkit.build import Component, plain
from mlpkit.build.parts import split
from mlpkit.describe.sizes import KINDS, ffn_size
from mlpkit.plugins import registries
from mlpkit.schema import schema_of
from mlpkit.sizing import Solution, nearest_width

Keys = tuple[str | int, ...]


class UnmatchedError(ValueError):
    """An FFN without one width that a budget could set."""

    exit_code = 2


def solve_width(
    ffn: Component,
    *,
    hidden_size: int,
    target: int,
    kind: str = "params",
    multiple: int = 1,
    inherited_activation: Component | None = None,
) -> Solution:
    """The width with which an FFN comes nearest to a budget.

    The width is the option that the FFN's spec names, in a MoE that of its experts:
    ``with_width`` puts it in, ``width_key`` says where.

    Args:
        ffn: Its name, or its mapping; a width in it is not looked at.
        hidden_size: H.
        target: The budget, e.g. ``ffn_size("swiglu", hidden_size=512).of("flops")``.
        kind: What the budget counts: "params", "active_params" or "flops" (forward, per token).
        multiple: Only multiples of it are tried.
        inherited_activation: The run's activation.

    Raises:
        UnmatchedError: The FFN has no width, or several.
        BudgetError: The budget is below 1, or no width comes to it.
        ValueError: There is no such kind, or the FFN refuses an option.
    """
    if kind not in KINDS:
        raise UnmatchedError(f"match is {kind!r}; choose one of {', '.join(KINDS)}")
    width_keys(ffn)  # an FFN without a width is refused before anything is counted

    def count(width: int) -> int:
        return ffn_size(
            with_width(ffn, width),
            hidden_size=hidden_size,
            inherited_activation=inherited_activation,
        ).of(kind)

    return nearest_width(count, target, multiple=multiple)


def width_key(ffn: Component) -> str:
    """The dotted option that is an FFN's width, e.g. ``expert.intermediate_size`` of a MoE.

    Raises:
        UnmatchedError: It has no width, or several.
    """
    return ".".join(str(key) for key in width_keys(ffn))


def width_keys(ffn: Component) -> Keys:
    """The keys that lead to an FFN's width.

    Args:
        ffn: Its name, or its mapping.

    Raises:
        UnmatchedError: It has no width, or several.
    """
    name, options = split(plain(ffn), {})
    width = registries().ffn.get(name).width
    if width is None:
        raise UnmatchedError(f"ffn {name!r} has no width, so no budget can be met with it")
    part, dot, _ = width.partition(".")
    if not dot:
        return (width,)
    # The part decides what its width is called: the experts may be anyone's FFN.
    given = with_defaults(name, options)
    several = given.get(f"{part}s")
    if several is None:
        return (part, *width_keys(given[part]))
    return (f"{part}s", *_only_width(name, several))


def with_width(ffn: Component, width: int) -> dict[str, Any]:
    """An FFN's mapping with its width put in.

    Args:
        ffn: Its name, or its mapping.
        width: The width.

    Raises:
        UnmatchedError: It has no width, or several.
    """
    placed: dict[str, Any] = _placed(plain(ffn), width_keys(ffn), width)
    return placed


def with_defaults(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an FFN, with the defaults of those that are not given."""
    return {**vars(schema_of("ffn", registries().ffn.get(name))()), **options}


def _only_width(name: str, types: list[Component]) -> Keys:
    """The keys of the one type of expert that has a width: zero and copy experts have none."""
    found: list[Keys] = []
    for index, entry in enumerate(types):
        try:
            found.append((index, *width_keys(entry)))
        except UnmatchedError:
            continue
    if len(found) != 1:
        raise UnmatchedError(
            f"ffn {name!r} has {len(found)} types of experts with a width; a budget sets one"
        )
    return found[0]


def _placed(node: Any, keys: Keys, width: int) -> Any:
    if not keys:
        return width
    key, *rest = keys
    if isinstance(key, int):
        return [_placed(n, tuple(rest), width) if i == key else n for i, n in enumerate(node)]
    name, options = split(node, {})
    inner = with_defaults(name, options).get(key)
    return {"name": name, **options, key: _placed(inner, tuple(rest), width)}

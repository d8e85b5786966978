"""Equal budgets: the width of every FFN solved for what another FFN counts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from mlpkit.compose import ConfigError, compose
from mlpkit.compose.checks import check_component
from mlpkit.layers import key_of, layers_by_slot, slot_ffns
from mlpkit.plugins import registries

UNIT = 8  # matrix engines are fast on multiples of it
TOLERANCE = 0.01  # the share of a budget that a multiple of UNIT may cost

Record = dict[str, Any]


def match_budget(config: DictConfig) -> tuple[DictConfig, Record | None]:
    """A configuration with the width of every slot's FFN solved for its budget.

    The budget is what ``match_to`` counts in a layer of the same hidden size, with its own default
    width and activation, whatever else the variant changes. Widths are multiples of 8 where that
    costs less than 1 % of the budget. Solving again gives the same.

    Args:
        config: A composed configuration; it stays as it is.

    Returns:
        The configuration and the record: ``kind``, ``to``, ``target`` and ``actual`` of one layer,
        ``width_key``, ``width``, ``residual`` (actual / target - 1); of an FFN without a width that
        could be solved ``unmatched`` with the reason instead. With several slots it is that of the
        worst, and ``slots`` holds all. None where ``match`` is none.

    Raises:
        ConfigError: ``match_to`` is no FFN.
    """
    if config.match == "none":
        return config, None
    to, target = budget(config)
    matched = copy.deepcopy(config)
    common = {"kind": config.match, "to": to, "target": target}
    slots = {
        slot: {**common, **_match_slot(matched, slot, target)} for slot in layers_by_slot(config)
    }
    worst = max(slots.values(), key=distance)
    return matched, {**worst, "slots": slots} if len(slots) > 1 else worst


def budget(config: DictConfig) -> tuple[str, int]:
    """What ``match_to`` is called, and what it counts in one layer.

    Raises:
        ConfigError: It is no FFN.
    """
    from mlpkit.describe import ffn_size  # torch: what only lists a sweep does without

    component, name = target_ffn(config.match_to)
    try:
        size = ffn_size(component, hidden_size=config.model.hidden_size)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"match_to: {error}") from error
    count = size.of(config.match)
    if count < 1:
        raise ConfigError(
            f"match_to is {name}, which counts no {config.match}; choose an FFN with weights"
        )
    return name, count


def target_ffn(match_to: Any) -> tuple[Any, str]:
    """The FFN that ``match_to`` means, and how it is written in a record.

    Args:
        match_to: The name of an FFN or of a preset, or a mapping with a ``name``.

    Raises:
        ConfigError: There is no such FFN.
    """
    if isinstance(match_to, str):
        known = registries().ffn.has(match_to)  # the rest are presets, which Hydra composes
        return (match_to if known else _preset(match_to)), match_to
    plain = OmegaConf.to_container(match_to, resolve=True) if match_to is not None else None
    if not isinstance(plain, Mapping) or not isinstance(plain.get("name"), str):
        raise ConfigError(
            f"match_to is {plain!r}; give an FFN's name, or a mapping such as "
            "{name: swiglu, intermediate_size: 512}"
        )
    component, _ = target_ffn(plain["name"])
    options = {str(key): value for key, value in plain.items() if key != "name"}
    whole = {"name": component} if isinstance(component, str) else component
    merged = {**whole, **options}
    check_component("match_to", OmegaConf.create(merged), "ffn", registries())
    shown = ", ".join(f"{key}={value}" for key, value in options.items())
    return merged, f"{plain['name']}({shown})" if shown else plain["name"]


def distance(record: Mapping[str, Any]) -> float:
    """How far a match is from its budget, as a share; of an unmatched FFN infinitely."""
    return abs(record["residual"]) if "residual" in record else float("inf")


def residual_text(record: Mapping[str, Any] | None) -> str:
    """The residual of a match for a table: ``+0.02 %``, ``unmatched``, or nothing."""
    if record is None:
        return ""
    return f"{record['residual']:+.2%}" if "residual" in record else "unmatched"


def _preset(name: str) -> Any:
    try:
        return OmegaConf.to_container(compose([f"ffn={name}"]).ffn, resolve=True)
    except ConfigError as error:
        raise ConfigError(f"match_to: {error}") from error


def _match_slot(config: DictConfig, slot: str, target: int) -> Record:
    """Puts the solved width of a slot's FFN into a configuration; returns how it went."""
    from mlpkit.build import plain
    from mlpkit.describe import UnmatchedError, solve_width, width_key, with_width
    from mlpkit.sizing import BudgetError

    key, ffn = key_of(slot), plain(slot_ffns(config)[slot])
    solved = None
    for multiple in (UNIT, 1):
        try:
            found = solve_width(
                ffn,
                hidden_size=config.model.hidden_size,
                target=target,
                kind=config.match,
                multiple=multiple,
                inherited_activation=plain(config.activation),
            )
        except (UnmatchedError, BudgetError) as error:
            return {"unmatched": str(error)}
        except ValueError as error:  # an FFN that refuses some widths
            if solved is None:
                return {"unmatched": str(error)}
            break
        if solved is None or abs(found.residual) < abs(solved.residual):
            solved = found
        if abs(solved.share) <= TOLERANCE:
            break
    assert solved is not None
    inside = width_key(ffn)
    put(config, f"{key}.{inside}", with_width(ffn, solved.width), key)
    return {
        "actual": solved.reached,
        "width_key": f"{key}.{inside}",
        "width": solved.width,
        "residual": solved.share,
    }


def put(config: DictConfig, full: str, ffn: Mapping[str, Any], key: str) -> None:
    """Sets one option of an FFN, and its parents only where they are not mappings yet.

    Args:
        config: The configuration that is changed.
        full: The option's dotted key.
        ffn: The FFN's mapping with the option in it.
        key: The FFN's key.
    """
    path = key
    value: Any = ffn
    for step in full.removeprefix(f"{key}.").split("."):
        node = OmegaConf.select(config, path)
        if not OmegaConf.is_config(node):  # a part that was given by its bare name
            break
        path = f"{path}.{step}"
        value = value[int(step)] if isinstance(value, list) else value[step]
    with open_dict(config):
        OmegaConf.update(config, path, value, force_add=True)

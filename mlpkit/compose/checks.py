"""The check after compose: components, keys, ranges, then the lint."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mlpkit.configs.run import LintConfig, ModelConfig, ParallelConfig, RunConfig, TrainingConfig
from mlpkit.layers import MAIN, LayerPatternError, slots_by_layer
from mlpkit.lint import CODES, lint
from mlpkit.plugins import Registries, registries
from mlpkit.registry import NAME, Registry, UnknownNameError, suggestion
from mlpkit.schema import COMPONENTS, schema_of

# The nodes whose schema is mlpkit's own, whatever is chosen.
TYPED: dict[str, type] = {
    "": RunConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "lint": LintConfig,
    "parallel": ParallelConfig,
}
# Limits in a field's metadata; a NaN passes none of them.
BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "maximum": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names key, value and the way out."""

    exit_code = 2


def check(config: DictConfig) -> None:
    """Checks a composed configuration: components, ranges, then the lint.

    Raises:
        ConfigError: What is wrong, with its key.
    """
    try:
        OmegaConf.to_container(config, resolve=True)  # an interpolation that leads nowhere
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {first_line(error)}") from error
    _check(config, registries())


def _check(config: DictConfig, regs: Registries) -> None:
    check_component("ffn", config.ffn, "ffn", regs)
    check_component("data", config.data, "data", regs)
    if config.activation is not None:
        check_component("activation", config.activation, "activation", regs)
    for key, schema in TYPED.items():
        check_values(key, OmegaConf.select(config, key) if key else config, schema)
    check_slots(config, regs)
    for code in config.lint.allow:
        if code not in CODES:
            hint = suggestion(str(code), CODES)
            raise ConfigError(f"lint.allow names {code!r}{hint} (there are: {', '.join(CODES)})")
    errors = [finding for finding in lint(config, regs) if finding.is_error]
    if errors:
        raise ConfigError("\n".join(str(finding) for finding in errors))


def check_slots(config: DictConfig, regs: Registries) -> None:
    """Checks the FFNs of the slots, and the pattern that gives them to layers.

    Raises:
        ConfigError: A slot without a usable name or FFN, or a pattern that names none or leads
            nowhere.
    """
    for slot, node in config.ffns.items():
        if slot == MAIN or not NAME.match(slot):
            reason = "that is ffn" if slot == MAIN else "a name is a-z, 0-9 and _, a letter first"
            raise ConfigError(f"ffns.{slot} cannot be a slot: {reason}; choose another name")
        check_component(f"ffns.{slot}", node, "ffn", regs)
    try:
        slots_by_layer(config)
    except LayerPatternError as error:
        raise ConfigError(str(error)) from error


def group_of(key: str) -> str:
    """The group to choose a component by: ``ffn/router``, of a slot ``+ffn@ffns.dense``."""
    if not key.startswith("ffns."):
        return key.replace(".", "/")
    _, _, *parts = key.split(".")
    return f"ffn/{'/'.join(parts)}@{key}" if parts else f"+ffn@{key}"


def check_component(key: str, node: Any, noun: str, regs: Registries) -> None:
    """Checks a component's node against its entry's schema, and the components inside it.

    Args:
        key: The node's dotted key, for messages.
        node: A name, or a mapping with a ``name``.
        noun: The extension point whose registry holds it.
        regs: The registries.

    Raises:
        ConfigError: An unknown name or key, a changed name, a value of the wrong type.
    """
    registry = regs.by_noun()[noun]
    name = node if isinstance(node, str) else _name(key, node, registry)
    try:
        spec = registry.get(name)
    except UnknownNameError as error:
        raise ConfigError(f"{key}: {error}") from error
    if isinstance(node, str):
        return
    schema = schema_of(noun, spec)
    typed = OmegaConf.get_type(node)
    if typed not in (None, dict) and not issubclass(typed, schema):
        chosen = OmegaConf.structured(typed).name
        raise ConfigError(
            f"{key}.name is {name!r}, but the options there are those of {chosen!r}; "
            f"write {group_of(key)}={name}"
        )
    _check_options(key, node, schema, f"{noun} {name!r}")
    _check_parts(key, node, schema, regs)
    if noun == "router" and node.get("score", "softmax") != "softmax":
        check_component(f"{key}.score", node.score, "activation", regs)


def _check_options(key: str, node: DictConfig, schema: type, owner: str) -> None:
    """Checks a component's keys, and its plain values against their types and limits."""
    known = [field.name for field in dataclasses.fields(schema)]
    for option in node:
        if option not in known:
            raise ConfigError(unknown_key(f"{key}.{option!s}", known, owner))
        if OmegaConf.is_missing(node, option):
            raise ConfigError(f"{key}.{option} has no value; set it: {key}.{option}=VALUE")
    try:
        # without the parts, which may be a name, a mapping or a list, and are checked apart
        own = OmegaConf.masked_copy(node, [o for o in known if o in node and o not in COMPONENTS])
        full = OmegaConf.merge(OmegaConf.structured(schema), own)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}: {first_line(error)}") from error
    assert isinstance(full, DictConfig)
    check_limits(key, full, schema)


def _check_parts(key: str, node: DictConfig, schema: type, regs: Registries) -> None:
    """Checks the components inside a component."""
    known = [field.name for field in dataclasses.fields(schema)]
    defaults = OmegaConf.structured(schema)
    for option in known:
        if option not in COMPONENTS or option not in node:
            continue
        # null where the default is null is the part's absence; elsewhere it is a mistake
        if node[option] is not None or defaults[option] is not None:
            check_component(f"{key}.{option}", node[option], COMPONENTS[option], regs)
    if "experts" in known and node.get("experts") is not None:
        check_expert_types(f"{key}.experts", node.experts, regs)
    if "balance" in known and node.get("balance") is not None:
        check_balance(f"{key}.balance", node.balance, regs)


def check_expert_types(key: str, node: Any, regs: Registries) -> None:
    """Checks a list of expert types.

    Raises:
        ConfigError: It is no list of mappings, or one of them is no FFN.
    """
    if not isinstance(node, ListConfig) or not all(isinstance(e, DictConfig) for e in node):
        raise ConfigError(
            f"{key} is {node!r}; give a list such as [{{name: swiglu, num_experts: 6}}, "
            "{name: zero, num_experts: 2}], or null"
        )
    for index, entry in enumerate(node):
        own = {str(k): v for k, v in entry.items() if k != "num_experts"}
        check_component(f"{key}.{index}", OmegaConf.create(own), "ffn", regs)


def check_balance(key: str, node: Any, regs: Registries) -> None:
    """Checks a mapping of balance names to coefficients or options.

    Raises:
        ConfigError: It is no mapping, or has an unknown name or option.
    """
    if not isinstance(node, DictConfig):
        raise ConfigError(f"{key} is {node!r}; give a mapping such as {{load: 0.01}}, or null")
    for name, value in node.items():
        given: dict[Any, Any] = {"coefficient": value}
        if isinstance(value, DictConfig):
            given = dict(value)
        full = OmegaConf.create({**given, "name": str(name)})
        check_component(f"{key}.{name!s}", full, "balance", regs)


def check_values(key: str, node: DictConfig, schema: type) -> None:
    """Checks the keys of a node, and its plain values.

    Raises:
        ConfigError: An unknown key, or a value that ``check_limits`` refuses.
    """
    if not isinstance(node, DictConfig):  # an interpolation, or deleted
        raise ConfigError(f"{key} is {node!r}; drop {key}=, and change its keys one by one")
    known = [field.name for field in dataclasses.fields(schema)]
    for name in node:
        if name not in known:
            full = f"{key}.{name!s}" if key else str(name)
            raise ConfigError(unknown_key(full, known, key or "the configuration"))
    check_limits(key, node, schema)


def check_limits(key: str, node: DictConfig, schema: type) -> None:
    """Checks the plain values of a node against the limits in its schema's fields.

    Raises:
        ConfigError: No value, one outside its range, or none of its choices.
    """
    for field in dataclasses.fields(schema):
        full = f"{key}.{field.name}" if key else field.name
        if field.name not in node or OmegaConf.is_missing(node, field.name):
            raise ConfigError(f"{full} has no value; set it: {full}=VALUE")
        value, limits = node.get(field.name), field.metadata
        if value is None:
            continue
        for bound, (holds, words) in BOUNDS.items():
            if bound in limits and not holds(value, limits[bound]):
                raise ConfigError(
                    f"{full} is {value!r}; it must be {words} {limits[bound]} ({limits['doc']})"
                )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{full} is {value!r}; give a finite number")
        if "choices" in limits and value not in limits["choices"]:
            hint = suggestion(str(value), limits["choices"])
            raise ConfigError(
                f"{full} is {value!r}{hint} (choices: {', '.join(limits['choices'])})"
            )


def first_line(error: BaseException) -> str:
    """The first line of an error's message that says something: libraries append internals."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")


def unknown_key(key: str, known: Sequence[str], owner: str) -> str:
    """The message for a key that does not exist, with the nearest one that does."""
    parent, _, name = key.rpartition(".")
    hint = suggestion(name, known)
    if hint and parent:
        hint = hint.replace("did you mean '", f"did you mean '{parent}.")
    return f"unknown key {key!r}{hint} ({owner} has: {', '.join(known) or 'no keys'})"


def _name(key: str, node: Any, registry: Registry[Any]) -> str:
    """The name in a component's mapping."""
    if isinstance(node, ListConfig) or not isinstance(node, DictConfig):
        found = "nothing" if node is None else repr(node)
        raise ConfigError(
            f"{key} is {found}; give the name of one of: {', '.join(registry.names())}"
        )
    name = node.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"{key}.name is {name!r}; give one of: {', '.join(registry.names())}")
    return name

"""``compose()``: overrides in, a checked configuration out, and one message for what goes wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mlpkit.compose.checks import ConfigError, check, first_line, unknown_key
from mlpkit.compose.source import GROUPS, conf_dir, install, own_hydra, quote_null
from mlpkit.plugins import registries
from mlpkit.registry import names_text, suggestion

LAUNCHER = "hydra/launcher"


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """Composes and checks the configuration of a run.

    Args:
        overrides: Hydra overrides, e.g. ``["ffn=gated", "model.hidden_size=256"]``.

    Raises:
        ConfigError: An override names no key or group, a value has the wrong type or range, or
            the lint finds a trap that is not allowed.
    """
    install()
    try:
        with own_hydra():
            config = hydra_compose("config", overrides=[quote_null(o) for o in overrides])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, overrides)) from error
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:  # Hydra's, for a group that is given a number
        raise ConfigError(_explain_group(error, overrides)) from error
    check(config)
    return config


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """One message for what Hydra or OmegaConf said: the key, what was found, the nearest key."""
    cause = error.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        if not group:
            return f"there is no configuration {name!r}; leave --config-name out"
        options = sorted(error.options or [])
        hint = suggestion(name, options)
        more = "; others come with pip install 'mlpkit[launchers]'" * (group == LAUNCHER)
        return f"unknown {group} {name!r}{hint} (there are: {_told(group, options)}){more}"
    if isinstance(error, ConfigCompositionException) and "Could not override" in str(error):
        return _explain_override(error, overrides)
    if "Ambiguous value" in str(error):
        (found,) = re.findall(r"'(.*)'", first_line(error))[:1] or [" ".join(overrides)]
        return (
            f"{found}: several values are several runs: add -m; one value with a comma in it "
            "stands in quotes"
        )
    for key, _, value in (override.partition("=") for override in overrides):
        if key in GROUPS and value.startswith("["):
            return f"{key} takes one name; found {value} (a sweep over names: -m {key}=A,B)"
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        if "is not Optional" in str(cause):
            return f"{cause.full_key} cannot be null; give it a value, or leave it out"
        return f"{cause.full_key}: {first_line(cause)}"
    return str(error).strip()


def _told(group: str, options: list[str]) -> str:
    """The options of a group; `mlpkit list` shows entries, and no presets."""
    noun = GROUPS.get(group)
    if noun and options == registries().by_noun()[noun].names():
        return names_text(options, noun)
    return ", ".join(options)


def _explain_override(error: Exception, overrides: Sequence[str]) -> str:
    """The message for an override whose key does not exist, with the nearest one that does."""
    key, at, slot = str(error).split("'")[1].partition("@")
    if at and slot.startswith("ffns."):
        owner = ".".join(slot.split(".")[:2])
        part = "" if slot == owner else f" that has {slot.removeprefix(owner + '.')} to choose"
        return f"{owner} has no FFN{part}; choose one with +ffn@{owner}=NAME"
    rest = [o for o in overrides if o.lstrip("+~").partition("=")[0].replace("/", ".") != key]
    parent = key.replace("/", ".").rpartition(".")[0]
    if parent == "ffns":
        return f"there is no slot {key!r}; write +ffn@{key}=NAME"
    if key in GROUPS and "/" in key:
        owner, _, part = key.rpartition("/")
        return f"the chosen {owner} has no {part} to choose; choose another {owner}, or drop {key}="
    if key in GROUPS:
        return f"{key} takes a name; write {key}=NAME, and its options as {key}.OPTION=VALUE"
    group = key.replace(".", "/")
    if group in GROUPS:  # an existing slot that cannot take the value in one piece
        return f"{key} takes names; write {group}=NAME, and options as {key}.OPTION=VALUE"
    try:
        with own_hydra():
            config: Any = hydra_compose("config", overrides=rest)
        node = OmegaConf.select(config, parent) if parent else config
        known: Iterable[Any] = node if isinstance(node, DictConfig) else []
        return unknown_key(key, [str(k) for k in known], parent or "the configuration")
    except (HydraException, OmegaConfBaseException):
        return first_line(error)


def _explain_group(error: Exception, overrides: Sequence[str]) -> str:
    """The message for a group that is given a number, or null where there is nothing to drop."""
    for key, _, value in (override.partition("=") for override in overrides):
        files = sorted(path.stem for path in Path(conf_dir(), key).glob("*.yaml"))
        if key and (files or key in GROUPS) and (value == "null" or not value[:1].isalpha()):
            names = f" ({', '.join(files)})" if files and key not in GROUPS else ""
            return f"{key} is {value}; give a name{names}, or leave {key}= out"
    return f"{' '.join(overrides)}: {first_line(error)}"

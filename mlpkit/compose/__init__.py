"""Hydra glue: the registries as a config source, ``compose()``, and the check after compose."""

from mlpkit.compose.checks import BOUNDS, ConfigError, check, first_line
from mlpkit.compose.composing import compose, explain
from mlpkit.compose.source import (
    GROUPS,
    NOTHING,
    RegistrySource,
    conf_dir,
    install,
    own_hydra,
    quote_null,
)

__all__ = [
    "BOUNDS",
    "GROUPS",
    "NOTHING",
    "ConfigError",
    "RegistrySource",
    "check",
    "compose",
    "conf_dir",
    "explain",
    "first_line",
    "install",
    "own_hydra",
    "quote_null",
]

"""The one place that knows names and classes: config and registries in, modules out."""

from mlpkit.build.ffns import (
    build_activation,
    build_ffn,
    effective_activation,
    ffn_label,
    ffn_options,
)
from mlpkit.build.hollow import UncountableError, hollow_model
from mlpkit.build.models import build_data, build_model
from mlpkit.build.parts import BuildError, Component, derived_seed, plain, seeded

__all__ = [
    "BuildError",
    "Component",
    "UncountableError",
    "build_activation",
    "build_data",
    "build_ffn",
    "build_model",
    "derived_seed",
    "effective_activation",
    "ffn_label",
    "ffn_options",
    "hollow_model",
    "plain",
    "seeded",
]

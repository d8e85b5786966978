"""Activation functions and their derivatives, the module around them, and ACT2FN."""

from mlpkit.activations.lookup import (
    ACT2FN,
    Activation,
    ActivationMapping,
    NoDerivativeError,
    derivative,
    make_activation,
)
from mlpkit.activations.precision import ActivationOptionError, in_float32, widen

__all__ = [
    "ACT2FN",
    "Activation",
    "ActivationMapping",
    "ActivationOptionError",
    "NoDerivativeError",
    "derivative",
    "in_float32",
    "make_activation",
    "widen",
]

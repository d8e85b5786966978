"""The activations that ship: specs only, their targets as strings, so no torch is imported."""

from __future__ import annotations

from mlpkit.catalogue.activations.bounded import BOUNDED
from mlpkit.catalogue.activations.exponential import EXPONENTIAL
from mlpkit.catalogue.activations.gated import GATED
from mlpkit.catalogue.activations.learned import LEARNED
from mlpkit.catalogue.activations.rectifiers import RECTIFIERS
from mlpkit.specs import ActivationSpec

ACTIVATIONS: tuple[ActivationSpec, ...] = (
    *RECTIFIERS,
    *GATED,
    *EXPONENTIAL,
    *BOUNDED,
    *LEARNED,
)

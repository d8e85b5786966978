"""What ships, in the same form as a stranger's plugin; targets are strings, so no torch."""

from __future__ import annotations

from collections.abc import Iterable

from mlpkit.catalogue.activations import ACTIVATIONS
from mlpkit.catalogue.data import DATA
from mlpkit.catalogue.ffns import FFNS
from mlpkit.catalogue.moe import BACKENDS, MOE_FFNS
from mlpkit.catalogue.routers import BALANCES, ROUTERS
from mlpkit.hookspecs import hookimpl
from mlpkit.specs import (
    ActivationSpec,
    BackendSpec,
    BalanceSpec,
    DataSpec,
    FFNSpec,
    RouterSpec,
)


@hookimpl
def mlpkit_activations() -> Iterable[ActivationSpec]:
    """Yields the built-in activations."""
    yield from ACTIVATIONS


@hookimpl
def mlpkit_ffns() -> Iterable[FFNSpec]:
    """Yields the built-in FFNs."""
    yield from FFNS
    yield from MOE_FFNS


@hookimpl
def mlpkit_routers() -> Iterable[RouterSpec]:
    """Yields the built-in routers."""
    yield from ROUTERS


@hookimpl
def mlpkit_balances() -> Iterable[BalanceSpec]:
    """Yields the built-in balance terms and bias rules."""
    yield from BALANCES


@hookimpl
def mlpkit_backends() -> Iterable[BackendSpec]:
    """Yields the built-in expert backends."""
    yield from BACKENDS


@hookimpl
def mlpkit_data() -> Iterable[DataSpec]:
    """Yields the built-in data sources."""
    yield from DATA

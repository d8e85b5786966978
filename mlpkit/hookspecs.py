"""The whole extension surface: a plugin implements any of these hooks and yields specs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pluggy

from mlpkit.specs import (
    ActivationSpec,
    BackendSpec,
    BalanceSpec,
    DataSpec,
    FFNSpec,
    RouterSpec,
)

PROJECT = "mlpkit"
API = (1, 0)  # a plugin's MLPKIT_API: a hook or contract that breaks raises the first number
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Hooks:
    """One hook per extension point; every hook takes no argument and yields frozen specs."""

    @hookspec
    def mlpkit_activations(self) -> Iterable[ActivationSpec]:
        """Yields activations: functions or modules that act on a tensor's elements."""
        raise AssertionError("a specification is never called")

    @hookspec
    def mlpkit_ffns(self) -> Iterable[FFNSpec]:
        """Yields FFNs: modules (..., H) -> (..., H)."""
        raise AssertionError("a specification is never called")

    @hookspec
    def mlpkit_routers(self) -> Iterable[RouterSpec]:
        """Yields whole routers: modules (T, H) -> Routing."""
        raise AssertionError("a specification is never called")

    @hookspec
    def mlpkit_balances(self) -> Iterable[BalanceSpec]:
        """Yields balance terms and selection-bias rules."""
        raise AssertionError("a specification is never called")

    @hookspec
    def mlpkit_backends(self) -> Iterable[BackendSpec]:
        """Yields expert backends: ways to run stacked experts over sorted tokens."""
        raise AssertionError("a specification is never called")

    @hookspec
    def mlpkit_data(self) -> Iterable[DataSpec]:
        """Yields data sources: documents to train on."""
        raise AssertionError("a specification is never called")

    @hookspec
    def mlpkit_presets(self) -> Iterable[Path | str]:
        """Yields folders of YAML presets, laid out as conf/ is: ffn/router/NAME.yaml."""
        raise AssertionError("a specification is never called")


# Those that yield specs: one for each registry.
HOOKS = tuple(n for n in vars(Hooks) if n.startswith("mlpkit_") and n != "mlpkit_presets")

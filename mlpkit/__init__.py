"""mlpkit: the workbench for the FFN of a Transformer."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mlpkit.activations import ACT2FN as ACT2FN
    from mlpkit.balance import update_router_bias as update_router_bias
    from mlpkit.build import build_activation as build_activation
    from mlpkit.build import build_ffn as build_ffn
    from mlpkit.build import build_model as build_model
    from mlpkit.build.moe import build_router as build_router
    from mlpkit.compose import compose as compose
    from mlpkit.convert.swapping import swap_ffn as swap_ffn
    from mlpkit.describe import describe as describe
    from mlpkit.ffns import FeedForward as FeedForward
    from mlpkit.hookspecs import hookimpl as hookimpl
    from mlpkit.plugins import list_activations as list_activations
    from mlpkit.plugins import list_ffns as list_ffns
    from mlpkit.plugins import list_routers as list_routers
    from mlpkit.plugins import register_activation as register_activation
    from mlpkit.plugins import register_backend as register_backend
    from mlpkit.plugins import register_balance as register_balance
    from mlpkit.plugins import register_data as register_data
    from mlpkit.plugins import register_ffn as register_ffn
    from mlpkit.plugins import register_router as register_router
    from mlpkit.report.frames import load_runs as load_runs
    from mlpkit.routing import record_routing as record_routing
    from mlpkit.specs import ActivationSpec as ActivationSpec
    from mlpkit.specs import BackendSpec as BackendSpec
    from mlpkit.specs import BalanceSpec as BalanceSpec
    from mlpkit.specs import DataSpec as DataSpec
    from mlpkit.specs import FFNSpec as FFNSpec
    from mlpkit.specs import RouterSpec as RouterSpec
    from mlpkit.training.surgery import upcycle as upcycle

# The public names and where they live: imported on first use, so that `import mlpkit` costs
# nothing and what declares a plugin loads no torch.
_HOMES = {
    "ACT2FN": "mlpkit.activations",
    "ActivationSpec": "mlpkit.specs",
    "BackendSpec": "mlpkit.specs",
    "BalanceSpec": "mlpkit.specs",
    "DataSpec": "mlpkit.specs",
    "FFNSpec": "mlpkit.specs",
    "RouterSpec": "mlpkit.specs",
    "FeedForward": "mlpkit.ffns",
    "build_activation": "mlpkit.build",
    "build_ffn": "mlpkit.build",
    "build_model": "mlpkit.build",
    "build_router": "mlpkit.build.moe",
    "compose": "mlpkit.compose",
    "describe": "mlpkit.describe",
    "hookimpl": "mlpkit.hookspecs",
    "load_runs": "mlpkit.report.frames",
    "swap_ffn": "mlpkit.convert.swapping",
    "upcycle": "mlpkit.training.surgery",
    "record_routing": "mlpkit.routing",
    "update_router_bias": "mlpkit.balance",
    "list_activations": "mlpkit.plugins",
    "list_ffns": "mlpkit.plugins",
    "list_routers": "mlpkit.plugins",
    "register_activation": "mlpkit.plugins",
    "register_backend": "mlpkit.plugins",
    "register_balance": "mlpkit.plugins",
    "register_data": "mlpkit.plugins",
    "register_ffn": "mlpkit.plugins",
    "register_router": "mlpkit.plugins",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mlpkit' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


class _Package(ModuleType):
    """Keeps ``mlpkit.compose`` the function: importing a submodule would set it to the module."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

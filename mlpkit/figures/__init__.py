"""Pictures in one style, for the command line, reports and notebooks."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mlpkit.figures.activations import RangeError, plot_activation
from mlpkit.figures.canvas import (
    MissingExtraError,
    PictureError,
    check_picture,
    save_figure,
)
from mlpkit.figures.curves import plot_loss, read_metrics, save_loss_curve
from mlpkit.figures.fonts import FontError
from mlpkit.figures.labels import LanguageError
from mlpkit.figures.lessons import plot_gradients, plot_influence

if TYPE_CHECKING:
    from mlpkit.figures.structures import plot_ffn

# These read and compare runs, which stands above pictures; this is where one looks for them.
_OF_RUNS = ("plot_curves", "plot_effects", "plot_heatmap", "plot_pareto")

__all__ = [
    "FontError",
    "LanguageError",
    "MissingExtraError",
    "PictureError",
    "RangeError",
    "check_picture",
    "plot_activation",
    "plot_ffn",
    "plot_gradients",
    "plot_influence",
    "plot_loss",
    "read_metrics",
    "save_figure",
    "save_loss_curve",
]


def __getattr__(name: str) -> Any:
    if name in _OF_RUNS:
        return getattr(import_module("mlpkit.report"), name)
    if name != "plot_ffn":
        raise AttributeError(f"module 'mlpkit.figures' has no attribute {name!r}")
    # It draws mixtures too, and training a dense model, which draws its loss, loads no MoE code.
    from mlpkit.figures.structures import plot_ffn

    return plot_ffn

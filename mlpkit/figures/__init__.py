"""Pictures in one style, for the command line, reports and notebooks."""

from mlpkit.figures.activations import RangeError, plot_activation
from mlpkit.figures.canvas import (
    MissingExtraError,
    PictureError,
    check_picture,
    save_figure,
)
from mlpkit.figures.fonts import FontError

__all__ = [
    "FontError",
    "MissingExtraError",
    "PictureError",
    "RangeError",
    "check_picture",
    "plot_activation",
    "save_figure",
]

"""Runs compared in charts: curves over training, fronts, heatmaps and main effects."""

from mlpkit.figures.comparison.curves import Curve, draw_curves
from mlpkit.figures.comparison.effects import Effect, draw_effects
from mlpkit.figures.comparison.fronts import Point, draw_front
from mlpkit.figures.comparison.heatmaps import Grid, draw_heatmap

__all__ = [
    "Curve",
    "Effect",
    "Grid",
    "Point",
    "draw_curves",
    "draw_effects",
    "draw_front",
    "draw_heatmap",
]

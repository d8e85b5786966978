"""The loss curve of a run, from its metrics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlpkit.figures.canvas import (
    NORMAL,
    MissingExtraError,
    dress,
    frame,
    new_figure,
    save_figure,
    theme,
)
from mlpkit.figures.labels import words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a last line cut off by a crash is left out."""
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


def plot_loss(metrics: Sequence[dict[str, Any]], *, dark: bool = False, lang: str = "en") -> Figure:
    """Draws training and validation loss against steps.

    Args:
        metrics: The lines of a run's metrics.jsonl; see ``read_metrics``.
        dark: Whether the background is dark.
        lang: "en" or "zh".

    Returns:
        A matplotlib figure, which a notebook shows and ``save_figure`` writes.

    Raises:
        MissingExtraError: matplotlib is not installed.
        FontError: No installed font has the language's characters.
    """
    text, colours = words(lang), theme(dark)
    width, height = 4.8, 3.0
    figure = new_figure(width, height, dark=dark)
    axes = figure.add_axes((0.55 / width, 0.45 / height, 4.1 / width, 2.4 / height))
    frame(axes, colours)
    kinds = (("loss", text.training, "-"), ("val_loss", text.validation, "o-"))
    for (key, label, style), colour in zip(kinds, colours.series, strict=False):
        points = [(line["step"], line[key]) for line in metrics if key in line]
        if points:
            steps, losses = zip(*points, strict=True)
            axes.plot(steps, losses, style, label=label, color=colour, ms=3.5, lw=1.3)
    axes.set_xlabel(text.step, fontsize=NORMAL, color=colours.ink)
    axes.set_ylabel(text.loss, fontsize=NORMAL, color=colours.ink)
    if axes.lines:
        axes.legend(frameon=False, fontsize=NORMAL, labelcolor=colours.ink)
    dress(figure, lang)
    return figure


def save_loss_curve(metrics: Path, out: Path) -> str:
    """Draws a run's loss curve into a file.

    Args:
        metrics: A run's metrics.jsonl.
        out: The picture to write; its ending (.svg, .png, .pdf) is its format.

    Returns:
        Why there is no picture; empty when there is one.
    """
    try:
        save_figure(plot_loss(read_metrics(metrics)), out)
    except MissingExtraError as error:
        return str(error)
    return ""

"""The loss curve of a run, from its metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a last line cut off by a crash is left out."""
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


def save_loss_curve(metrics: Path, out: Path) -> str:
    """Draws training and validation loss against steps.

    Args:
        metrics: A run's metrics.jsonl.
        out: The picture to write; its ending (.svg, .png, .pdf) is its format.

    Returns:
        Why there is no picture; empty when there is one.
    """
    try:  # matplotlib is an extra, and importing it takes most of a second
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        return "matplotlib is not installed; pip install 'mlpkit[report]'"
    lines = read_metrics(metrics)
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasSVG(figure)  # without pyplot: no global state, no display
    axes = figure.add_subplot()
    for key, label, style in (("loss", "training", "-"), ("val_loss", "validation", "o-")):
        points = [(line["step"], line[key]) for line in lines if key in line]
        axes.plot(*zip(*points, strict=True), style, label=label, markersize=4, linewidth=1.3)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
    return ""

"""How the routing of runs changed over training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from mlpkit.figures.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    SHAPES,
    TOP,
    WIDTH,
    Chart,
    Scale,
    scale_over,
    tip,
)
from mlpkit.figures.legends import dashes, draw_legend, legend_height

MEASURES: dict[str, tuple[str, str]] = {  # of metrics.jsonl: name of the axis
    "router_entropy": ("router entropy (nats)", "路由熵（nat）"),
    "max_violation_share": ("MaxVio over its ceiling", "MaxVio / 上限"),
    "max_violation": ("MaxVio", "MaxVio"),
    "load_entropy": ("load entropy / log E", "负载熵 / log E"),
    "dropped_share": ("share of choices dropped", "被丢弃的选择占比"),
}
Points = list[tuple[float, float]]


def plot_routing(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    measure: str = "router_entropy",
    *,
    langs: Sequence[str] = ("en",),
    dark: bool = False,
) -> Chart:
    """Draws how routing changed over training.

    Args:
        runs: Name to the lines of a run's metrics.jsonl; see ``mlpkit.figures.read_metrics``.
        measure: A key of ``MEASURES``.
        langs: The languages of its texts, "en" and "zh".
        dark: Whether a file of it is dark.
    """
    english, chinese = MEASURES[measure]
    label = {"en": english, "zh": chinese}
    lines = {name: _points(rows, measure) for name, rows in runs.items()}
    lines = {name: points for name, points in lines.items() if points}
    height = HEIGHT + legend_height(len(lines))
    chart = Chart(width=WIDTH, height=height, title=label, langs=langs, dark=dark)
    if not lines:
        return chart.nothing()
    steps, values = zip(*(point for points in lines.values() for point in points), strict=True)
    x = scale_over(steps, LEFT, WIDTH - RIGHT, margin=0.02)
    y = scale_over(values, HEIGHT - BOTTOM, TOP)
    chart.axes(x, y, x_label={"en": "step", "zh": "步数"}, y_label=label)
    for index, (name, points) in enumerate(lines.items()):
        _draw_line(chart, index, name, points, x, y)
    draw_legend(chart, list(enumerate(lines)))
    return chart


def _draw_line(chart: Chart, index: int, name: str, points: Points, x: Scale, y: Scale) -> None:
    """One run's line and its points."""
    path = " ".join(f"{x(step):g},{y(value):g}" for step, value in points)
    chart.add(f'<g class="series s{index % SHAPES}">')
    chart.add(f'<polyline class="line"{dashes(index)} points="{path}"/>')
    for step, value in points[:: max(1, len(points) // 40)]:
        words = tip(f"{name}: {value:.4g} @ {step:g}")
        place = f'cx="{x(step):g}" cy="{y(value):g}"'
        chart.add(f'<circle class="dot" {place} r="2.6">{words}</circle>')
    chart.add("</g>")


def _points(rows: Sequence[Mapping[str, Any]], measure: str) -> Points:
    found = ((row.get("step"), row.get(measure)) for row in rows)
    return [(step, value) for step, value in found if _is_number(step) and _is_number(value)]


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)

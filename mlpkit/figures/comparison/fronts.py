"""Losses against costs, and the front of what nothing beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlpkit.figures.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    SHAPES,
    TOP,
    WIDTH,
    Chart,
    Label,
    Scale,
    clipped,
    scale_over,
    short,
    tip,
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One variant's place: what it costs and how good it is.

    Args:
        name: What it is called.
        x: The cost.
        y: The mean loss.
        low: Lower end of the interval; None for no interval.
        high: Upper end of the interval.
        front: Whether nothing else is at least as good in both and better in one.
        index: Its number, which decides its colour.
    """

    name: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    front: bool = False
    index: int = 0


def draw_front(
    points: Sequence[Point],
    *,
    title: Label,
    x_label: Label,
    y_label: Label,
    more_is_better: bool = False,
    langs: Sequence[str] = ("en",),
    dark: bool = False,
) -> Chart:
    """Draws losses against a cost, and the front of those that nothing beats in both.

    Args:
        points: The variants; costs are above 0.
        title: What the chart shows.
        x_label: Name of the cost.
        y_label: Name of the loss.
        more_is_better: Whether a greater x is the better one, as with tokens per second.
        langs: The languages of its texts.
        dark: Whether a file of it is dark.
    """
    chart = Chart(width=WIDTH, height=HEIGHT, title=title, langs=langs, dark=dark)
    if not points:
        return chart.nothing()
    costs = [point.x for point in points]
    log = max(costs) / min(costs) > 3
    right = WIDTH - RIGHT
    x = scale_over(costs, LEFT, right, log=log, margin=0.12)
    ends = [v for p in points for v in (p.y, p.low, p.high) if v is not None]
    y = scale_over(ends, HEIGHT - BOTTOM, TOP, margin=0.08)
    chart.axes(x, y, x_label=x_label, y_label=y_label)
    front = sorted((p for p in points if p.front), key=lambda p: (p.x, p.y))
    if len(front) > 1:
        chart.add(f'<path class="front" d="{_steps(front, x, y, more_is_better)}"/>')
    taken: list[tuple[float, float]] = []
    for point in points:
        _draw_point(chart, point, x, y)
    for point in sorted(points, key=lambda p: not p.front):
        _name_point(chart, point, x, y, taken, right)
    return chart


def _steps(front: Sequence[Point], x: Scale, y: Scale, more_is_better: bool) -> str:
    """The staircase along the front: what is within reach at a cost is the best so far."""
    path = f"M{x(front[0].x):g} {y(front[0].y):g}"
    for point in front[1:]:
        across, along = f"H{x(point.x):g}", f"V{y(point.y):g}"
        path += along + across if more_is_better else across + along
    return path


def _draw_point(chart: Chart, point: Point, x: Scale, y: Scale) -> None:
    left, up = x(point.x), y(point.y)
    chart.add(f'<g class="series v{point.index} s{point.index % SHAPES}">')
    words = f"{point.name}: {point.y:.5g}"
    if point.low is not None and point.high is not None:
        words += f" [{point.low:.5g}, {point.high:.5g}]"
        chart.add(f'<path class="whisker" d="M{left:g} {y(point.low):g}V{y(point.high):g}"/>')
    words = tip(f"{words} @ {short(point.x, digits=6)}")
    chart.add(f'<circle class="dot" cx="{left:g}" cy="{up:g}" r="5">{words}</circle></g>')


def _name_point(
    chart: Chart, point: Point, x: Scale, y: Scale, taken: list[tuple[float, float]], right: float
) -> None:
    """Writes a point's name where no other name stands; a crowd keeps the names of its front."""
    name = clipped(point.name, 34)
    left, base = x(point.x), y(point.y) - 8
    width = 6.0 * len(name)
    start = left + 8 if left + 8 + width < right else left - 8 - width
    for shift in (0.0, 20.0, -13.0, 33.0):
        if all(abs(base + shift - b) > 12 or abs(start - a) > width for a, b in taken):
            break
    else:
        return
    taken.append((start, base + shift))
    chart.add(f'<g class="series v{point.index}">')
    chart.text(start, base + shift, name, kind="strong" if point.front else "")
    chart.add("</g>")

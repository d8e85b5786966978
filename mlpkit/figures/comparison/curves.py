"""Losses over training, a line with its band for every variant."""

from __future__ import annotations

import math
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
    scale_over,
    short,
    tip,
)
from mlpkit.figures.legends import dashes, draw_legend, legend_height


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One variant's line.

    Args:
        name: What it is called.
        x: Tokens, FLOPs or seconds, ascending.
        y: The mean over seeds.
        low: Lower edge of the band; empty for none.
        high: Upper edge of the band.
        index: Its number, which decides its colour and dashes in all charts.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    index: int = 0


def draw_curves(
    curves: Sequence[Curve],
    *,
    title: Label,
    x_label: Label,
    y_label: Label,
    langs: Sequence[str] = ("en",),
    dark: bool = False,
    legend: bool = True,
) -> Chart:
    """Draws lines with the band over their seeds.

    Args:
        curves: The lines; those without points are left out.
        title: What the chart shows.
        x_label: Name of the axis.
        y_label: Name of the axis.
        langs: The languages of its texts.
        dark: Whether a file of it is dark.
        legend: Whether names are written below; a page has its own switches.
    """
    curves = [curve for curve in curves if len(curve.x)]
    height = HEIGHT + (legend_height(len(curves)) if legend else 0)
    chart = Chart(width=WIDTH, height=height, title=title, langs=langs, dark=dark)
    if not curves:
        return chart.nothing()
    x = scale_over([v for c in curves for v in c.x], LEFT, WIDTH - RIGHT, margin=0.02)
    y = scale_over(_in_view(curves), HEIGHT - BOTTOM, TOP)
    chart.axes(x, y, x_label=x_label, y_label=y_label)
    # an inner picture cuts off what lies above its frame
    box = (LEFT - 4, TOP - 4, WIDTH - LEFT - RIGHT + 8, HEIGHT - TOP - BOTTOM + 8)
    left, top, wide, tall = (f"{value:g}" for value in box)
    chart.add(
        f'<svg x="{left}" y="{top}" width="{wide}" height="{tall}" '
        f'viewBox="{left} {top} {wide} {tall}">'
    )
    for curve in curves:
        _draw_curve(chart, curve, x, y)
    chart.add("</svg>")
    if legend:
        draw_legend(chart, [(curve.index, curve.name) for curve in curves])
    return chart


def _in_view(curves: Sequence[Curve]) -> list[float]:
    """The losses that the axis spans: the first, untrained ones would flatten all others."""
    everything = [v for c in curves for v in (*c.y, *c.low, *c.high) if math.isfinite(v)]
    last = [c.y[max(1, len(c.y) // 10) if len(c.y) > 2 else 0 :] for c in curves]
    top = max((v for y in last for v in y if math.isfinite(v)), default=math.inf)
    return [min(v, top) for v in everything] or [0.0]


def _draw_curve(chart: Chart, curve: Curve, x: Scale, y: Scale) -> None:
    none = [math.nan] * len(curve.x)
    band = zip(curve.low or none, curve.high or none, strict=True)
    points = [
        (x(a), y(b), a, b, low, high)
        for a, b, (low, high) in zip(curve.x, curve.y, band, strict=True)
        if math.isfinite(b)
    ]
    chart.add(f'<g class="series v{curve.index} s{curve.index % SHAPES}">')
    edges = [(left, y(low), y(high)) for left, _, _, _, low, high in points if low <= high]
    if len(edges) > 1:
        upper = [f"{left:g},{high:g}" for left, _, high in edges]
        lower = [f"{left:g},{low:g}" for left, low, _ in reversed(edges)]
        chart.add(f'<polygon class="band" points="{" ".join((*upper, *lower))}"/>')
    line = " ".join(f"{left:g},{up:g}" for left, up, *_ in points)
    chart.add(f'<polyline class="line"{dashes(curve.index)} points="{line}"/>')
    every = max(1, math.ceil(len(points) / 40))  # a mark to point at about every 15 pixels
    for left, up, a, b, low, high in points[::-1][::every]:
        span = f" [{low:.5g}, {high:.5g}]" if low <= high else ""
        place = f'cx="{left:g}" cy="{up:g}"'
        if every == 1:
            chart.add(f'<circle class="dot" {place} r="2.6"/>')
        words = tip(f"{curve.name}: {b:.5g}{span} @ {short(a, digits=6)}")
        chart.add(f'<circle class="hit" {place} r="7">{words}</circle>')
    chart.add("</g>")


def swatch(index: int) -> str:
    """A short line in the style of a line's number, for a switch beside its name."""
    return (
        f'<svg class="chart" viewBox="0 0 26 10" aria-hidden="true"><g class="s{index % SHAPES}">'
        f'<path class="line"{dashes(index)} d="M0 5h26"/></g></svg>'
    )

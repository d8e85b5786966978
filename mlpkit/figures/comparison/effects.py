"""The marginal means of the levels of every axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlpkit.figures.charts import (
    BOTTOM,
    RIGHT,
    SHAPES,
    TOP,
    WIDTH,
    Chart,
    Label,
    Scale,
    clipped,
    scale_over,
    tick,
    tip,
)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The levels of one axis with their marginal means.

    Args:
        axis: The key.
        levels: Its values.
        means: The marginal mean of each.
        low: Lower ends of the intervals; empty for none.
        high: Upper ends.
    """

    axis: str
    levels: Sequence[str]
    means: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def draw_effects(
    effects: Sequence[Effect],
    *,
    title: Label,
    x_label: Label,
    langs: Sequence[str] = ("en",),
    dark: bool = False,
) -> Chart:
    """Draws the marginal mean of every level of every axis with its interval.

    Args:
        effects: The axes.
        title: What the chart shows.
        x_label: Name of the loss.
        langs: The languages of its texts.
        dark: Whether a file of it is dark.
    """
    rows = sum(len(effect.levels) + 1 for effect in effects)
    line = 20.0
    chart = Chart(
        width=WIDTH, height=TOP + line * rows + BOTTOM, title=title, langs=langs, dark=dark
    )
    values = [v for e in effects for v in (*e.means, *e.low, *e.high) if math.isfinite(v)]
    if not values:
        return chart.nothing()
    x = scale_over(values, 200, WIDTH - RIGHT)
    floor = TOP + line * rows
    for value in x.ticks():
        chart.add(f'<path class="grid" d="M{x(value):g} {TOP:g}V{floor:g}"/>')
        chart.text(x(value), floor + 14, tick(value), kind="tick", anchor="middle")
    chart.text((200 + WIDTH - RIGHT) / 2, floor + 31, x_label, anchor="middle")
    base = TOP
    for number, effect in enumerate(effects):
        chart.text(8, base + 15, clipped(effect.axis, 40), kind="strong")
        for level in range(len(effect.levels)):
            _draw_level(chart, effect, level, x, base + line * (level + 1) + 10, number)
        base += line * (len(effect.levels) + 1)
    return chart


def _draw_level(
    chart: Chart, effect: Effect, level: int, x: Scale, middle: float, number: int
) -> None:
    name, mean = effect.levels[level], effect.means[level]
    chart.text(192, middle + 4, clipped(name, 28), anchor="end")
    if not math.isfinite(mean):
        return
    chart.add(f'<g class="s{number % SHAPES}">')
    words = f"{effect.axis}={name}: {mean:.5g}"
    if effect.low and math.isfinite(effect.low[level]):
        low, high = effect.low[level], effect.high[level]
        words += f" [{low:.5g}, {high:.5g}]"
        chart.add(f'<path class="whisker" d="M{x(low):g} {middle:g}H{x(high):g}"/>')
    chart.add(
        f'<circle class="dot" cx="{x(mean):g}" cy="{middle:g}" r="5">{tip(words)}</circle></g>'
    )

"""Lines told apart below a chart: their dashes and their names, in two columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlpkit.figures.charts import DASHES, HEIGHT, LEFT, SHAPES, WIDTH, Chart, clipped

ROW = 15.0  # height of a row of names
ABOVE = 6.0  # what the rows keep from the chart


def legend_height(count: int) -> float:
    """By how much the names of so many lines make a chart higher, in pixels."""
    return ROW * math.ceil(count / 2) + ABOVE


def draw_legend(chart: Chart, lines: Sequence[tuple[int, str]]) -> None:
    """Writes the names of lines below a chart of the usual height, each with its stroke.

    Args:
        chart: The chart, ``legend_height`` higher than usual.
        lines: The number of each, which decides its colour and dashes, and its name.
    """
    for place, (index, name) in enumerate(lines):
        left = LEFT + (place % 2) * (WIDTH - LEFT) / 2
        base = HEIGHT + 4 + ROW * (place // 2)
        stroke = f'<path class="line"{dashes(index)} d="M{left:g} {base - 4:g}h22"/>'
        chart.add(f'<g class="s{index % SHAPES}">{stroke}</g>')
        chart.text(left + 28, base, clipped(name, 46))


def dashes(index: int) -> str:
    """The attribute that dashes a line, where its colour is another one's already."""
    dash = DASHES[index // SHAPES % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""

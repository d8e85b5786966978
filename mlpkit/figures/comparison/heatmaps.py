"""Mean losses over two axes of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlpkit.figures.charts import Chart, Label, clipped, tip


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Mean losses over two axes of a sweep.

    Args:
        x_name: The key along the top.
        y_name: The key along the side.
        x: Its values.
        y: Its values.
        cells: A row for each of y; None where no run finished.
    """

    x_name: str
    y_name: str
    x: Sequence[str]
    y: Sequence[str]
    cells: Sequence[Sequence[float | None]]


def draw_heatmap(
    grid: Grid, *, title: Label, langs: Sequence[str] = ("en",), dark: bool = False
) -> Chart:
    """Draws mean losses over two axes, the darker the lower, with the number in each cell.

    Args:
        grid: The means.
        title: What the chart shows.
        langs: The languages of its texts.
        dark: Whether a file of it is dark.
    """
    names = [clipped(value, 24) for value in grid.y]
    left = 24 + 6.6 * max([len(name) for name in (*names, grid.y_name)], default=1)
    wide = max(64.0, min(110.0, 7.0 * max(map(len, grid.x), default=1) + 14))
    tall, top = 34.0, 46.0
    chart = Chart(
        width=left + wide * len(grid.x) + 14,
        height=top + tall * len(grid.y) + 12,
        title=title,
        langs=langs,
        dark=dark,
    )
    chart.text(left + wide * len(grid.x) / 2, 16, grid.x_name, kind="strong", anchor="middle")
    chart.text(left - 8, top - 12, grid.y_name, kind="strong", anchor="end")
    for number, value in enumerate(grid.x):
        word = clipped(value, int(wide / 6.6))
        chart.text(left + wide * (number + 0.5), top - 12, word, anchor="middle")
    values = [v for row in grid.cells for v in row if v is not None]
    for line, row in enumerate(grid.cells):
        base = top + tall * line
        chart.text(left - 8, base + tall / 2 + 4, names[line], anchor="end")
        for column, cell in enumerate(row):
            box = (left + wide * column, base, wide, tall)
            _draw_cell(chart, cell, box, values, f"{grid.y[line]} × {grid.x[column]}")
    return chart


def _draw_cell(
    chart: Chart,
    value: float | None,
    box: tuple[float, float, float, float],
    values: Sequence[float],
    name: str,
) -> None:
    left, top, width, height = box
    frame = f'x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}"'
    middle = (left + width / 2, top + height / 2 + 4)
    if value is None:
        chart.add(f'<rect class="empty" {frame}>{tip(f"{name}: –")}</rect>')
        chart.text(*middle, "–", kind="tick", anchor="middle")
        return
    best, worst = min(values), max(values)
    share = (worst - value) / (worst - best) if worst > best else 0.5
    # at most 0.55, so that ink stays readable on it in light and in dark
    opacity = f'fill-opacity="{0.05 + 0.5 * share:.3f}"'
    chart.add(f'<rect class="cell" {opacity} {frame}>{tip(f"{name}: {value:.5g}")}</rect>')
    if value == best:
        inner = f'x="{left + 2:g}" y="{top + 2:g}" width="{width - 4:g}" height="{height - 4:g}"'
        chart.add(f'<rect class="best" {inner}/>')
    chart.text(*middle, f"{value:.4f}", kind="strong" if value == best else "", anchor="middle")

"""A comparison in charts: for the page, for files and for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlpkit.figures import comparison as drawing
from mlpkit.figures.charts import Chart
from mlpkit.figures.comparison.curves import swatch
from mlpkit.report.curves import Cost, curve
from mlpkit.report.effects import HIGHER_IS_BETTER, Heatmap, heatmap, main_effects, pareto
from mlpkit.report.records import Comparison
from mlpkit.report.words import both

COSTS: tuple[Cost, ...] = ("tokens", "flops", "seconds")
FRONTS = ("active_parameters", "training_flops", "tokens_per_second")
MOST_CURVES = 10  # that a page shows before anyone asks for more; the best come first
MOST_HEATMAPS = 6  # pairs of axes; beyond them a page would be nothing else


def draw_all(
    comparison: Comparison, *, langs: Sequence[str] = ("en",), legend: bool = True
) -> dict[str, Chart]:
    """Every chart of a comparison that has something to show, by the name of its file.

    Args:
        comparison: What the runs say.
        langs: The languages of its texts.
        legend: Whether curves name their variants; the page has switches for that.
    """
    found: dict[str, Chart] = {}
    style: dict[str, Any] = {"langs": langs}
    for x in COSTS:
        for y in (comparison.metric, "loss"):
            if curves := curves_of(comparison, x=x, y=y):
                chart = draw_curves(curves, x=x, y=y, legend=legend, **style)
                found[f"curves-{y}-{x}"] = chart
    for group in comparison.groups:
        suffix = f"-group{group.index + 1}" if len(comparison.groups) > 1 else ""
        for cost in FRONTS:
            points = points_of(comparison, cost, group=group.index)
            if len({point.x for point in points}) > 1:
                chart = draw_front(points, cost=cost, metric=comparison.metric, **style)
                found[f"front-{cost}{suffix}"] = chart
    for down, across in axis_pairs(comparison):
        grid = heatmap(comparison, down, across)
        found[f"heatmap-{_file(down)}-{_file(across)}"] = draw_heatmap(grid, **style)
    if effects := effects_of(comparison):
        found["effects"] = draw_effects(effects, metric=comparison.metric, **style)
    return found


def curves_of(comparison: Comparison, *, x: Cost, y: str) -> list[drawing.Curve]:
    """The curves of all variants that have one.

    Args:
        comparison: What the runs say.
        x: The cost.
        y: A key of metrics.jsonl; ``loss``, the training loss, is smoothed.
    """
    found = []
    for number, row in enumerate(comparison.rows):
        # the last validation may take more text than the others, and is then no point of the curve
        line = curve(row.variant, x=x, metric=y, same_text=True)
        if line is None or len(line.x) < 2:
            line = curve(row.variant, x=x, metric=y)
        if line is None:
            continue
        # batches differ more than seeds do: bands of the training loss would hide all lines
        smoothed = y == "loss"
        band = line.num_seeds > 1 and not smoothed
        found.append(
            drawing.Curve(
                name=row.variant.name,
                x=line.x.tolist(),
                y=(smooth(line.mean) if smoothed else line.mean).tolist(),
                low=line.low.tolist() if band else (),
                high=line.high.tolist() if band else (),
                index=number,
            )
        )
    return found


def smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A centred moving mean over about a twentieth of the points; narrower towards the ends.

    Args:
        values: (P,).

    Returns:
        (P,); each is the mean of itself and equally many neighbours on both sides.
    """
    half = len(values) // 40
    sums = np.concatenate(([0.0], np.cumsum(values)))
    middle = np.arange(len(values))
    reach = np.minimum(half, np.minimum(middle, len(values) - 1 - middle))
    smoothed: NDArray[np.float64] = (sums[middle + reach + 1] - sums[middle - reach]) / (
        2 * reach + 1
    )
    return smoothed


def points_of(comparison: Comparison, cost: str, *, group: int = 0) -> list[drawing.Point]:
    """The variants by cost and score; whiskers are one standard deviation over seeds.

    Args:
        comparison: What the runs say.
        cost: A field of ``Row``.
        group: Which of its groups.
    """
    order = {row.variant.name: number for number, row in enumerate(comparison.rows)}
    found = []
    for point in pareto(comparison, cost, group=group):
        estimate = comparison.row(point.name).metric
        sd = estimate.sd if estimate else None
        if point.cost <= 0:  # nothing costs nothing: it was not measured
            continue
        found.append(
            drawing.Point(
                name=point.name,
                x=point.cost,
                y=point.score,
                low=None if sd is None else point.score - sd,
                high=None if sd is None else point.score + sd,
                front=point.on_front,
                index=order[point.name],
            )
        )
    return found


def axis_pairs(comparison: Comparison) -> list[tuple[str, str]]:
    """Pairs of axes of the first group whose heatmap shows more than a line or a diagonal."""
    found = []
    for first, second in combinations([axis.key for axis in comparison.axes], 2):
        there = ~np.isnan(heatmap(comparison, first, second).values)
        if there.ndim == 2 and (there.sum(0) > 1).any() and (there.sum(1) > 1).any():
            down, across = there.shape
            found.append((first, second) if down >= across else (second, first))
    return found[:MOST_HEATMAPS]


def effects_of(comparison: Comparison) -> list[drawing.Effect]:
    """The main effects of the first group, axis by axis."""
    by_axis: dict[str, list[Any]] = {}
    for effect in main_effects(comparison):
        by_axis.setdefault(effect.axis, []).append(effect)
    return [
        drawing.Effect(
            axis=axis,
            levels=[said(effect.value) for effect in effects],
            means=[effect.mean for effect in effects],
            low=[_end(effect, "low") for effect in effects],
            high=[_end(effect, "high") for effect in effects],
        )
        for axis, effects in by_axis.items()
    ]


def _end(effect: Any, name: str) -> float:
    end = getattr(effect.difference, name)
    return np.nan if end is None else float(effect.mean + end - effect.difference.mean)


def said(level: str) -> str:
    """A value of an axis as the command line has it."""
    return level or "null"


def draw_curves(curves: Sequence[drawing.Curve], *, x: str, y: str, **style: Any) -> Chart:
    """The chart of some curves; for ``style`` see ``mlpkit.figures.comparison.draw_curves``."""
    names = both(x), both(y)
    title = {k: both("curve_title", x=names[0][k], y=names[1][k])[k] for k in names[0]}
    return drawing.draw_curves(curves, title=title, x_label=names[0], y_label=names[1], **style)


def draw_front(points: Sequence[drawing.Point], *, cost: str, metric: str, **style: Any) -> Chart:
    """The chart of some points; for ``style`` see ``mlpkit.figures.comparison.draw_front``."""
    names = both(cost), both(metric)
    title = {k: both("curve_title", x=names[0][k], y=names[1][k])[k] for k in names[0]}
    more = cost in HIGHER_IS_BETTER
    return drawing.draw_front(
        points, title=title, x_label=names[0], y_label=names[1], more_is_better=more, **style
    )


def draw_heatmap(found: Heatmap, **style: Any) -> Chart:
    """The chart of a heatmap; for ``style`` see ``mlpkit.figures.comparison.draw_heatmap``."""
    grid = drawing.Grid(
        x_name=found.columns.key,
        y_name=found.rows.key,
        x=[said(value) for value in found.columns.values],
        y=[said(value) for value in found.rows.values],
        cells=[[None if np.isnan(v) else float(v) for v in row] for row in found.values],
    )
    return drawing.draw_heatmap(grid, title=f"{grid.y_name} × {grid.x_name}", **style)


def draw_effects(effects: Sequence[drawing.Effect], *, metric: str, **style: Any) -> Chart:
    """The chart of effects; for ``style`` see ``mlpkit.figures.comparison.draw_effects``."""
    return drawing.draw_effects(effects, title=both("effects"), x_label=both(metric), **style)


def _file(key: str) -> str:
    """An axis as part of a file's name."""
    return "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in key)


def swatches(charts: Iterable[str], comparison: Comparison) -> Iterator[dict[str, Any]]:
    """The switches of the curves: a short line in the style of each variant with its name."""
    if any(name.startswith("curves") for name in charts):
        for number, row in enumerate(comparison.rows):
            if row.variant.ok:
                shown = number < MOST_CURVES or row.verdict == "baseline"
                name = row.variant.name
                yield {"index": number, "name": name, "swatch": swatch(number), "shown": shown}

"""The charts of a comparison for notebooks: from run directories, or from a table of runs."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from mlpkit.figures.charts import Chart
from mlpkit.figures.labels import words as known_language
from mlpkit.registry import suggestion
from mlpkit.report.comparison import compare
from mlpkit.report.curves import Cost
from mlpkit.report.effects import heatmap
from mlpkit.report.plots import (
    COSTS,
    axis_pairs,
    curves_of,
    draw_curves,
    draw_effects,
    draw_front,
    draw_heatmap,
    effects_of,
    points_of,
)
from mlpkit.report.records import Comparison, Run
from mlpkit.report.runs import find_runs

NUMBERS = (
    *("active_parameters", "parameters", "ffn_parameters", "flops_per_token", "training_flops"),
    *("tokens_per_second", "peak_memory_bytes", "seconds"),
)


class ChartError(LookupError):
    """A chart that the runs cannot give."""

    exit_code = 2


def plot_curves(
    source: Any, *, x: Cost = "tokens", y: str = "val_bpb", lang: str = "en", dark: bool = False
) -> Chart:
    """Losses over training, a line with the band over its seeds for every variant.

    Args:
        source: Paths of runs, of folders that hold them or of a sweep.json; the frames of
            ``mlpkit.load_runs``, or rows of its ``runs``; or a ``Comparison``.
        x: "tokens", "flops" or "seconds".
        y: A key of metrics.jsonl: "val_bpb", "val_loss", or "loss", the training loss, smoothed.
        lang: "en" or "zh".
        dark: Whether its background is dark.

    Returns:
        A chart, which a notebook shows and whose ``save`` writes it as SVG.

    Raises:
        NoRunsError: The source holds no run.
        ChartError: There is no such x.
        LanguageError: There is no such language.
    """
    _require(x, COSTS, "x")
    known_language(lang)
    found = curves_of(comparison_of(source), x=x, y=y)
    return draw_curves(found, x=x, y=y, langs=(lang,), dark=dark)


def plot_pareto(
    source: Any, *, cost: str = "active_parameters", lang: str = "en", dark: bool = False
) -> Chart:
    """Losses against a cost, and the front of the variants that nothing beats in both.

    Args:
        source: As for ``plot_curves``.
        cost: "active_parameters", "training_flops", "tokens_per_second", "seconds", …
        lang: "en" or "zh".
        dark: Whether its background is dark.

    Returns:
        A chart.

    Raises:
        NoRunsError: The source holds no run.
        ChartError: There is no such cost.
        LanguageError: There is no such language.
    """
    _require(cost, NUMBERS, "cost")
    known_language(lang)
    comparison = comparison_of(source)
    points = points_of(comparison, cost)
    return draw_front(points, cost=cost, metric=comparison.metric, langs=(lang,), dark=dark)


def plot_heatmap(
    source: Any,
    rows: str | None = None,
    columns: str | None = None,
    *,
    lang: str = "en",
    dark: bool = False,
) -> Chart:
    """Mean losses over two axes.

    Args:
        source: As for ``plot_curves``.
        rows: The axis of the rows, such as "ffn"; None: that of the first pair that there is.
        columns: The axis of the columns.
        lang: "en" or "zh".
        dark: Whether its background is dark.

    Returns:
        A chart.

    Raises:
        NoRunsError: The source holds no run.
        ChartError: The runs do not vary in that, or in fewer than two axes.
        LanguageError: There is no such language.
    """
    known_language(lang)
    comparison = comparison_of(source)
    axes = [axis.key for axis in comparison.axes]
    if rows is None or columns is None:
        if not (pairs := axis_pairs(comparison)):
            raise ChartError(
                f"no two axes make a grid (the runs vary in: {', '.join(axes) or 'nothing'}); "
                "name two: plot_heatmap(path, 'ffn', 'activation')"
            )
        rows, columns = pairs[0]
    for name in (rows, columns):
        _require(name, axes, "axis")
    return draw_heatmap(heatmap(comparison, rows, columns), langs=(lang,), dark=dark)


def plot_effects(source: Any, *, lang: str = "en", dark: bool = False) -> Chart:
    """The marginal mean of each value of each axis, with its interval.

    Args:
        source: As for ``plot_curves``; it varies in two axes or more.
        lang: "en" or "zh".
        dark: Whether its background is dark.

    Returns:
        A chart.

    Raises:
        NoRunsError: The source holds no run.
        LanguageError: There is no such language.
    """
    known_language(lang)
    comparison = comparison_of(source)
    found = effects_of(comparison)
    return draw_effects(found, metric=comparison.metric, langs=(lang,), dark=dark)


def comparison_of(source: Any) -> Comparison:
    """What the runs of a source say.

    Args:
        source: As for ``plot_curves``.

    Raises:
        NoRunsError: It holds no run.
    """
    if isinstance(source, Comparison):
        return source
    frame = getattr(source, "runs", source)  # of both frames, or rows of the first alone
    if hasattr(frame, "columns") and "path" in frame.columns:
        return compare(find_runs([Path(path) for path in frame["path"]]))
    if isinstance(source, str | PathLike):
        return compare(find_runs([Path(source)]))
    listed = list(source) if isinstance(source, Iterable) else [source]
    runs = [run for run in listed if isinstance(run, Run)]
    return compare(runs) if runs else compare(find_runs([Path(path) for path in listed]))


def _require(name: str, known: Iterable[str], what: str) -> None:
    if name not in (names := list(known)):
        raise ChartError(
            f"unknown {what} {name!r}{suggestion(name, names)} (there are: {', '.join(names)})"
        )

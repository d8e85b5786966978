"""What each axis does: main effects, the heatmap of two axes, Pareto fronts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlpkit.report.records import Axis, Comparison, Difference, Row, Variant
from mlpkit.report.statistics import Fit, contrast, fit

HIGHER_IS_BETTER = ("tokens_per_second",)


class Scores(NamedTuple):
    """The scores of finished runs.

    Args:
        scores: (N,) one per run.
        names: (N,) the variant of each.
        seeds: (N,) the seed of each.
    """

    scores: tuple[float, ...]
    names: tuple[str, ...]
    seeds: tuple[int, ...]


class Effect(NamedTuple):
    """What one value of an axis does, all else being equal.

    Args:
        axis: The axis.
        value: Its value; "" is "nothing was said".
        mean: The least-squares marginal mean of the score.
        difference: From the mean of all values, with its 95 % interval.
        num_variants: How many variants have this value.
    """

    axis: str
    value: str
    mean: float
    difference: Difference
    num_variants: int


class Heatmap(NamedTuple):
    """The score over two axes.

    Args:
        rows: The axis of the rows, its values.
        columns: The axis of the columns, its values.
        values: (R, C) mean score; NaN where nothing finished.
        num_variants: (R, C) how many variants are in the mean.
    """

    rows: Axis
    columns: Axis
    values: NDArray[np.float64]
    num_variants: NDArray[np.int64]


class Point(NamedTuple):
    """A variant by cost and score.

    Args:
        name: The variant.
        cost: In the units of the row's field.
        score: Mean over seeds.
        on_front: Whether no other variant is at least as good in both and better in one.
    """

    name: str
    cost: float
    score: float
    on_front: bool


def scores_of(variants: Sequence[Variant], *, metric: str) -> Scores:
    """The scores of all finished runs.

    Args:
        variants: Those of one group.
        metric: The score.
    """
    runs = [(run, run.seed, v.name) for v in variants for run in v.ok]
    counted = [(float(run.metrics[metric]), name, s) for run, s, name in runs if s is not None]
    scores, names, seeds = zip(*counted, strict=True) if counted else ((), (), ())
    return Scores(scores, names, seeds)


def fit_variants(variants: Sequence[Variant], *, metric: str) -> tuple[Fit, dict[str, int]] | None:
    """The variant + seed model of all finished runs, and the index of each variant in it.

    Args:
        variants: Those of one group.
        metric: The score.

    Returns:
        None if nothing finished.
    """
    scores, names, seeds = scores_of(variants, metric=metric)
    if not scores:
        return None
    index = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return fit(scores, [index[name] for name in names], seeds), index


def main_effects(comparison: Comparison, *, group: int = 0) -> list[Effect]:
    """The effect of each value of each axis, from the additive model of the axes.

    The variants' means, adjusted for seeds, are fitted by a sum of one term per axis; a value's
    marginal mean is the model's average over the full grid of the other axes' values, as in Searle,
    Speed and Milliken 1980 (The American Statistician 34). In a full grid it is the plain mean. The
    interval is that of the variants' noise: it speaks of the mean over these variants.

    Args:
        comparison: The comparison.
        group: Which of its groups.

    Returns:
        None for fewer than two axes, and for values whose effect cannot be told from another's (a
        router that only one FFN has). Variants that are not comparable are left out.
    """
    rows = [row for row in _scored(comparison, group) if row.verdict != "not_comparable"]
    levels = {axis.key: _present(axis, rows) for axis in comparison.axes}
    levels = {key: values for key, values in levels.items() if len(values) > 1}
    fitted = fit_variants([row.variant for row in rows], metric=comparison.metric)
    if len(levels) < 2 or fitted is None:
        return []
    model, index = fitted
    cells = [[row.variant.levels[key] for key in levels] for row in rows]
    to_terms = np.linalg.pinv(_design(cells, levels))  # (terms, variants)
    space = to_terms @ _design(cells, levels)
    grid = [list(cell) for cell in product(*levels.values())]
    general = _design(grid, levels).mean(0)
    level_mean = general @ to_terms @ np.array([row.metric.mean for row in rows if row.metric])
    effects = []
    for position, value in ((p, v) for p, values in enumerate(levels.values()) for v in values):
        change = _design([c for c in grid if c[position] == value], levels).mean(0) - general
        weights = np.zeros(len(index))
        weights[[index[row.variant.name] for row in rows]] = change @ to_terms
        found = contrast(model, weights)
        if found is None or not np.allclose(change @ space, change, atol=1e-8):
            continue
        count = sum(cell[position] == value for cell in cells)
        axis, mean = list(levels)[position], float(level_mean) + found.mean
        effects.append(Effect(axis, value, mean, found, count))
    return effects


def heatmap(comparison: Comparison, rows: str, columns: str, *, group: int = 0) -> Heatmap:
    """The mean score over two axes; over further axes it is averaged.

    Args:
        comparison: The comparison.
        rows: Key of the axis of the rows.
        columns: Key of the axis of the columns.
        group: Which of its groups.

    Raises:
        KeyError: There is no such axis.
    """
    axes = {axis.key: axis for axis in comparison.axes}
    scored = _scored(comparison, group)
    down, across = axes[rows], axes[columns]
    down = Axis(key=rows, values=tuple(_present(down, scored)))
    across = Axis(key=columns, values=tuple(_present(across, scored)))
    sums = np.zeros((len(down.values), len(across.values)))
    counts = np.zeros(sums.shape, np.int64)
    for row in scored:
        levels = row.variant.levels
        cell = down.values.index(levels[rows]), across.values.index(levels[columns])
        sums[cell] += row.metric.mean if row.metric else 0
        counts[cell] += 1
    values = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return Heatmap(down, across, values, counts)


def pareto(comparison: Comparison, cost: str, *, group: int = 0) -> list[Point]:
    """Variants by cost and score, and which of them nothing beats.

    Args:
        comparison: The comparison.
        cost: A field of ``Row``: ``active_parameters``, ``training_flops``, ``seconds`` …; less is
            better, except for ``tokens_per_second``.
        group: Which of its groups.

    Returns:
        Those that have both, by cost.
    """
    known = [(row, getattr(row, cost)) for row in _scored(comparison, group)]
    known = [(row, value) for row, value in known if value is not None]
    scores = [row.metric.mean for row, _ in known if row.metric]
    costs = [float(value) for _, value in known]
    front = pareto_front(
        [-c if cost in HIGHER_IS_BETTER else c for c in costs],
        [-s if comparison.metric in HIGHER_IS_BETTER else s for s in scores],
    )
    named = [row.variant.name for row, _ in known]
    return sorted(map(Point, named, costs, scores, front), key=lambda point: point.cost)


def pareto_front(costs: Sequence[float], scores: Sequence[float]) -> list[bool]:
    """Which points no other point dominates; less is better in both.

    Args:
        costs: (N,).
        scores: (N,).
    """
    both = list(zip(costs, scores, strict=True))
    return [
        not any(c <= cost and s <= score and (c, s) != (cost, score) for c, s in both)
        for cost, score in both
    ]


def _scored(comparison: Comparison, group: int) -> list[Row]:
    return [r for r in comparison.rows if r.variant.group == group and r.metric is not None]


def _present(axis: Axis, rows: Sequence[Row]) -> list[str]:
    return [v for v in axis.values if any(row.variant.levels[axis.key] == v for row in rows)]


def _design(cells: Sequence[Sequence[str]], levels: dict[str, list[str]]) -> NDArray[np.float64]:
    """(N, 1 + values) of a constant and one column per value of each axis."""
    columns = [(i, value) for i, values in enumerate(levels.values()) for value in values]
    return np.array([[1.0, *(float(cell[i] == v) for i, v in columns)] for cell in cells])

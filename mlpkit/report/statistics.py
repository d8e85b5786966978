"""Statistics of a comparison: paired differences with pooled noise, intervals, Holm, verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from mlpkit.report.records import Difference, Estimate, Noise, Verdict

ALPHA = 0.05  # a verdict is an error in at most this share of sweeps; intervals are of 1 - ALPHA
# Relative to the scores: smaller residuals are rounding, as when a seed changes nothing.
ROUNDING = 1e-12

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Scores fitted as y_vs = variant_v + seed_s + e_vs, e ~ N(0, sd²), by least squares.

    A seed fixes initial values and data order, which the variants share, so that its effect is
    common to them and cancels in a difference. One sd for all variants lets two seeds be enough:
    six variants with two seeds leave (6 - 1)(2 - 1) = 5 degrees of freedom, t = 2.6; a lone pair
    has one, t = 12.7 (Box, Hunter and Hunter 2005, Statistics for Experimenters, on blocks).

    The price is that assumption: simulated, a variant twice as noisy as the others leaves the rate
    of false verdicts near 5 %; three times as noisy makes it 7 to 8 %, such a baseline 7 to 13 %.
    ``mlpkit.report.noisiest`` looks for one.

    Args:
        effects: (V,) a solution for the variants; only differences of them mean something.
        seeds: (V,) how many seeds each variant has.
        sd: Of the residual, sqrt(RSS / df); 0 where it is rounding alone; None without df.
        df: N - rank(X), whatever seeds are missing.
        inverse: (P, P) pseudo-inverse of X'X, for X of one column per variant and then per seed.
        row_space: (P, P) projector onto the rows of X; a contrast outside cannot be estimated.
        scale: The largest absolute score, what ``ROUNDING`` is relative to.
    """

    effects: Array
    seeds: NDArray[np.int64]
    sd: float | None
    df: int
    inverse: Array
    row_space: Array
    scale: float


def fit(scores: Sequence[float], variants: Sequence[int], seeds: Sequence[int]) -> Fit:
    """Fits the variant + seed model; any seeds may be missing from any variant.

    Args:
        scores: (N,) one per finished run.
        variants: (N,) the variant of each, from 0 without gaps.
        seeds: (N,) the seed of each; any integers.
    """
    y, v = np.asarray(scores, np.float64), np.asarray(variants, np.int64)
    design = design_of(v, np.asarray(seeds))
    centred = y - y.mean()  # scores are near each other: what is left keeps more digits
    inverse = np.asarray(np.linalg.pinv(design.T @ design, rcond=1e-10, hermitian=True), np.float64)
    solution = inverse @ design.T @ centred
    residual = centred - design @ solution
    df, scale = len(y) - int(np.linalg.matrix_rank(design)), float(np.abs(y).max())
    sd = math.sqrt(residual @ residual / df) if df else None
    return Fit(
        effects=solution[: v.max() + 1],
        seeds=np.bincount(v),
        sd=0.0 if sd is not None and sd <= ROUNDING * scale else sd,
        df=df,
        inverse=inverse,
        row_space=inverse @ design.T @ design,
        scale=scale,
    )


def design_of(variants: NDArray[np.int64], seeds: NDArray[np.int64]) -> Array:
    """(N, P) of the model: one column per variant, then one per seed.

    Args:
        variants: (N,) from 0 without gaps.
        seeds: (N,) any integers.
    """
    _, s = np.unique(seeds, return_inverse=True)
    return np.hstack([np.eye(variants.max() + 1)[variants], np.eye(s.max() + 1)[s]])


def contrast(fitted: Fit, weights: Array) -> Difference | None:
    """A weighted sum of variants, with its interval: w'a ± t(df) · sd · sqrt(w'(X'X)⁻w).

    Args:
        fitted: The fitted scores.
        weights: (V,) that sum to 0, so that seeds and the general level cancel.

    Returns:
        None where the seeds do not connect the variants: without a seed in common, directly or
        through other variants, a difference of variants cannot be told from one of seeds.
    """
    full = np.zeros(len(fitted.inverse))
    full[: len(weights)] = weights
    if not np.allclose(full @ fitted.row_space, full, atol=1e-8):
        return None
    mean = float(weights @ fitted.effects)
    if fitted.sd is None:
        return Difference(mean=mean, low=None, high=None, p=None)
    if fitted.sd == 0:  # no t statistic: equal is equal, and anything else is not known
        same = abs(mean) <= ROUNDING * fitted.scale
        return Difference(mean=mean, low=mean, high=mean, p=1.0 if same else None)
    error = fitted.sd * math.sqrt(full @ fitted.inverse @ full)
    half = error * _quantile(fitted.df)
    p = 2 * float(student.sf(abs(mean) / error, fitted.df))
    return Difference(mean=mean, low=mean - half, high=mean + half, p=p)


def difference(fitted: Fit, variant: int, baseline: int) -> Difference | None:
    """A variant minus the baseline, paired by seed.

    With two variants and the same seeds it is the paired t test.

    Args:
        fitted: The fitted scores.
        variant: Its index.
        baseline: Another one.

    Returns:
        None where no seed connects the two.
    """
    weights = np.zeros(len(fitted.effects))
    weights[variant], weights[baseline] = 1, -1
    return contrast(fitted, weights)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p values for being several (Holm 1979): max over j ≤ i of (m - j + 1) p_(j).

    With it the chance of any false verdict in a sweep stays below the level, however the p values
    depend on each other.

    Args:
        p_values: Each in [0, 1].

    Returns:
        The corrected ones, in the same order, at most 1.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def decide(found: Difference | None, *, lower_is_better: bool = True) -> Verdict:
    """The verdict on a difference, after the correction.

    Args:
        found: The difference with ``p_holm``.
        lower_is_better: Whether a smaller score is the better one.
    """
    if found is None or found.p_holm is None:
        return "no_verdict"
    if found.p_holm >= ALPHA:
        return "indistinguishable"
    return "better" if (found.mean < 0) == lower_is_better else "worse"


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean, standard deviation and the variant's own t interval, mean ± t(n - 1) · sd / sqrt(n).

    Args:
        values: One per seed.

    Returns:
        None without values; with one, no standard deviation and no interval.
    """
    if not len(values):
        return None
    array = np.asarray(values, np.float64)
    mean, n = float(array.mean()), len(array)
    if n == 1:
        return Estimate(mean=mean, sd=None, n=1, low=None, high=None)
    sd = float(array.std(ddof=1))
    half = _quantile(n - 1) * sd / math.sqrt(n)
    return Estimate(mean=mean, sd=sd, n=n, low=mean - half, high=mean + half)


def noise(fitted: Fit, baseline_scores: Sequence[float]) -> Noise:
    """The noise floor of a group of runs.

    Args:
        fitted: The fitted scores.
        baseline_scores: The baseline's, one per seed.
    """
    own = estimate(baseline_scores)
    detectable = None
    if fitted.sd is not None:
        num_seeds = int(fitted.seeds.max())
        detectable = _quantile(fitted.df) * fitted.sd * math.sqrt(2 / num_seeds)
    return Noise(
        sd=fitted.sd, df=fitted.df, baseline_sd=own.sd if own else None, detectable=detectable
    )


def tied_with(fitted: Fit, best: int, among: Sequence[int]) -> list[int]:
    """The variants that cannot be told from the best one.

    Which one is best was read off the same scores, so the correction is over all pairs of variants
    and not only over those with the best.

    Args:
        fitted: The fitted scores.
        best: Its index.
        among: The variants that are ranked, with the best, all connected by seeds.

    Returns:
        Indices, in the order of ``among``.
    """
    pairs = {frozenset(pair): difference(fitted, *pair) for pair in combinations(among, 2)}
    tested = {pair: d.p for pair, d in pairs.items() if d is not None and d.p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    others = [index for index in among if index != best]
    return [i for i in others if corrected.get(frozenset((i, best)), 0) >= ALPHA]


@lru_cache
def _quantile(df: int) -> float:
    """The factor of a two-sided interval at 1 - ``ALPHA``."""
    return float(student.ppf(1 - ALPHA / 2, df))

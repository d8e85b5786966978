"""Whether one variant is noisier than the others, which a pooled noise takes to be equal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlpkit.report.records import Noisiest
from mlpkit.report.statistics import ALPHA, ROUNDING, Array, design_of

DRAWS = 1999  # of the simulated distribution: p is known to about 0.005 at 0.05


def noisiest(
    scores: Sequence[float], variants: Sequence[str], seeds: Sequence[int]
) -> Noisiest | None:
    """The variant whose residuals are larger than those of the others beyond chance.

    The statistic is the largest mean square of a variant over that of all runs (Cochran 1941,
    Annals of Eugenics 11). Its distribution under equal noise is simulated for the runs that there
    are, so that a missing seed needs no table. With few seeds only a large inequality is found: of
    six variants one three times as noisy shows in 36 % of sweeps with three seeds, in 64 % with
    five.

    Args:
        scores: (N,) one per finished run.
        variants: (N,) the name of the variant of each.
        seeds: (N,) the seed of each.

    Returns:
        None where the noise may be equal. Of two variants it cannot be told, nor does it matter:
        their difference is tested by its own spread alone.
    """
    names, v = np.unique(np.asarray(variants), return_inverse=True)
    y = np.asarray(scores, np.float64)
    design = design_of(v, np.asarray(seeds))
    maker = np.eye(len(y)) - design @ np.linalg.pinv(design)  # residuals = maker @ scores
    member = np.eye(len(names))[v]  # (N, V)
    freedom = np.diag(maker) @ member  # (V,) they sum to N - rank
    found = maker @ (y - y.mean())
    free = freedom > 1e-6
    if free.sum() < 3 or np.abs(found).max() <= ROUNDING * np.abs(y).max():
        return None
    member, freedom = member[:, free], freedom[free]
    draws = np.random.default_rng(0).normal(size=(DRAWS, len(y))) @ maker
    simulated = _largest(draws, member, freedom)
    observed = _largest(found[None], member, freedom)
    p = float((1 + (simulated >= observed).sum()) / (1 + DRAWS))
    if p >= ALPHA:
        return None
    index = int(((found**2) @ member / freedom).argmax())
    variances = unbiased_variances(found, maker, member)
    others = np.delete(variances, index).mean()
    sd, others_sd = np.sqrt(np.maximum([variances[index], others], 0.0)).tolist()
    return Noisiest(variant=str(names[free][index]), sd=sd, others_sd=others_sd, p=p)


def unbiased_variances(residuals: Array, maker: Array, member: Array) -> Array:
    """Each variant's own variance, from residuals that mix those of all (Rao 1971, MINQUE).

    A residual is a sum over all runs, so that the sum of squares of variant v has the expectation
    sum over u of A_vu · var_u, with A_vu the squares of ``maker`` summed over runs of v and of u.

    Args:
        residuals: (N,).
        maker: (N, N) what makes residuals of scores.
        member: (N, V) 1 where a run is of a variant, at least three of them.

    Returns:
        (V,) an estimate may come out below 0.
    """
    mixing = member.T @ maker**2 @ member  # (V, V)
    solution = np.linalg.lstsq(mixing, residuals**2 @ member, rcond=None)[0]
    return np.asarray(solution, np.float64)


def _largest(residuals: Array, member: Array, freedom: Array) -> Array:
    """(D,) of (D, N) residuals: the largest mean square of a variant over the sum of all."""
    squares = residuals**2
    largest = np.max(squares @ member / freedom, axis=1) / np.sum(squares, axis=1)
    return np.asarray(largest, np.float64)

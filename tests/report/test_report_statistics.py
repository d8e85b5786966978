"""Statistics of a comparison: against values by hand, scipy's paired t test, and simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from mlpkit.report.statistics import (
    contrast,
    decide,
    difference,
    estimate,
    fit,
    holm,
    noise,
    tied_with,
)

DESIGNS = {
    "six variants, two seeds": [(v, s) for v in range(6) for s in range(2)],
    "two variants, three seeds": [(v, s) for v in range(2) for s in range(3)],
    "four variants, five seeds": [(v, s) for v in range(4) for s in range(5)],
    "four variants, seeds missing": [
        *((v, s) for v in range(4) for s in range(4) if (v, s) not in ((1, 0), (2, 3), (3, 1))),
        (3, 7),
    ],
}


def of(scores, places):
    """The fit of scores at (variant, seed) places."""
    return fit(scores, [v for v, _ in places], [s for _, s in places])


def test_two_by_two_by_hand():
    # residuals of the additive model are ±0.01, so that RSS = 4 · 0.01² and df = 1
    found = of([1.50, 1.60, 1.40, 1.54], [(0, 0), (0, 1), (1, 0), (1, 1)])
    assert found.df == 1
    assert found.sd == pytest.approx(0.02)
    d = difference(found, 1, 0)
    assert d.mean == pytest.approx(-0.08)
    # t = -0.08 / (0.02 · sqrt(2 / 2)) = -4; with one degree of freedom it is a Cauchy's
    assert d.p == pytest.approx(1 - 2 / math.pi * math.atan(4))
    assert d.high - d.mean == pytest.approx(12.706204736 * 0.02)
    assert d.low + d.high == pytest.approx(2 * d.mean)


def test_two_variants_are_the_paired_t_test():
    rng = np.random.default_rng(0)
    seeds = rng.normal(size=5)
    a, b = seeds + rng.normal(0, 0.1, 5), seeds + rng.normal(0.1, 0.1, 5)
    d = difference(of([*a, *b], [(v, s) for v in range(2) for s in range(5)]), 1, 0)
    reference = stats.ttest_rel(b, a)
    low, high = reference.confidence_interval()
    assert (d.p, d.low, d.high) == pytest.approx((reference.pvalue, low, high))


def test_a_balanced_design_is_the_two_way_analysis_of_variance():
    scores = np.random.default_rng(1).normal(size=(4, 3))
    found = of(scores.ravel(), [(v, s) for v in range(4) for s in range(3)])
    residual = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    assert found.df == 6
    assert found.sd == pytest.approx(math.sqrt((residual**2).sum() / 6))
    d = difference(found, 2, 1)
    assert d.mean == pytest.approx(scores[2].mean() - scores[1].mean())
    assert d.high - d.low == pytest.approx(2 * stats.t.ppf(0.975, 6) * found.sd * math.sqrt(2 / 3))


def test_a_missing_seed_does_not_move_a_difference_by_its_seed():
    # seed 1 is 10 worse for everyone; variant 1 lacks it, and is exactly 0.5 better all the same
    found = of([1.0, 11.0, 2.0, 12.0, 0.5], [(0, 0), (0, 1), (2, 0), (2, 1), (1, 0)])
    assert difference(found, 1, 0).mean == pytest.approx(-0.5)
    assert found.df == 1


def test_unbalanced_seeds_agree_with_normal_equations_of_dummies():
    rng = np.random.default_rng(2)
    places = DESIGNS["four variants, seeds missing"]
    scores = rng.normal(size=len(places))
    # the textbook parametrisation: intercept, variants but the first, seeds but the first
    seeds = sorted({s for _, s in places})
    x = np.array(
        [[1.0, *(v == k for k in (1, 2, 3)), *(s == k for k in seeds[1:])] for v, s in places]
    )
    beta, rss, rank, _ = np.linalg.lstsq(x, scores, rcond=None)
    df = len(places) - rank
    error = math.sqrt(rss[0] / df * np.linalg.inv(x.T @ x)[2, 2])
    d = difference(of(scores, places), 2, 0)
    assert d.mean == pytest.approx(beta[2])
    assert d.high - d.mean == pytest.approx(stats.t.ppf(0.975, df) * error)


def test_without_a_common_seed_nothing_is_said():
    found = of([1.0, 1.1, 2.0, 2.1], [(0, 0), (0, 1), (1, 2), (1, 3)])
    assert difference(found, 1, 0) is None


def test_seeds_connect_variants_through_a_third():
    places = [(0, 0), (0, 1), (1, 2), (1, 3), *((2, s) for s in range(4))]
    seeds = {0: 0.0, 1: 5.0, 2: -3.0, 3: 1.0}
    scores = [{0: 1.0, 1: 1.5, 2: 9.0}[v] + seeds[s] for v, s in places]
    assert difference(of(scores, places), 1, 0).mean == pytest.approx(0.5)


def test_one_seed_gives_a_difference_and_no_interval():
    found = of([1.0, 0.9], [(0, 0), (1, 0)])
    d = difference(found, 1, 0)
    assert (found.sd, found.df) == (None, 0)
    assert d.mean == pytest.approx(-0.1)
    assert (d.low, d.high, d.p) == (None, None, None)
    assert decide(d) == "no_verdict"


def test_identical_runs_are_indistinguishable_and_not_a_division_by_zero():
    places = [(v, s) for v in range(2) for s in range(3)]
    found = of([1.5123, 1.5, 1.4, 1.5123, 1.5, 1.4], places)
    d = difference(found, 1, 0)
    assert (found.sd, d.p) == (0.0, 1.0)
    assert decide(replace(d, p_holm=d.p)) == "indistinguishable"


def test_a_difference_without_any_noise_has_no_p_value():
    found = of([1.5, 1.5, 1.4, 1.4], [(0, 0), (0, 1), (1, 0), (1, 1)])
    d = difference(found, 1, 0)
    assert d.p is None
    assert d.low == d.high == pytest.approx(-0.1)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("mean", "p", "lower", "verdict"),
    [
        (-0.1, 0.01, True, "better"),
        (0.1, 0.01, True, "worse"),
        (0.1, 0.01, False, "better"),
        (-0.1, 0.05, True, "indistinguishable"),
        (-0.1, None, True, "no_verdict"),
    ],
)
def test_verdicts(mean, p, lower, verdict):
    d = difference(of([1.0, 1.1, 1.0, 1.3], [(0, 0), (0, 1), (1, 0), (1, 1)]), 1, 0)
    assert decide(replace(d, mean=mean, p_holm=p), lower_is_better=lower) == verdict


def test_an_estimate_is_scipys_t_interval():
    values = [1.9, 2.1, 2.3, 2.2]
    found = estimate(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert (found.mean, found.sd, found.n) == pytest.approx((2.125, np.std(values, ddof=1), 4))
    one = estimate([2.0])
    assert (one.mean, one.sd, one.low, one.high) == (2.0, None, None, None)
    assert estimate([]) is None


def test_the_noise_floor_is_the_smallest_difference_with_an_interval_beside_zero():
    found = of([1.50, 1.60, 1.40, 1.54], [(0, 0), (0, 1), (1, 0), (1, 1)])
    floor = noise(found, [1.50, 1.60])
    d = difference(found, 1, 0)
    assert floor.detectable == pytest.approx(d.high - d.mean)
    assert floor.baseline_sd == pytest.approx(0.1 / math.sqrt(2))
    assert (floor.sd, floor.df) == (found.sd, 1)


def test_what_is_tied_with_the_best():
    rng = np.random.default_rng(3)
    places = [(v, s) for v in range(4) for s in range(4)]
    scores = [{0: 1.0, 1: 1.001, 2: 2.0, 3: 3.0}[v] + s + rng.normal(0, 0.01) for v, s in places]
    found = of(scores, places)
    assert tied_with(found, 0, [2, 1, 0, 3]) == [1]
    assert tied_with(found, 0, [0, 2, 3]) == []


def test_a_contrast_of_more_than_two_variants():
    scores = np.random.default_rng(4).normal(size=(3, 4))
    found = of(scores.ravel(), [(v, s) for v in range(3) for s in range(4)])
    d = contrast(found, np.array([1, -0.5, -0.5]))
    assert d.mean == pytest.approx(scores[0].mean() - scores[1:].mean())
    error = found.sd * math.sqrt((1 + 0.25 + 0.25) / 4)
    assert d.p == pytest.approx(2 * stats.t.sf(abs(d.mean) / error, 6))


def simulate(places, effects, rng, *, count, noisy=1.0):
    """Verdict errors and coverage over many sweeps with known effects: (any false, covered)."""
    seeds = sorted({s for _, s in places})
    false, covered = 0, []
    for _ in range(count):
        shift = dict(zip(seeds, rng.normal(0, 1, len(seeds)), strict=True))  # far above the noise
        scores = [
            effects[v] + shift[s] + 0.01 * rng.normal(0, noisy if v == 1 else 1) for v, s in places
        ]
        found = of(scores, places)
        ds = [difference(found, v, 0) for v in range(1, len(effects))]
        corrected = holm([d.p for d in ds])
        truth = [effect - effects[0] for effect in effects[1:]]
        verdicts = [decide(replace(d, p_holm=p)) for d, p in zip(ds, corrected, strict=True)]
        wrong = {True: ("better", "worse"), False: ("worse",)}
        false += any(v in wrong[t == 0] for v, t in zip(verdicts, truth, strict=True))
        covered += [d.low <= t <= d.high for d, t in zip(ds, truth, strict=True)]
    return false / count, float(np.mean(covered))


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_sweeps_without_an_effect_give_few_false_verdicts(design):
    places = DESIGNS[design]
    variants = 1 + max(v for v, _ in places)
    false, covered = simulate(places, [1.5] * variants, np.random.default_rng(5), count=1000)
    # of 1,000 sweeps at 5 %, more than 6.7 % would be seen less than once in a hundred times
    assert stats.binomtest(round(false * 1000), 1000, 0.05, alternative="greater").pvalue > 0.01
    assert 0.93 <= covered <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_intervals_cover_known_effects(design):
    places = DESIGNS[design]
    variants = 1 + max(v for v, _ in places)
    effects = [1.5 - 0.008 * v for v in range(variants)]
    false, covered = simulate(places, effects, np.random.default_rng(6), count=1000)
    assert 0.93 <= covered <= 0.97
    assert false <= 0.05  # better called worse


@pytest.mark.slow
def test_one_variant_twice_as_noisy_does_little_harm():
    places = DESIGNS["four variants, five seeds"]
    false, _ = simulate(places, [1.5] * 4, np.random.default_rng(8), count=1000, noisy=2.0)
    assert false <= 0.08


@pytest.mark.slow
def test_large_effects_are_found():
    places = DESIGNS["six variants, two seeds"]
    rng = np.random.default_rng(7)
    calls = 0
    for _ in range(200):
        shift = rng.normal(0, 1, 2)
        scores = [1.5 - 0.08 * (v == 1) + shift[s] + rng.normal(0, 0.01) for v, s in places]
        found = of(scores, places)
        ds = [difference(found, v, 0) for v in range(1, 6)]
        p = holm([d.p for d in ds])[0]
        calls += decide(replace(ds[0], p_holm=p)) == "better"
    assert calls >= 190

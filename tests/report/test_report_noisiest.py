"""A variant that is noisier than the others: at which rates it is found, and how it is said."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from synthetic import GATED, MOE, NAIVE, SWIGLU, write_run

from mlpkit.report.comparison import compare
from mlpkit.report.noisiest import noisiest, unbiased_variances
from mlpkit.report.runs import find_runs
from mlpkit.report.statistics import design_of
from mlpkit.report.words import sentence

NAMES = ("a", "b", "c", "d", "e", "f")


def simulated(
    rng: np.random.Generator, sds: tuple[float, ...], num_seeds: int, missing: tuple[int, ...] = ()
) -> tuple[list[float], list[str], list[int]]:
    """Scores with these sds, an effect of variant and of seed; some runs may be missing."""
    places = list(product(range(len(sds)), range(num_seeds)))
    places = [place for number, place in enumerate(places) if number not in missing]
    seeds, variants = rng.normal(0, 0.5, num_seeds), rng.normal(0, 0.5, len(sds))
    scores = [1.5 + variants[v] + seeds[s] + rng.normal(0, sds[v]) for v, s in places]
    return scores, [NAMES[v] for v, _ in places], [s for _, s in places]


@pytest.mark.parametrize("missing", [(), (0, 7, 8, 13)])
def test_equal_noise_is_called_unequal_in_one_of_twenty_sweeps(missing: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    found = [noisiest(*simulated(rng, (0.01,) * 5, 3, missing)) for _ in range(300)]
    rate = np.mean([one is not None for one in found])
    assert 0.02 < rate < 0.09  # 5 %, and three standard errors of 300 sweeps


def test_a_variant_five_times_as_noisy_is_found_and_named() -> None:
    rng = np.random.default_rng(2)
    found = [noisiest(*simulated(rng, (0.01,) * 3 + (0.05,) + (0.01,) * 2, 5)) for _ in range(60)]
    named = [one for one in found if one is not None]
    assert len(named) > 0.8 * len(found)
    assert {one.variant for one in named} == {"d"}
    assert np.median([one.sd for one in named]) == pytest.approx(0.05, rel=0.25)
    assert np.median([one.others_sd for one in named]) == pytest.approx(0.01, rel=0.25)
    assert all(0 < one.p < 0.05 for one in named)


def test_the_variances_of_variants_are_unbiased() -> None:
    rng, sds = np.random.default_rng(3), np.array([0.03, 0.01, 0.02, 0.0])
    v, s = np.array(list(product(range(4), range(3)))[:-1]).T
    design = design_of(v, s)
    maker = np.eye(len(v)) - design @ np.linalg.pinv(design)
    member = np.eye(4)[v]
    found = [
        unbiased_variances(maker @ (rng.normal(size=len(v)) * sds[v]), maker, member)
        for _ in range(6000)
    ]
    assert np.mean(found, axis=0) == pytest.approx(sds**2, abs=3e-5)


@pytest.mark.parametrize("num_variants", [1, 2])
def test_of_two_variants_none_is_the_noisy_one(num_variants: int) -> None:
    rng = np.random.default_rng(4)
    assert noisiest(*simulated(rng, (5.0, 0.01)[:num_variants], 6)) is None


def test_seeds_that_change_nothing_are_no_noise() -> None:
    names, seeds = zip(*product("abc", range(3)), strict=True)
    assert noisiest([float(ord(name)) for name in names], names, seeds) is None


@pytest.mark.parametrize(("noise", "said"), [(0.001, False), (0.03, True)])
def test_the_report_says_which_variant_is_noisier(noise: float, said: bool, tmp_path: Path) -> None:
    for look, seed in product((SWIGLU, GATED, NAIVE, MOE), range(5)):
        own = noise if look is NAIVE else 0.001
        write_run(tmp_path / f"{look.overrides[0]}-{seed}", look, seed=seed, noise=own)
    found = compare(find_runs(tmp_path))
    warnings = [w for w in found.warnings if w.key == "unequal_noise"]
    assert bool(warnings) == said == bool(found.groups[0].noise.noisiest)
    for warning in warnings:
        assert sentence(warning, "en").startswith("naive varies more from seed to seed")
        assert sentence(warning, "zh").startswith("naive 在种子间的波动大于其他变体")

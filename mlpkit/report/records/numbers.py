"""Numbers with their uncertainty, and the verdict that they allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal[
    "baseline", "better", "worse", "indistinguishable", "not_comparable", "no_verdict"
]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds.

    Args:
        mean: The mean.
        sd: Standard deviation over seeds (n - 1); None with one seed.
        n: How many seeds.
        low: Lower end of the 95 % t interval of the mean; None with one seed.
        high: Its upper end.
    """

    mean: float
    sd: float | None
    n: int
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A variant's score minus the baseline's, paired by seed.

    Args:
        mean: The difference; negative is better where a lower score is.
        low: Lower end of the 95 % interval; None where noise cannot be estimated.
        high: Its upper end.
        p: Two-sided p value; None where noise cannot be estimated.
        p_holm: The same corrected for the number of variants (Holm); None without a verdict.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None = None


@dataclass(frozen=True, kw_only=True)
class Noisiest:
    """A variant that varies more from seed to seed than the others do, beyond chance.

    Args:
        variant: Its name.
        sd: Standard deviation of its runs around variant + seed.
        others_sd: That of the others' runs.
        p: Of an inequality as large as this one where all are equally noisy.
    """

    variant: str
    sd: float
    others_sd: float
    p: float


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How much a score varies by chance.

    Args:
        sd: Standard deviation of a run around variant + seed; None without degrees of freedom.
        df: Degrees of freedom it rests on.
        baseline_sd: Standard deviation of the baseline over its seeds; None with one.
        detectable: The smallest difference whose 95 % interval would not hold 0, for variants
            with all seeds; None without degrees of freedom.
        noisiest: The variant that is noisier than the others; None: nothing tells that one is.
    """

    sd: float | None = None
    df: int = 0
    baseline_sd: float | None = None
    detectable: float | None = None
    noisiest: Noisiest | None = None

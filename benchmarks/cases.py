"""What a benchmark hands over: contenders of one case, with what they took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .clock import Timing


@dataclass(frozen=True, kw_only=True)
class Case:
    """Contenders side by side.

    Args:
        part: The benchmark it belongs to, e.g. "moe".
        title: What was done, sizes included.
        values: Contender to what it took, in ``unit``.
        unit: "s", "B", "tokens/s" or a number of its own.
        medians: Contender to what it took as a rule, where ``values`` are the fastest calls.
        facts: Sizes and dtype, for programs.
        ours: The contender that stands for mlpkit; None: none does.
        floor: The contender that nobody can beat, a dense FFN of equal FLOPs; None: none.
        target: What ours over the best peer should be at most (times) or at least (rates).
        flops: Of each contender, for the share of the machine's peak; None: not told.
        kept: Undisturbed measurements, all contenders together.
        discarded: Measurements that others disturbed.
        missing: Contender to why it could not run.
    """

    part: str
    title: str
    values: Mapping[str, float]
    unit: str = "s"
    medians: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    ours: str | None = None
    floor: str | None = None
    target: float | None = None
    flops: float | None = None
    kept: int = 0
    discarded: int = 0
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def peers(self) -> dict[str, float]:
        """The contenders of others."""
        return {n: v for n, v in self.values.items() if not own(n) and n != self.floor}

    @property
    def ratio(self) -> float | None:
        """Ours over the best peer: of times and bytes the least, of rates the greatest."""
        return self._over_peers(self.values)

    @property
    def median_ratio(self) -> float | None:
        """The same of the medians: a call whose sizes are new has products compiled first."""
        return self._over_peers(self.medians)

    def _over_peers(self, values: Mapping[str, float]) -> float | None:
        if self.ours not in values or not self.peers:
            return None
        best = max if self.unit == "tokens/s" else min
        return values[self.ours] / best(values[name] for name in self.peers)

    @property
    def over_floor(self) -> float | None:
        """Ours over the floor."""
        if self.ours not in self.values or self.floor not in self.values:
            return None
        return self.values[self.ours] / self.values[self.floor]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        ratios = {"ratio": self.ratio, "median_ratio": self.median_ratio}
        return {**asdict(self), **ratios, "over_floor": self.over_floor}


def own(name: str) -> bool:
    """Whether a contender is mlpkit's."""
    return name.startswith("mlpkit")


def from_timings(timings: Mapping[str, Timing], **rest: Any) -> Case:
    """A case of times."""
    return Case(
        values={name: timing.best for name, timing in timings.items()},
        medians={name: timing.median for name, timing in timings.items()},
        kept=sum(timing.kept for timing in timings.values()),
        discarded=sum(timing.discarded for timing in timings.values()),
        **rest,
    )


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much a run measures.

    Args:
        quick: Tiny sizes: does everything run?
        rounds: Undisturbed measurements of each contender.
        budget: Seconds for a case.
    """

    quick: bool = False
    rounds: int = 10
    budget: float = 20.0

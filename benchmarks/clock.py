"""Timing contenders in turn; what was measured while others held the processor is discarded."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

Call = Callable[[], object]
SHORTEST = 2e-3  # seconds: shorter calls are repeated within one measurement
WAITED = 0.02  # share of a measurement that its threads may have waited for a processor
TASKS = Path("/proc/self/task")


@dataclass
class Timing:
    """What was measured of one contender.

    Args:
        seconds: The fastest call; infinite before the first.
        kept: Measurements taken undisturbed.
        discarded: Measurements during which other processes held the processor.
        fallback: The fastest of the discarded ones.
        times: All measurements.
    """

    seconds: float = math.inf
    kept: int = 0
    discarded: int = 0
    fallback: float = field(default=math.inf, repr=False)
    times: list[float] = field(default_factory=list, repr=False)

    @property
    def median(self) -> float:
        """Seconds of the middle call, disturbed ones included: what a call takes as a rule."""
        return statistics.median(self.times) if self.times else math.inf

    @property
    def best(self) -> float:
        """Seconds of the fastest undisturbed call; where all were disturbed, of the fastest."""
        return self.seconds if self.kept else self.fallback

    def add(self, seconds: float, *, disturbed: bool) -> None:
        """Counts a measurement."""
        self.times.append(seconds)
        if disturbed:
            self.discarded += 1
            self.fallback = min(self.fallback, seconds)
        else:
            self.kept += 1
            self.seconds = min(self.seconds, seconds)


def fastest(
    calls: Mapping[str, Call],
    *,
    rounds: int,
    budget: float,
    device: str = "cpu",
    waiting: Callable[[], float] | None = None,
) -> dict[str, Timing]:
    """Times contenders in turn, round after round, so that all see the same machine.

    Args:
        calls: Contender to what it does.
        rounds: Undisturbed measurements of each to reach.
        budget: Seconds after which no further round begins.
        device: "cpu" or "cuda"; there events of the device measure.
        waiting: Seconds that threads of this process have waited for a processor so far; None:
            what the system says.

    Returns:
        A timing for each contender.
    """
    waiting = waiting or waited
    repeats = {name: _repeats(call, device) for name, call in calls.items()}
    timings = {name: Timing() for name in calls}
    order, shuffle = list(calls.items()), random.Random(0).shuffle
    end = time.perf_counter() + budget
    while True:
        shuffle(order)  # whoever runs before leaves its own weights in the caches
        for name, call in order:
            if timings[name].kept >= rounds:
                continue
            before, start = waiting(), time.perf_counter()
            seconds = timed(call, device, repeats[name])
            lost, wall = waiting() - before, time.perf_counter() - start
            # What a GPU does is not slowed by who holds the processor.
            disturbed = device == "cpu" and lost > WAITED * wall
            timings[name].add(seconds, disturbed=disturbed)
        done = all(timing.kept >= rounds for timing in timings.values())
        if done or time.perf_counter() > end:
            return timings


def timed(call: Call, device: str, repeats: int = 1) -> float:
    """Seconds of one call, the mean of repeats."""
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / repeats
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def _repeats(call: Call, device: str) -> int:
    """How often a short call is repeated; warms it up, too."""
    for _ in range(2):
        call()
    return max(1, math.ceil(SHORTEST / max(timed(call, device), 1e-9)))


def waited() -> float:
    """Seconds that the threads of this process were ready to run and had no processor.

    The second number of Linux's schedstat; elsewhere 0, and nothing is discarded.
    """
    total = 0
    for path in TASKS.glob("*/schedstat"):
        try:
            total += int(path.read_text().split()[1])
        except (OSError, IndexError):  # a thread that has ended meanwhile
            continue
    return total / 1e9


def can_tell() -> bool:
    """Whether this system says how long a process has waited."""
    return any(TASKS.glob("*/schedstat"))

"""Where a function of one variable has its minima and its zeros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]

SAMPLES = 4801  # between -6 and 6 one every 0.0025, 84 for a period of sin(30·x)
QUANTUM = 1e-9  # of the largest value: steps below it are rounding, as in the tail of tanh


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a function takes a value: at a point, or all along an interval.

    Args:
        low: The left end.
        high: The right end; equal to ``low`` for a point.
        value: The function's value there.
    """

    low: float
    high: float
    value: float

    @property
    def flat(self) -> bool:
        """Whether it is an interval."""
        return self.high > self.low


def grid(low: float, high: float) -> Tensor:
    """The points at which a function is looked at, (N,) float64."""
    return torch.linspace(low, high, SAMPLES, dtype=torch.float64)


def minima(function: Function, low: float, high: float) -> list[Place]:
    """The local minima within a range, from left to right.

    An end of the range is none, unless the function is flat there and lower nowhere, as ReLU.
    Where it only approaches a value, as tanh does -1, it has no minimum.

    Args:
        function: Maps (N,) float64 to (N,).
        low: The range's left end.
        high: The range's right end.

    Returns:
        Points right to about 1e-8, and intervals to about 1e-11.
    """
    x = grid(low, high)
    y = function(x)
    finite = y[y.isfinite()]
    if not len(finite):
        return []
    steps = (y / (QUANTUM * float(finite.abs().max()) or 1.0)).round().nan_to_num(nan=torch.inf)
    level, length = torch.unique_consecutive(steps, return_counts=True)
    wall = level.new_full((1,), torch.inf)
    left, right = torch.cat([wall, level[:-1]]), torch.cat([level[1:], wall])
    stop = length.cumsum(0)
    found = []
    for run in ((level < left) & (level < right)).nonzero().flatten().tolist():
        first, last = int(stop[run] - length[run]), int(stop[run]) - 1
        place = _settle(function, x, y, first, last)
        if place is not None:
            found.append(place)
    return found


def zeros(function: Function, low: float, high: float) -> list[Place]:
    """Where a function is 0 within a range, from left to right: it crosses, touches or stays.

    Args:
        function: Maps (N,) float64 to (N,).
        low: The range's left end.
        high: The range's right end.

    Returns:
        Points right to about 1e-8, and intervals to about 1e-11.
    """

    def size(x: Tensor) -> Tensor:
        return function(x).abs()

    y = size(grid(low, high))
    if bool((y == 0).all()):
        return [Place(low=low, high=high, value=0.0)]
    largest = float(y.nan_to_num(posinf=0.0).max())
    found = [p for p in minima(size, low, high) if p.value <= QUANTUM * largest]
    for end, inward in ((low, 1e-6), (high, -1e-6)):
        first, near = size(torch.tensor([end, end + inward], dtype=torch.float64)).tolist()
        inside = any(p.low <= end <= p.high for p in found)
        if first == 0 < near < 1e-3 * largest and not inside:
            found.append(Place(low=end, high=end, value=0.0))
    return sorted(found, key=lambda place: place.low)


def _settle(function: Function, x: Tensor, y: Tensor, first: int, last: int) -> Place | None:
    """The minimum in a run of samples lower than both its neighbours; None at an open end."""
    value = float(y[first : last + 1].median())
    same = (y[first : last + 1] == value).nonzero().flatten() + first
    start, stop = int(same[0]), int(same[-1])
    if stop - start >= 2 and len(same) == stop - start + 1:
        return _stretch(function, x, y, start, stop)
    if first == 0 or last == len(x) - 1:
        return None
    point = _lowest(function, float(x[first - 1]), float(x[last + 1]))
    return Place(low=point, high=point, value=float(function(_points(point, point, 1))))


def _stretch(function: Function, x: Tensor, y: Tensor, start: int, stop: int) -> Place | None:
    """The minimum along equal samples; None where it is a saturation, or higher than elsewhere."""
    final, value = len(x) - 1, float(y[start])
    low, high, sharp = float(x[start]), float(x[stop]), True
    if start > 0:
        low = _edge(function, float(x[start]), float(x[start - 1]))
        sharp = _rises(function, low, -1)
    if stop < final:
        high = _edge(function, float(x[stop]), float(x[stop + 1]))
        sharp = sharp and _rises(function, high, 1)
    inner = start > 0 and stop < final
    lowest = inner or value <= float(y.nan_to_num(nan=torch.inf).min())
    constant = start == 0 and stop == final
    return Place(low=low, high=high, value=value) if sharp and lowest and not constant else None


def _rises(function: Function, end: float, way: int) -> bool:
    """Whether a flat stretch truly ends here; the tail of an exponential rises too slowly.

    A cubic has risen by 1e-6 at this distance; tanh, from where it is -1 in float64, by 1e-18.
    """
    there = function(torch.tensor([end, end + way * 0.01], dtype=torch.float64))
    return bool((there[1] - there[0]).abs() > 1e-9)


def _lowest(function: Function, low: float, high: float) -> float:
    for _ in range(6):  # each pass narrows 32-fold
        points = _points(low, high, 65)
        at = int(function(points).nan_to_num(nan=torch.inf).argmin())
        low, high = float(points[max(at - 1, 0)]), float(points[min(at + 1, 64)])
    return float(points[at])


def _edge(function: Function, inside: float, outside: float) -> float:
    """The last place where a function has the value that it has inside."""
    for _ in range(6):
        points = _points(inside, outside, 65)
        values = function(points)
        at = int((values != values[0]).int().argmax())
        inside, outside = float(points[at - 1]), float(points[at])
    return inside


def _points(low: float, high: float, count: int) -> Tensor:
    return torch.linspace(low, high, count, dtype=torch.float64)

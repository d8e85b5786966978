"""The solver: the width whose count is nearest to a budget, and what is left over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

WIDEST = 1 << 31  # nothing real is wider: a count that is still too small does not grow


class BudgetError(ValueError):
    """A budget that no width comes near to."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A width for a budget.

    Args:
        width: The width, at least 1.
        reached: What it counts.
        target: The budget.
    """

    width: int
    reached: int
    target: int

    @property
    def residual(self) -> int:
        """What was reached above the budget; negative below it."""
        return self.reached - self.target

    @property
    def share(self) -> float:
        """The residual as a share of the budget."""
        return self.residual / self.target

    def __str__(self) -> str:
        return f"width {self.width}: {self.reached:,} of {self.target:,} ({self.share:+.4%})"


def nearest_width(count: Callable[[int], int], target: int, *, multiple: int = 1) -> Solution:
    """The width whose count is nearest to a budget; of two equally near ones the smaller.

    Args:
        count: What a width counts, e.g. parameters; it must not fall as the width grows, and
            need not be linear.
        target: The budget, at least 1.
        multiple: Only multiples of it are tried, at least 1.

    Raises:
        BudgetError: The budget is below 1, or the count never comes to it.
    """
    if target < 1:
        raise BudgetError(f"the budget is {target}; it must be at least 1")
    low, high = 0, 1  # in multiples; count(low) is below the budget, count(high) will not be
    while count(high * multiple) < target:
        low, high = high, 2 * high
        if high * multiple > WIDEST:
            raise BudgetError(
                f"no width up to {WIDEST:,} comes to {target:,}; a width of {low * multiple:,} "
                f"counts {count(low * multiple):,}: does it depend on the width at all?"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle * multiple) < target else (low, middle)
    near = [width * multiple for width in (low, high) if width]
    found = [Solution(width=w, reached=count(w), target=target) for w in near]
    return min(found, key=lambda solution: abs(solution.residual))

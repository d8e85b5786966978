"""In which precision an activation is computed, and the checks of its plain options."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")


class ActivationOptionError(ValueError):
    """An option that an activation does not have, or a value outside its domain."""

    exit_code = 2


def widen(x: Tensor) -> Tensor:
    """A bfloat16 or float16 tensor as float32; every other one as it is (float64 stays float64)."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def in_float32(
    function: Callable[Concatenate[Tensor, P], Tensor],
) -> Callable[Concatenate[Tensor, P], Tensor]:
    """Computes a function of half-precision input in float32 and rounds once, at its end.

    For functions of several torch operations: each would round to 8 or 11 bits on its way, and a
    backward such as y·(1 − y) is wrong by half its size once y has been rounded (x = 6 in
    bfloat16). torch's fused kernels do the same inside and need no decorator.

    Args:
        function: A function of a tensor and keyword-only options.

    Returns:
        The function with the same signature, whose output has the dtype of its input.
    """

    @wraps(function)
    def rounded(x: Tensor, /, *args: P.args, **options: P.kwargs) -> Tensor:
        return function(widen(x), *args, **options).to(x.dtype)

    return rounded


def positive(**options: float) -> None:
    """Checks that options are above zero.

    Raises:
        ActivationOptionError: One is not; it is named with its value.
    """
    for name, value in options.items():
        if not value > 0:
            raise ActivationOptionError(f"{name} is {value}; give a number above 0")

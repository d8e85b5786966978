"""The feed-forward contract, and the error of an option that an FFN refuses."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class FFNOptionError(ValueError):
    """An option of an FFN outside of its range; the message says what it may be."""

    exit_code = 2


class FeedForward(nn.Module, ABC):
    """An FFN: works on each position alone, keeps the shape, and follows the dtype of x."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H)."""

"""The feed-forward contract and the dense FFNs: naive, and gated (SwiGLU is gated with SiLU)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

from torch import Tensor, nn

from mlpkit.sizing import resolve_width


class FeedForward(nn.Module, ABC):
    """An FFN: works on each position alone, keeps the shape, and follows the dtype of x."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H)."""


@final
class NaiveFFN(FeedForward):
    """Two linear layers around an activation (Vaswani 2017, arXiv:1706.03762).

    Args:
        hidden_size: H, width of input and output.
        activation: The non-linearity, elementwise on (..., I).
        intermediate_size: I, or a rule ("8/3", "4x", "pi"); None: 4·H.
        bias: Whether both projections have biases.
        dropout: Probability in [0, 1) of zeroing an output element in training.

    Raises:
        WidthError: ``intermediate_size`` is not positive and names no rule.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        activation: nn.Module,
        intermediate_size: int | str | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        width = resolve_width(intermediate_size, hidden_size, "4x")
        self.up_proj = nn.Linear(hidden_size, width, bias=bias)
        self.down_proj = nn.Linear(width, hidden_size, bias=bias)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H)."""
        out: Tensor = self.dropout(self.down_proj(self.activation(self.up_proj(x))))
        return out


@final
class GatedFFN(FeedForward):
    """An activated gate multiplies the up projection (Shazeer 2020, arXiv:2002.05202).

    With SiLU it is SwiGLU, with sigmoid the GLU of Dauphin 2016 (arXiv:1612.08083).

    Args:
        hidden_size: H, width of input and output.
        activation: The gate's non-linearity, elementwise on (..., I).
        intermediate_size: I, or a rule ("8/3", "4x", "pi"); None: 8/3·H up to a multiple of 64.
        bias: Whether the three projections have biases.
        dropout: Probability in [0, 1) of zeroing an output element in training.

    Raises:
        WidthError: ``intermediate_size`` is not positive and names no rule.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        activation: nn.Module,
        intermediate_size: int | str | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        width = resolve_width(intermediate_size, hidden_size, "8/3")
        self.gate_proj = nn.Linear(hidden_size, width, bias=bias)
        self.up_proj = nn.Linear(hidden_size, width, bias=bias)
        self.down_proj = nn.Linear(width, hidden_size, bias=bias)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H)."""
        gated = self.activation(self.gate_proj(x)) * self.up_proj(x)  # (..., I)
        out: Tensor = self.dropout(self.down_proj(gated))
        return out

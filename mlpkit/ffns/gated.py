"""The gated FFNs: plain (SwiGLU is gated with SiLU), clamped, and gated once more at the output."""

from __future__ import annotations

import math
from typing import final

from torch import Tensor, nn

from mlpkit.ffns.contract import FeedForward, FFNOptionError
from mlpkit.sizing import resolve_width


@final
class GatedFFN(FeedForward):
    """An activated gate multiplies the up projection (Shazeer 2020, arXiv:2002.05202).

    With SiLU it is SwiGLU, with sigmoid the GLU of Dauphin 2016 (arXiv:1612.08083).

    Args:
        hidden_size: H, width of input and output.
        activation: The gate's non-linearity, elementwise on (..., I).
        intermediate_size: I, or a rule ("8/3", "4x", "pi", "llama"); None: 8/3·H up to a
            multiple of 64.
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


@final
class ClampedGatedFFN(FeedForward):
    """A gated FFN whose halves cannot grow without bound, as in GPT-OSS (arXiv:2508.10925).

    With g = min(gate_proj(x), limit) and u = up_proj(x) within ±limit, the output is
    down_proj((u + up_offset) · g · sigmoid(alpha · g)). ``alpha=1, up_offset=0`` clamps a plain
    SwiGLU, as DeepSeek-V4 does with ``limit=10``.

    Args:
        hidden_size: H, width of input and output.
        intermediate_size: I, or a rule ("8/3", "4x", "pi", "llama"); None: 8/3·H up to a
            multiple of 64.
        alpha: Slope of the sigmoid, finite: 1.702 is close to GELU, 1 is SiLU.
        limit: Above 0: the largest gate before its sigmoid, and largest size of the up half.
        up_offset: Added to the clamped up half, so that a gate passes also where up is 0.
        bias: Whether the three projections have biases; GPT-OSS has them.
        dropout: Probability in [0, 1) of zeroing an output element in training.

    Raises:
        WidthError: ``intermediate_size`` is not positive and names no rule.
        FFNOptionError: ``limit`` is not above 0, or a number is not one.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int | str | None = None,
        alpha: float = 1.702,
        limit: float = 7.0,
        up_offset: float = 1.0,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check_clamp(alpha, limit, up_offset)
        width = resolve_width(intermediate_size, hidden_size, "8/3")
        self.gate_proj = nn.Linear(hidden_size, width, bias=bias)
        self.up_proj = nn.Linear(hidden_size, width, bias=bias)
        self.down_proj = nn.Linear(width, hidden_size, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.alpha = alpha
        self.limit = limit
        self.up_offset = up_offset

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H)."""
        gate = self.gate_proj(x).clamp(max=self.limit)  # (..., I)
        up = self.up_proj(x).clamp(min=-self.limit, max=self.limit)
        gated = (up + self.up_offset) * gate * (self.alpha * gate).sigmoid()
        out: Tensor = self.dropout(self.down_proj(gated))
        return out

    def extra_repr(self) -> str:
        """The options that no part shows."""
        return f"alpha={self.alpha}, limit={self.limit}, up_offset={self.up_offset}"


def _check_clamp(alpha: float, limit: float, up_offset: float) -> None:
    if not limit > 0:  # also NaN
        raise FFNOptionError(f"limit is {limit}; give a number above 0")
    for name, value in {"alpha": alpha, "up_offset": up_offset}.items():
        if not math.isfinite(value):
            raise FFNOptionError(f"{name} is {value}; give a finite number")


@final
class OutputGatedFFN(FeedForward):
    """A gated FFN times one sigmoid per position: Qwen's shared expert (arXiv:2407.10671).

    sigmoid(output_gate(x)) · down_proj(act(gate_proj(x)) · up_proj(x)): the position itself decides
    how much of the FFN it takes.

    Args:
        hidden_size: H, width of input and output.
        activation: The inner gate's non-linearity, elementwise on (..., I).
        intermediate_size: I, or a rule ("8/3", "4x", "pi", "llama"); None: 8/3·H up to a
            multiple of 64.
        bias: Whether the three projections have biases; the output gate has none.
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
        self.output_gate = nn.Linear(hidden_size, 1, bias=False)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H)."""
        gated = self.activation(self.gate_proj(x)) * self.up_proj(x)  # (..., I)
        amount = self.output_gate(x).sigmoid()  # (..., 1)
        out: Tensor = self.dropout(amount * self.down_proj(gated))
        return out

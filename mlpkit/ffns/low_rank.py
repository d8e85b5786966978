"""The low-rank FFN: gated, with each matrix the product of a wide and a tall one."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from mlpkit.catalogue.ffn_sizes import resolve_rank
from mlpkit.ffns.contract import FeedForward
from mlpkit.sizing import resolve_width


@final
class FactorisedLinear(nn.Module):
    """A linear layer whose matrix is outer · inner and has at most rank R.

    Args:
        in_features: Width of the input.
        out_features: Width of the output.
        rank: R, at least 1.
        bias: Whether the output has a bias.
    """

    def __init__(self, *, in_features: int, out_features: int, rank: int, bias: bool) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.inner = nn.Linear(in_features, rank, bias=False)
        self.outer = nn.Linear(rank, out_features, bias=bias)
        # A Linear's own start divides the variance by 3, and two of them by 9. With this one the
        # product starts as large as a single Linear, so that full and low rank compare fairly.
        nn.init.kaiming_uniform_(self.inner.weight, nonlinearity="linear")

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., in_features) to (..., out_features)."""
        out: Tensor = self.outer(self.inner(x))
        return out


@final
class LowRankFFN(FeedForward):
    """A gated FFN of factorised projections (Wei 2024, arXiv:2407.09835).

    Fewer parameters at the same width: 3·R·(H + I) in place of 3·H·I.

    Args:
        hidden_size: H, width of input and output.
        activation: The gate's non-linearity, elementwise on (..., I).
        intermediate_size: I, or a rule ("8/3", "4x", "pi", "llama"); None: 8/3·H up to a
            multiple of 64.
        rank: R, at least 1, of all three projections; None: H/4, about a third of the parameters.
        bias: Whether the three projections have biases.
        dropout: Probability in [0, 1) of zeroing an output element in training.

    Raises:
        WidthError: ``intermediate_size`` is not positive and names no rule.
        RankError: ``rank`` is below 1.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        activation: nn.Module,
        intermediate_size: int | str | None = None,
        rank: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        width = resolve_width(intermediate_size, hidden_size, "8/3")
        inner = resolve_rank(rank, hidden_size)
        self.gate_proj = FactorisedLinear(
            in_features=hidden_size, out_features=width, rank=inner, bias=bias
        )
        self.up_proj = FactorisedLinear(
            in_features=hidden_size, out_features=width, rank=inner, bias=bias
        )
        self.down_proj = FactorisedLinear(
            in_features=width, out_features=hidden_size, rank=inner, bias=bias
        )
        self.activation = activation
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H)."""
        gated = self.activation(self.gate_proj(x)) * self.up_proj(x)  # (..., I)
        out: Tensor = self.dropout(self.down_proj(gated))
        return out

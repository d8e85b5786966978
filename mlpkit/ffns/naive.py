"""The naive FFN: two linear layers around an activation."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from mlpkit.ffns.contract import FeedForward, FFNOptionError
from mlpkit.sizing import resolve_width

INNER_NORMS: dict[str, type[nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
NORM_EPS = 1e-5  # added to the variance or mean square, as torch's LayerNorm does


@final
class NaiveFFN(FeedForward):
    """Two linear layers around an activation (Vaswani 2017, arXiv:1706.03762).

    Args:
        hidden_size: H, width of input and output.
        activation: The non-linearity, elementwise on (..., I).
        intermediate_size: I, or a rule ("8/3", "4x", "pi", "llama"); None: 4·H.
        bias: Whether both projections have biases.
        inner_dropout: Probability in [0, 1) of zeroing an activated element in training.
        inner_norm: Norm of the I activated elements, as in NormFormer (Shleifer 2021,
            arXiv:2110.09456): "layer", "rms" or None.
        dropout: Probability in [0, 1) of zeroing an output element in training.

    Raises:
        WidthError: ``intermediate_size`` is not positive and names no rule.
        FFNOptionError: ``inner_norm`` names no norm.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        activation: nn.Module,
        intermediate_size: int | str | None = None,
        bias: bool = False,
        inner_dropout: float = 0.0,
        inner_norm: str | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        width = resolve_width(intermediate_size, hidden_size, "4x")
        self.up_proj = nn.Linear(hidden_size, width, bias=bias)
        self.down_proj = nn.Linear(width, hidden_size, bias=bias)
        self.activation = activation
        self.inner_dropout = nn.Dropout(inner_dropout)
        self.inner_norm = _norm(inner_norm, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H)."""
        inner = self.inner_dropout(self.activation(self.up_proj(x)))  # (..., I)
        out: Tensor = self.dropout(self.down_proj(self.inner_norm(inner)))
        return out


def _norm(name: str | None, width: int) -> nn.Module:
    if name is None:
        return nn.Identity()
    if name not in INNER_NORMS:
        raise FFNOptionError(
            f"inner_norm is {name!r}; choose one of {', '.join(INNER_NORMS)}, or null for none"
        )
    return INNER_NORMS[name](width, eps=NORM_EPS)

"""The FFN of mlpkit-demo."""

import torch
from torch import Tensor, nn


class Demo(nn.Module):
    """Two matrices with an activation and a learned scale in between.

    Args:
        hidden_size: H, width of input and output; the host gives it.
        activation: The non-linearity; a name in the configuration, a module here.
        intermediate_size: I, the width in between; None: 4·H.
    """

    def __init__(
        self, *, hidden_size: int, activation: nn.Module, intermediate_size: int | None = None
    ) -> None:
        super().__init__()
        width = intermediate_size or 4 * hidden_size
        self.up_proj = nn.Linear(hidden_size, width, bias=False)
        self.activation = activation
        self.scale = nn.Parameter(torch.ones(width))
        self.down_proj = nn.Linear(width, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H)."""
        return self.down_proj(self.scale * self.activation(self.up_proj(x)))

"""ACON-C, a smooth maximum of two learned lines."""

import torch
from torch import Tensor, nn


class Acon(nn.Module):
    """(p1 - p2)·x·sigmoid(beta·(p1 - p2)·x) + p2·x; starts as SiLU.

    Args:
        beta: Where the sharpness starts; 0 is linear, large is max(p1·x, p2·x).
    """

    def __init__(self, *, beta: float = 1.0) -> None:
        super().__init__()
        self.p1 = nn.Parameter(torch.tensor(1.0))
        self.p2 = nn.Parameter(torch.tensor(0.0))
        self.beta = nn.Parameter(torch.tensor(beta))

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., I)."""
        d = (self.p1 - self.p2) * x
        return d * torch.sigmoid(self.beta * d) + self.p2 * x

"""The NormFormer FFN."""

from torch import Tensor, nn


class NormFormerFFN(nn.Module):
    """fc2(norm(activation(fc1(x)))).

    Args:
        hidden_size: H, width of input and output.
        activation: The non-linearity.
        intermediate_size: I; None: 4·H.
        eps: Added to the variance in the norm.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        activation: nn.Module,
        intermediate_size: int | None = None,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        width = intermediate_size or 4 * hidden_size
        self.fc1 = nn.Linear(hidden_size, width)
        self.activation = activation
        self.norm = nn.LayerNorm(width, eps=eps)
        self.fc2 = nn.Linear(width, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H)."""
        return self.fc2(self.norm(self.activation(self.fc1(x))))

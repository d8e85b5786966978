"""Activations with learned parameters, or that draw at random: modules, one set of numbers each.

Parameters are one number for the whole tensor, or one for each feature (the last dimension).
Half-precision input is computed in float32 and rounded once. ``forward`` keeps shape and dtype.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlpkit.activations.bounded import phase
from mlpkit.activations.precision import ActivationOptionError, positive, widen
from mlpkit.activations.rectifiers import star_relu


class PReLU(nn.Module):
    """Gives x where x > 0, else weight·x (He et al. 2015, arXiv:1502.01852).

    Args:
        num_parameters: 1, or the width of the last dimension for one slope per feature
            (``nn.PReLU`` takes dimension 1, which is the sequence in (B, S, H)).
        init: The slope at the start.
    """

    def __init__(self, *, num_parameters: int = 1, init: float = 0.25) -> None:
        super().__init__()
        self.init = init
        self.weight = nn.Parameter(torch.empty(num_parameters))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets every slope to its value at the start."""
        nn.init.constant_(self.weight, self.init)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., I)."""
        return torch.where(x > 0, x, widen(self.weight) * x).to(x.dtype)


class RReLU(nn.Module):
    """Gives x where x > 0, else slope·x: drawn per element in training, its mean in evaluation.

    Args:
        lower: The smallest slope.
        upper: The largest slope (Xu et al. 2015, arXiv:1505.00853, use 1/8 and 1/3).

    Raises:
        ActivationOptionError: ``lower`` is above ``upper``.
    """

    def __init__(self, *, lower: float = 1 / 8, upper: float = 1 / 3) -> None:
        super().__init__()
        if lower > upper:
            raise ActivationOptionError(f"lower is {lower}, above upper {upper}; swap them")
        self.lower, self.upper = lower, upper

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., I)."""
        if not self.training:
            return F.leaky_relu(x, (self.lower + self.upper) / 2)
        # F.rrelu has no rule for vmap, under which a padded expert runs
        slope = self.lower + (self.upper - self.lower) * torch.rand_like(widen(x))
        return torch.where(x > 0, x, slope * x).to(x.dtype)

    def extra_repr(self) -> str:
        """The two bounds, for ``print``."""
        return f"lower={self.lower}, upper={self.upper}"


class SwishLearned(nn.Module):
    """x·σ(beta·x) with a trained beta (Ramachandran et al. 2017, arXiv:1710.05941).

    Args:
        num_parameters: 1, or the width of the last dimension.
        beta: The steepness at the start.
    """

    def __init__(self, *, num_parameters: int = 1, beta: float = 1.0) -> None:
        super().__init__()
        self.init = beta
        self.beta = nn.Parameter(torch.empty(num_parameters))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets every beta to its value at the start."""
        nn.init.constant_(self.beta, self.init)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., I)."""
        return (widen(x) * torch.sigmoid(widen(self.beta) * x)).to(x.dtype)


class SnakeBeta(nn.Module):
    """Gives x + sin²(alpha·x)/beta, both kept above zero as exponentials of what is trained.

    Args:
        num_parameters: 1, or the width of the last dimension.
        alpha: The frequency at the start, above 0.
        beta: The inverse magnitude at the start, above 0.

    Raises:
        ActivationOptionError: ``alpha`` or ``beta`` is not above 0.
    """

    def __init__(self, *, num_parameters: int = 1, alpha: float = 1.0, beta: float = 1.0) -> None:
        super().__init__()
        positive(alpha=alpha, beta=beta)
        self.init = (math.log(alpha), math.log(beta))
        self.log_alpha = nn.Parameter(torch.empty(num_parameters))
        self.log_beta = nn.Parameter(torch.empty(num_parameters))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets frequency and magnitude to their values at the start."""
        nn.init.constant_(self.log_alpha, self.init[0])
        nn.init.constant_(self.log_beta, self.init[1])

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., I)."""
        wide = widen(x)
        wave = torch.sin(phase(wide, widen(self.log_alpha).exp())).square()
        return (wide + wave * torch.exp(-widen(self.log_beta))).to(x.dtype)


class StarReLULearned(nn.Module):
    """scale·max(x, 0)² + bias with both trained (Yu et al. 2022, arXiv:2210.13452).

    Args:
        scale: The factor at the start.
        bias: The offset at the start.
    """

    def __init__(
        self, *, scale: float = 0.8944271909999159, bias: float = -0.4472135954999579
    ) -> None:
        super().__init__()
        self.init = (scale, bias)
        self.scale = nn.Parameter(torch.empty(1))
        self.bias = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets both to their values at the start."""
        nn.init.constant_(self.scale, self.init[0])
        nn.init.constant_(self.bias, self.init[1])

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., I)."""
        wide = star_relu(widen(x), scale=1.0, bias=0.0)
        return (widen(self.scale) * wide + widen(self.bias)).to(x.dtype)


class XIELU(nn.Module):
    """a·x² + beta·x where x > 0, else b·(eˣ − 1 − x) + beta·x (Huang & Schlag 2024).

    a = softplus(alpha_p) and b = beta + softplus(alpha_n) are trained. The parameters start at
    values rounded to bfloat16, as in the Apertus models, so that those weights and a fresh
    module agree. transformers evaluates e^min(x, −1e-6), which at x = 0 gives −8e-7 with slope
    −0.3; here it is 0 with slope beta, as in the paper.

    Args:
        alpha_p: a at the start, above 0.
        alpha_n: b at the start, above ``beta``.
        beta: The slope at 0.

    Raises:
        ActivationOptionError: ``alpha_p`` or ``alpha_n − beta`` is not above 0.
    """

    def __init__(self, *, alpha_p: float = 0.8, alpha_n: float = 0.8, beta: float = 0.5) -> None:
        super().__init__()
        positive(**{"alpha_p": alpha_p, "alpha_n - beta": alpha_n - beta})
        self.init = (alpha_p, alpha_n - beta)
        self.beta = beta
        self.alpha_p = nn.Parameter(torch.empty(1))
        self.alpha_n = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets both to softplus⁻¹ of their values at the start, rounded as in bfloat16."""
        for parameter, value in zip((self.alpha_p, self.alpha_n), self.init, strict=True):
            start = torch.tensor(value, dtype=torch.bfloat16).expm1().log()
            with torch.no_grad():
                parameter.copy_(start)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., I)."""
        wide, left = widen(x), widen(x).clamp(max=0)
        positive_side = F.softplus(widen(self.alpha_p)) * wide.clamp(min=0) * wide
        negative_side = (self.beta + F.softplus(widen(self.alpha_n))) * (torch.expm1(left) - left)
        curve = torch.where(wide > 0, positive_side, negative_side)
        return (curve + self.beta * wide).to(x.dtype)

    def extra_repr(self) -> str:
        """The slope at 0, for ``print``."""
        return f"beta={self.beta}"


class PolyReLU(nn.Module):
    """Σ weight[i]·max(x, 0)^(i+1) + bias, i = 0, 1, 2 (Zhuo et al. 2024, arXiv:2411.03884).

    Args:
        order: The highest power; every weight starts at 1/order, the bias at 0.

    Raises:
        ActivationOptionError: ``order`` is below 1.
    """

    def __init__(self, *, order: int = 3) -> None:
        super().__init__()
        positive(order=order)
        self.weight = nn.Parameter(torch.empty(order))
        self.bias = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets every weight to 1/order and the bias to 0."""
        nn.init.constant_(self.weight, 1 / len(self.weight))
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., I)."""
        base = F.relu(widen(x))
        total = torch.zeros_like(base)
        for coefficient in reversed(widen(self.weight).unbind()):  # Horner's scheme
            total = (total + coefficient) * base
        return (total + widen(self.bias)).to(x.dtype)

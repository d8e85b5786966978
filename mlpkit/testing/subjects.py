"""Subjects: a registered entry with options, built in any dtype from any seed, and its checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mlpkit.build import seeded
from mlpkit.plugins import registries
from mlpkit.specs import Spec

HIDDEN = 8  # H of every check, unless the caller says otherwise


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An entry under test.

    Args:
        noun: Its extension point.
        spec: What it says about itself.
        make: Builds a new instance with the options under test, from torch's global generator.
        values: What a module computes from rows (T, H), as one tensor.
        hidden_size: H of the rows.
        options: The options under test, for formulas.
    """

    noun: str
    spec: Spec
    make: Callable[[], Any]
    values: Callable[[Any, Tensor], Tensor] = lambda module, x: module(x)
    hidden_size: int = HIDDEN
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
        """A new module in evaluation mode, with the initial values of a seed."""
        with seeded(seed, self.spec.name):
            module: nn.Module = self.make()
        return module.to(dtype).eval()

    def rows(self, *leading: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
        """Normal values of shape (*leading, H), the same for a seed in every dtype."""
        rng = torch.Generator().manual_seed(seed)
        values = torch.randn(*leading, self.hidden_size, generator=rng, dtype=torch.float64)
        return values.to(dtype)


Check = Callable[[Subject], None]


def must(holds: object, message: str) -> None:
    """Fails a check.

    Raises:
        AssertionError: ``holds`` is false; an assert statement would vanish under ``python -O``.
    """
    if not holds:
        raise AssertionError(message)


def close(got: Tensor, want: Tensor, what: str, tolerance: float = 1e-10) -> None:
    """Fails a check when two tensors differ by more than a share of the largest value.

    Raises:
        AssertionError: They do, or in shape; the message has the largest difference.
    """
    must(got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}")
    if want.numel() == 0:
        return
    got, want = got.detach(), want.detach()
    scale = max(1.0, float(want.abs().max()))
    worst = float((got.double() - want.double()).abs().max())
    must(
        worst <= tolerance * scale, f"{what}: off by {worst:.2g} (allowed {tolerance * scale:.2g})"
    )


def title(check: Check) -> str:
    """A check's name as it is shown: that of its function, with spaces."""
    return check.__name__.replace("_", " ")


def spec_of(noun: str, name: str) -> Spec:
    """The spec of an entry."""
    spec: Spec = registries().by_noun()[noun].get(name)
    return spec

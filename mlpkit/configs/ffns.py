"""Schemas of the built-in dense FFNs, the torch-free copies of their constructors' signatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlpkit.configs.run import option


@dataclass(kw_only=True)
class DenseConfig:
    """Options that the naive and the gated FFN share."""

    name: str
    activation: Any = None  # name or mapping; null: the run's, else the FFN's own default
    intermediate_size: int | str | None = None  # width, or a rule: 8/3, 4x, pi; null: its default
    bias: bool = False  # biases on every projection
    dropout: float = option(0.0, "probability, on the output", minimum=0, below=1)


@dataclass(kw_only=True)
class NaiveConfig(DenseConfig):
    """Options of the naive FFN."""

    name: str = "naive"


@dataclass(kw_only=True)
class GatedConfig(DenseConfig):
    """Options of the gated FFN."""

    name: str = "gated"


@dataclass(kw_only=True)
class SwiGLUConfig(DenseConfig):
    """Options of SwiGLU."""

    name: str = "swiglu"

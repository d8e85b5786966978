"""Schemas of the built-in dense FFNs, the torch-free copies of their constructors' signatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlpkit.configs.run import option
from mlpkit.sizing import LARGEST


@dataclass(kw_only=True)
class DenseConfig:
    """Options that all dense FFNs with an activation share."""

    name: str
    activation: Any = None  # name or mapping; null: the run's, else the FFN's own default
    intermediate_size: int | str | None = None  # or a rule: 8/3, 4x, pi, llama; null: its default
    bias: bool = False  # biases on every projection
    dropout: float = option(0.0, "probability, on the output", minimum=0, below=1)


@dataclass(kw_only=True)
class NaiveConfig(DenseConfig):
    """Options of the naive FFN."""

    name: str = "naive"
    inner_dropout: float = option(0.0, "probability, on the activated I", minimum=0, below=1)
    inner_norm: str | None = option(
        None, "norm of the activated I; null: none", choices=("layer", "rms")
    )


@dataclass(kw_only=True)
class GatedConfig(DenseConfig):
    """Options of the gated FFN."""

    name: str = "gated"


@dataclass(kw_only=True)
class BilinearConfig(DenseConfig):
    """Options of the bilinear FFN."""

    name: str = "bilinear"


@dataclass(kw_only=True)
class ReGLUConfig(DenseConfig):
    """Options of ReGLU."""

    name: str = "reglu"


@dataclass(kw_only=True)
class GEGLUConfig(DenseConfig):
    """Options of GEGLU."""

    name: str = "geglu"


@dataclass(kw_only=True)
class SwiGLUConfig(DenseConfig):
    """Options of SwiGLU."""

    name: str = "swiglu"


@dataclass(kw_only=True)
class ClampedGatedConfig:
    """Options of GPT-OSS's clamped gated FFN, whose gate has no other activation."""

    name: str = "clamped_gated"
    intermediate_size: int | str | None = None  # width, or a rule: 8/3, 4x, pi, llama; null: 8/3
    alpha: float = option(1.702, "slope of the sigmoid: 1.702 is near GELU, 1 is SiLU")
    limit: float = option(7.0, "largest gate, and largest size of the up half", above=0)
    up_offset: float = option(1.0, "added to the clamped up half")
    bias: bool = False  # biases on every projection
    dropout: float = option(0.0, "probability, on the output", minimum=0, below=1)


@dataclass(kw_only=True)
class OutputGatedConfig(DenseConfig):
    """Options of the output-gated FFN."""

    name: str = "output_gated"


@dataclass(kw_only=True)
class LowRankConfig(DenseConfig):
    """Options of the low-rank FFN."""

    name: str = "low_rank"
    rank: int | None = option(
        None, "R of all three projections; null: H/4", minimum=1, maximum=LARGEST
    )

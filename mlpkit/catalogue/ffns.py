"""The dense FFNs that ship."""

from __future__ import annotations

from mlpkit.configs.ffns import (
    BilinearConfig,
    ClampedGatedConfig,
    GatedConfig,
    GEGLUConfig,
    LowRankConfig,
    NaiveConfig,
    OutputGatedConfig,
    ReGLUConfig,
    SwiGLUConfig,
)
from mlpkit.specs import FFNSpec

DAUPHIN = "Dauphin 2016, arXiv:1612.08083"
SHAZEER = "Shazeer 2020, arXiv:2002.05202"


def _gated(
    *, name: str, config: type, activation: str, summary: str, paper: str = SHAZEER
) -> FFNSpec:
    """The gated FFN under its own name, or under that of a pairing with an activation."""
    return FFNSpec(
        name=name,
        target="mlpkit.ffns:GatedFFN",
        summary=summary,
        paper=paper,
        aliases=("glu",) if name == "gated" else (),
        config=config,
        num_params="mlpkit.sizing:gated_params",
        flops_per_token="mlpkit.sizing:gated_flops",
        default_activation=activation,
        family="" if name == "gated" else "gated",
    )


FFNS: tuple[FFNSpec, ...] = (
    FFNSpec(
        name="naive",
        target="mlpkit.ffns:NaiveFFN",
        summary="two linear layers around an activation: down(act(up(x)))",
        paper="Vaswani 2017, arXiv:1706.03762",
        config=NaiveConfig,
        num_params="mlpkit.catalogue.ffn_sizes:naive_params",
        flops_per_token="mlpkit.sizing:naive_flops",
        default_activation="relu",
    ),
    _gated(
        name="gated",
        config=GatedConfig,
        activation="sigmoid",
        summary="a gate multiplies the up projection: down(act(gate(x)) * up(x))",
        paper=DAUPHIN,
    ),
    _gated(
        name="bilinear",
        config=BilinearConfig,
        activation="identity",
        summary="the gated FFN without a non-linearity: down(gate(x) * up(x))",
    ),
    _gated(
        name="reglu",
        config=ReGLUConfig,
        activation="relu",
        summary="the gated FFN with ReLU: down(relu(gate(x)) * up(x))",
    ),
    _gated(
        name="geglu",
        config=GEGLUConfig,
        activation="gelu",
        summary="the gated FFN with the exact GELU: down(gelu(gate(x)) * up(x))",
    ),
    _gated(
        name="swiglu",
        config=SwiGLUConfig,
        activation="silu",
        summary="the gated FFN with SiLU, as in Llama: down(silu(gate(x)) * up(x))",
    ),
    FFNSpec(
        name="clamped_gated",
        target="mlpkit.ffns:ClampedGatedFFN",
        summary="GPT-OSS's: down((up + 1) * gate * sigmoid(1.702 * gate)), gate and up clamped",
        paper="OpenAI 2025, arXiv:2508.10925",
        config=ClampedGatedConfig,
        num_params="mlpkit.sizing:gated_params",
        flops_per_token="mlpkit.sizing:gated_flops",
    ),
    FFNSpec(
        name="output_gated",
        target="mlpkit.ffns:OutputGatedFFN",
        summary="a gated FFN times a sigmoid per position, as Qwen's shared expert",
        paper="Yang 2024, arXiv:2407.10671",
        config=OutputGatedConfig,
        num_params="mlpkit.catalogue.ffn_sizes:output_gated_params",
        flops_per_token="mlpkit.catalogue.ffn_sizes:output_gated_flops",
        default_activation="silu",
    ),
    FFNSpec(
        name="low_rank",
        target="mlpkit.ffns:LowRankFFN",
        summary="a gated FFN with each matrix the product of two of rank R",
        paper="Wei 2024, arXiv:2407.09835",
        config=LowRankConfig,
        num_params="mlpkit.catalogue.ffn_sizes:low_rank_params",
        flops_per_token="mlpkit.catalogue.ffn_sizes:low_rank_flops",
        default_activation="silu",
    ),
)

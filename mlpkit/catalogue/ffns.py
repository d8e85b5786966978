"""The dense FFNs that ship."""

from __future__ import annotations

from mlpkit.configs.ffns import GatedConfig, NaiveConfig, SwiGLUConfig
from mlpkit.specs import FFNSpec

GATED = "mlpkit.ffns:GatedFFN"

FFNS: tuple[FFNSpec, ...] = (
    FFNSpec(
        name="naive",
        target="mlpkit.ffns:NaiveFFN",
        summary="two linear layers around an activation: down(act(up(x)))",
        paper="Vaswani 2017, arXiv:1706.03762",
        config=NaiveConfig,
        num_params="mlpkit.sizing:naive_params",
        flops_per_token="mlpkit.sizing:naive_flops",
        default_activation="relu",
    ),
    FFNSpec(
        name="gated",
        target=GATED,
        summary="a gate multiplies the up projection: down(act(gate(x)) * up(x))",
        paper="Dauphin 2016, arXiv:1612.08083",
        aliases=("glu",),
        config=GatedConfig,
        num_params="mlpkit.sizing:gated_params",
        flops_per_token="mlpkit.sizing:gated_flops",
        default_activation="sigmoid",
    ),
    FFNSpec(
        name="swiglu",
        target=GATED,
        summary="the gated FFN with SiLU, as in Llama: down(silu(gate(x)) * up(x))",
        paper="Shazeer 2020, arXiv:2002.05202",
        config=SwiGLUConfig,
        num_params="mlpkit.sizing:gated_params",
        flops_per_token="mlpkit.sizing:gated_flops",
        default_activation="silu",
        family="gated",
    ),
)

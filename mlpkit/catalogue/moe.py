"""The MoE, the experts that hardly compute, and the backends that ship."""

from __future__ import annotations

from mlpkit.configs.moe import MoEConfig
from mlpkit.specs import BackendSpec, FFNSpec

MOE_PP = "Jin 2024, arXiv:2410.07348"

MOE_FFNS: tuple[FFNSpec, ...] = (
    FFNSpec(
        name="moe",
        target="mlpkit.moe:MoE",
        summary="several FFNs of any kind behind a router",
        paper="Shazeer 2017, arXiv:1701.06538",
        config=MoEConfig,
        width="expert.intermediate_size",
    ),
    FFNSpec(
        name="zero",
        target="mlpkit.experts:ZeroExpert",
        summary="as an expert: drops the token",
        paper=MOE_PP,
        width=None,
    ),
    FFNSpec(
        name="copy",
        target="mlpkit.experts:CopyExpert",
        summary="as an expert: returns the token itself",
        paper=MOE_PP,
        width=None,
    ),
    FFNSpec(
        name="constant",
        target="mlpkit.experts:ConstantExpert",
        summary="as an expert: mixes the token with a learned vector",
        paper=MOE_PP,
        width=None,
    ),
)

BACKENDS: tuple[BackendSpec, ...] = (
    BackendSpec(
        name="auto",
        target="mlpkit.experts:Auto",
        summary="grouped where the FFN allows it, padded where that was measured to be faster",
    ),
    BackendSpec(
        name="loop",
        target="mlpkit.experts:Loop",
        summary="one expert after the other: the reference, right for any FFN",
    ),
    BackendSpec(
        name="grouped",
        target="mlpkit.experts:Grouped",
        summary="the FFN's linears as grouped products over the sorted tokens",
    ),
    BackendSpec(
        name="padded",
        target="mlpkit.experts:Padded",
        summary="all experts side by side, each with as many rows as the fullest",
    ),
    BackendSpec(
        name="gather",
        target="mlpkit.experts:Gather",
        summary="each row with its own copy of the weights: for few tokens",
    ),
)

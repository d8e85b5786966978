"""transformers' MoE blocks in small, and how their weights are made of ours."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from einops import rearrange
from moe_blocks import LATENT, LIMIT, SHARED, E, H, I, K
from torch import Tensor, nn
from transformers import AutoConfig

Ours = Mapping[str, Tensor]
# A reference's tensor as a linear map of ours: it lays out weights and gradients alike.
Layout = Callable[[Ours], Tensor]
GATE, UP, DOWN = (f"experts.{name}_proj.weight" for name in ("gate", "up", "down"))
BIAS = "router.e_score_correction_bias"


class Reference(NamedTuple):
    """A block of transformers.

    Args:
        make: Builds it; takes options of its configuration.
        layouts: Each of its tensors, made of ours.
    """

    make: Callable[..., nn.Module]
    layouts: dict[str, Layout]

    def load(self, ours: Ours, **options: Any) -> nn.Module:
        """The block with our weights; every one of its tensors is written."""
        module = self.make(**options).to(ours["router.weight"].dtype).eval()
        module.load_state_dict(self.lay_out(ours, self.layouts))
        return module

    def lay_out(self, ours: Ours, names: Mapping[str, Any]) -> dict[str, Tensor]:
        """Our weights or gradients as these tensors of the block."""
        return {name: self.layouts[name](ours) for name in names}


def same(name: str) -> Layout:
    return lambda ours: ours[name]


def gate_up(ours: Ours) -> Tensor:
    return torch.cat([ours[GATE], ours[UP]], 1)


def transposed(layout: Layout) -> Layout:
    return lambda ours: layout(ours).transpose(1, 2)


def folded(name: str) -> Layout:
    return lambda ours: rearrange(ours[name], "e i h -> (e i) h")


def interleaved(kind: str) -> Layout:
    """Gate and up alternate."""
    pair = [f"experts.{name}_proj.{kind}" for name in ("gate", "up")]
    return lambda ours: torch.stack([ours[n] for n in pair], 2).flatten(1, 2)


def padded(ours: Ours) -> Tensor:
    """LongCat's gates, which have rows for the experts that compute nothing."""
    stack = torch.cat([ours["experts.0.gate_proj.weight"], ours["experts.0.up_proj.weight"]], 1)
    return torch.cat([stack, stack.new_zeros(2, *stack.shape[1:])])


STANDARD: dict[str, Layout] = {
    "gate.weight": same("router.weight"),
    "experts.gate_up_proj": gate_up,
    "experts.down_proj": same(DOWN),
}


def routed_by(name: str) -> dict[str, Layout]:
    """The standard layout with another name for the router."""
    rest = {n: layout for n, layout in STANDARD.items() if n != "gate.weight"}
    return {name: same("router.weight"), **rest}


def shared(name: str, *projections: str) -> dict[str, Layout]:
    projections = projections or ("gate_proj", "up_proj", "down_proj")
    return {f"{name}.{p}.weight": same(f"shared.{p}.weight") for p in projections}


def biased(name: str) -> dict[str, Layout]:
    return {name: same(BIAS)}


def hf(family: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)


def of(
    family: str, name: str, *arguments: Any, kind: str = "", **options: Any
) -> Callable[[], Any]:
    """A block of a small configuration."""

    def make(**more: Any) -> nn.Module:
        config = AutoConfig.for_model(kind or family, hidden_size=H, **{**options, **more})
        config._experts_implementation = "eager"
        return hf(family, name)(config, *arguments)

    return make


def dbrx(**options: Any) -> nn.Module:
    configs = importlib.import_module("transformers.models.dbrx.configuration_dbrx")
    sizes = configs.DbrxFFNConfig(
        hidden_size=H, ffn_hidden_size=I, moe_num_experts=E, moe_top_k=K, **options
    )
    return hf("dbrx", "DbrxFFN")(SimpleNamespace(ffn_config=sizes))


LOCAL = {"num_local_experts": E, "num_experts_per_tok": K, "intermediate_size": I}
FINE = {"num_experts": E, "num_experts_per_tok": K, "moe_intermediate_size": I}
DEEP = {"n_routed_experts": E, "num_experts_per_tok": K, "moe_intermediate_size": I}
DEEP |= {"n_group": 4, "topk_group": 2}
DEEP_LAYOUT = {**STANDARD, **biased("gate.e_score_correction_bias"), **shared("shared_experts")}

REFERENCES: dict[str, Reference] = {
    "mixtral": Reference(of("mixtral", "MixtralSparseMoeBlock", **LOCAL), STANDARD),
    "qwen2_moe": Reference(
        of("qwen2_moe", "Qwen2MoeSparseMoeBlock", shared_expert_intermediate_size=SHARED, **FINE),
        {
            **STANDARD,
            **shared("shared_expert"),
            "shared_expert_gate.weight": same("shared_gate.weight"),
        },
    ),
    "qwen3_moe": Reference(of("qwen3_moe", "Qwen3MoeSparseMoeBlock", **FINE), STANDARD),
    "olmoe": Reference(
        of(
            "olmoe",
            "OlmoeSparseMoeBlock",
            num_experts=E,
            num_experts_per_tok=K,
            intermediate_size=I,
        ),
        STANDARD,
    ),
    "deepseek_v2": Reference(
        of(
            "deepseek_v2",
            "DeepseekV2Moe",
            **{**DEEP, "topk_method": "group_limited_greedy", "topk_group": 1},
            n_shared_experts=2,
            num_attention_heads=4,  # of no use here, but it must divide H
        ),
        {**STANDARD, **shared("shared_experts")},
    ),
    "deepseek_v3": Reference(of("deepseek_v3", "DeepseekV3MoE", **DEEP), DEEP_LAYOUT),
    "glm4_moe": Reference(of("glm4_moe", "Glm4MoeMoE", n_shared_experts=2, **DEEP), DEEP_LAYOUT),
    "gpt_oss": Reference(
        of("gpt_oss", "GptOssMLP", swiglu_limit=LIMIT, **LOCAL),
        {
            "router.weight": same("router.weight"),
            "router.bias": same("router.bias"),
            "experts.gate_up_proj": transposed(interleaved("weight")),
            "experts.gate_up_proj_bias": interleaved("bias"),
            "experts.down_proj": transposed(same(DOWN)),
            "experts.down_proj_bias": same("experts.down_proj.bias"),
        },
    ),
    "llama4": Reference(
        of("llama4", "Llama4TextMoe", kind="llama4_text", **LOCAL),
        {
            "router.weight": same("router.weight"),
            "experts.gate_up_proj": transposed(gate_up),
            "experts.down_proj": transposed(same(DOWN)),
            **shared("shared_expert"),
        },
    ),
    "granitemoe": Reference(of("granitemoe", "GraniteMoeMoE", **LOCAL), routed_by("router.weight")),
    "jetmoe": Reference(
        of("jetmoe", "JetMoeMoE", **LOCAL),
        {
            "router.layer.weight": same("router.weight"),
            "input_linear.weight": gate_up,
            "output_linear.weight": same(DOWN),
            "bias": same("output_bias"),
        },
    ),
    "jamba": Reference(
        of(
            "jamba",
            "JambaSparseMoeBlock",
            num_experts=E,
            num_experts_per_tok=K,
            intermediate_size=I,
        ),
        routed_by("router.weight"),
    ),
    "ernie4_5_moe": Reference(
        of(
            "ernie4_5_moe",
            "Ernie4_5_MoeSparseMoeBlock",
            moe_num_experts=E,
            moe_k=K,
            moe_intermediate_size=I,
            moe_num_shared_experts=2,
        ),
        {
            **STANDARD,
            "gate.moe_statics.e_score_correction_bias": lambda ours: ours[BIAS].unsqueeze(0),
            **shared("shared_experts"),
        },
    ),
    "hunyuan_v1_moe": Reference(
        of("hunyuan_v1_moe", "HunYuanMoEV1Moe", 0, num_experts=E, moe_topk=K, intermediate_size=I),
        {**routed_by("gate.wg.weight"), **shared("shared_mlp")},
    ),
    "minimax_m2": Reference(
        of("minimax_m2", "MiniMaxM2SparseMoeBlock", **LOCAL),
        {**STANDARD, **biased("e_score_correction_bias")},
    ),
    "lfm2_moe": Reference(
        of("lfm2_moe", "Lfm2MoeSparseMoeBlock", **FINE), {**STANDARD, **biased("expert_bias")}
    ),
    "nemotron_h": Reference(
        of(
            "nemotron_h",
            "NemotronHMoE",
            moe_latent_size=LATENT,
            moe_shared_expert_intermediate_size=SHARED,
            **DEEP,
        ),
        {
            "gate.weight": same("router.weight"),
            **biased("gate.e_score_correction_bias"),
            "experts.up_proj": same(UP),
            "experts.down_proj": same(DOWN),
            **shared("shared_experts", "up_proj", "down_proj"),
            "fc1_latent_proj.weight": same("latent_down_proj.weight"),
            "fc2_latent_proj.weight": same("latent_up_proj.weight"),
        },
    ),
    "cohere2_moe": Reference(
        of(
            "cohere2_moe",
            "Cohere2MoeSparseMoeBlock",
            num_experts=E,
            num_experts_per_tok=K,
            intermediate_size=I,
            num_shared_experts=2,
        ),
        {**STANDARD, **shared("shared_experts")},
    ),
    "dbrx": Reference(
        dbrx,
        {
            "router.layer.weight": same("router.weight"),
            "experts.mlp.w1": folded(GATE),
            "experts.mlp.v1": folded(UP),
            "experts.mlp.w2": lambda ours: rearrange(ours[DOWN], "e h i -> (e i) h"),
        },
    ),
    "longcat_flash": Reference(
        of(
            "longcat_flash",
            "LongcatFlashMoE",
            n_routed_experts=E - 2,
            zero_expert_num=2,
            moe_topk=K,
            expert_ffn_hidden_size=I,
        ),
        {
            "router.classifier.weight": same("router.weight"),
            **biased("router.e_score_correction_bias"),
            "experts.gate_up_proj": padded,
            "experts.down_proj": same("experts.0.down_proj.weight"),
        },
    ),
    "phimoe": Reference(of("phimoe", "PhimoeSparseMoeBlock", **LOCAL), routed_by("router.weight")),
    # MiniMind is no part of transformers; the blocks that equal its two generations are.
    "minimind": Reference(
        of("qwen3_moe", "Qwen3MoeSparseMoeBlock", norm_topk_prob=True, **FINE), STANDARD
    ),
    "minimind_2025": Reference(
        of("hunyuan_v1_moe", "HunYuanMoEV1Moe", 0, num_experts=E, moe_topk=K, intermediate_size=I),
        {**routed_by("gate.wg.weight"), **shared("shared_mlp")},
    ),
}

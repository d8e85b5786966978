"""FFNs of whole and of block-only families: outputs and gradients of transformers' own blocks."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import save, tiny
from torch import Tensor, nn
from transformers import AutoConfig

from mlpkit.build import build_ffn
from mlpkit.convert import ConversionError, WeightsError, load_block

H, I, E, K = 16, 24, 8, 2  # noqa: E741
LOCAL = {"num_local_experts": E, "num_experts_per_tok": K, "intermediate_size": I}
FINE = {"num_experts": E, "num_experts_per_tok": K, "moe_intermediate_size": I}
DEEP = {"n_routed_experts": E, "num_experts_per_tok": K, "moe_intermediate_size": I}
DEEP |= {"first_k_dense_replace": 0}
# case → family, class of transformers, options
BLOCKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mixtral": ("mixtral", "MixtralSparseMoeBlock", LOCAL),
    "qwen2_moe": (
        "qwen2_moe",
        "Qwen2MoeSparseMoeBlock",
        {**FINE, "shared_expert_intermediate_size": 20, "norm_topk_prob": True},
    ),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeSparseMoeBlock", FINE),
    "olmoe": (
        "olmoe",
        "OlmoeSparseMoeBlock",
        {"num_experts": E, "num_experts_per_tok": K, "intermediate_size": I},
    ),
    "deepseek_v2": (
        "deepseek_v2",
        "DeepseekV2Moe",
        {**DEEP, "n_shared_experts": 2, "routed_scaling_factor": 1.5, "num_attention_heads": 4},
    ),
    "deepseek_v2-groups": (
        "deepseek_v2",
        "DeepseekV2Moe",
        {
            **DEEP,
            "n_group": 4,
            "topk_group": 1,
            "topk_method": "group_limited_greedy",
            "num_attention_heads": 4,
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        "DeepseekV3MoE",
        {**DEEP, "n_group": 4, "topk_group": 2, "n_shared_experts": 2},
    ),
    "glm4_moe": ("glm4_moe", "Glm4MoeMoE", {**DEEP, "n_shared_experts": 1}),
    "gpt_oss": ("gpt_oss", "GptOssMLP", {**LOCAL, "swiglu_limit": 0.5}),
    "llama4": ("llama4", "Llama4TextMoe", {**LOCAL, "num_hidden_layers": 2}),
    "granitemoe": ("granitemoe", "GraniteMoeMoE", LOCAL),
    "llama": (
        "llama",
        "LlamaMLP",
        {"intermediate_size": I, "mlp_bias": True, "num_attention_heads": 4},
    ),
    "arcee": ("arcee", "ArceeMLP", {"intermediate_size": I, "num_attention_heads": 4}),
}


def reference(case: str) -> tuple[nn.Module, Any]:
    """A block with random weights, logits well apart, and its configuration."""
    family, name, options = BLOCKS[case]
    kind = "llama4_text" if family == "llama4" else family
    config = AutoConfig.for_model(kind, hidden_size=H, **options)
    config._experts_implementation = "eager"
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    block = getattr(module, name)(config).eval()
    generator = torch.Generator().manual_seed(3)
    for name, tensor in sorted(block.state_dict().items()):
        scale = 0.1 if "correction_bias" in name else 0.4
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * scale)
    return block, config


def outputs(block: nn.Module) -> tuple[Tensor, Tensor]:
    """The output for random tokens, and the gradient of the input."""
    x = torch.randn(3, 5, H, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y = block(x)
    y = (y[0] if isinstance(y, tuple) else y).view(3, 5, H)
    probe = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    (gradient,) = torch.autograd.grad((y * probe).sum(), x)
    return y, gradient


@pytest.mark.parametrize("case", BLOCKS)
def test_a_block_computes_what_transformers_does(case):
    theirs, config = reference(case)
    component, module = load_block(theirs.state_dict(), BLOCKS[case][0], config=config)
    for found, expected in zip(outputs(module), outputs(theirs), strict=True):
        assert expected.abs().max() > 0.1
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
    again = build_ffn(component, hidden_size=H)
    again.load_state_dict(module.state_dict())
    assert outputs(again.eval())[0].equal(outputs(module)[0])


def test_the_layer_of_a_folder_is_chosen_by_its_number(tmp_path):
    theirs = tiny("qwen3_moe-mixed")
    folder = save(theirs, tmp_path / "hf")
    for layer, name in enumerate(["swiglu", "moe", "swiglu", "moe"]):
        component, module = load_block(folder, "qwen3_moe", layer=layer)
        assert component["name"] == name
        expected = outputs(theirs.model.layers[layer].mlp)[0]
        torch.testing.assert_close(outputs(module)[0], expected, rtol=2e-6, atol=2e-6)
    with pytest.raises(ConversionError, match="layer 4 of 4"):
        load_block(folder, "qwen3_moe", layer=4)


def test_a_multimodal_checkpoint_holds_its_text_model_below_a_name(tmp_path):
    theirs, config = reference("llama4")
    prefix = "language_model.model.layers.1.feed_forward."
    save_file(
        {prefix + name: tensor.contiguous() for name, tensor in theirs.state_dict().items()},
        tmp_path / "model.safetensors",
    )
    values = {"model_type": "llama4", "text_config": config.to_dict()}
    (tmp_path / "config.json").write_text(json.dumps(values))
    _, module = load_block(tmp_path, "llama4", layer=1)
    torch.testing.assert_close(outputs(module)[0], outputs(theirs)[0], rtol=2e-6, atol=2e-6)
    with pytest.raises(WeightsError, match="has no layer 0"):
        load_block(tmp_path, "llama4", layer=0)


def test_a_block_keeps_its_precision_and_its_selection_bias_stays_float32():
    theirs, config = reference("deepseek_v3")
    weights = {
        name: tensor if "correction" in name else tensor.bfloat16()
        for name, tensor in theirs.state_dict().items()
    }
    _, module = load_block(weights, "deepseek_v3", config=config)
    dtypes = {name: tensor.dtype for name, tensor in module.state_dict().items()}
    assert dtypes.pop("router.e_score_correction_bias") == torch.float32
    assert set(dtypes.values()) == {torch.bfloat16}
    assert module.experts.up_proj.weight[:, 0].equal(weights["experts.gate_up_proj"][:, I])


def test_what_is_missing_left_over_or_not_said_is_told():
    theirs, config = reference("gpt_oss")
    weights = dict(theirs.state_dict())
    with pytest.raises(ConversionError, match="give config="):
        load_block(weights, "gpt_oss")
    with pytest.raises(ConversionError, match="is of the family 'gpt_oss', not 'mixtral'"):
        load_block(weights, "mixtral", config=config)
    with pytest.raises(WeightsError, match=r"no place for experts\.extra"):
        load_block({**weights, "experts.extra": weights["router.bias"]}, "gpt_oss", config=config)
    del weights["router.bias"]
    with pytest.raises(WeightsError, match=r"has no router\.bias"):
        load_block(weights, "gpt_oss", config=config)

"""Every preset of a whole MoE block: its own size, its balance, and choosing its parts."""

from __future__ import annotations

import pytest
import torch
from moe_blocks import FAMILIES, B, E, H, K, S, block, build, configuration, run, tokens
from omegaconf import OmegaConf
from torch import nn
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from mlpkit.balance import update_router_bias
from mlpkit.compose import ConfigError
from mlpkit.configs.moe import MoEConfig
from mlpkit.routing import record_routing

NOT_OF_TRANSFORMERS = {"minimind", "minimind_2025"}
# Presets whose E and K are those of transformers' default configuration: its names for them.
DEFAULT_COUNTS = {
    **dict.fromkeys(
        ("mixtral", "gpt_oss", "granitemoe", "jetmoe", "minimax_m2", "phimoe"),
        ("num_local_experts", "num_experts_per_tok"),
    ),
    **dict.fromkeys(
        ("qwen2_moe", "qwen3_moe", "olmoe", "jamba", "lfm2_moe", "cohere2_moe"),
        ("num_experts", "num_experts_per_tok"),
    ),
    **dict.fromkeys(
        ("deepseek_v3", "glm4_moe", "nemotron_h"), ("n_routed_experts", "num_experts_per_tok")
    ),
    "llama4_text": ("num_local_experts", "num_experts_per_tok"),
    "ernie4_5_moe": ("moe_num_experts", "moe_k"),
}


def test_every_preset_but_minimind_s_is_a_model_type_of_transformers():
    assert {f for f in FAMILIES if f not in CONFIG_MAPPING_NAMES} == NOT_OF_TRANSFORMERS


@pytest.mark.parametrize("family", FAMILIES)
def test_a_preset_composes_and_builds_at_its_own_size(family):
    config = configuration(f"ffn={family}")
    with torch.device("meta"):
        moe = build(f"ffn={family}", hidden_size=config.model.hidden_size)
        x = torch.empty(2, config.model.hidden_size)
    assert moe.router.num_experts == moe.experts.num_experts == config.ffn.num_experts
    assert all(p.is_meta for p in moe.parameters())
    assert moe.router(x).weight.shape == (2 * config.ffn.num_experts_per_tok,)


@pytest.mark.parametrize("kind", DEFAULT_COUNTS)
def test_a_preset_has_as_many_experts_as_transformers_default(kind):
    reference = AutoConfig.for_model(kind)
    ffn = configuration(f"ffn={kind.removesuffix('_text')}").ffn
    found = (ffn.num_experts, ffn.num_experts_per_tok)
    assert found == tuple(getattr(reference, name) for name in DEFAULT_COUNTS[kind])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_router_with_a_selection_bias_has_the_rule_that_moves_it(family):
    ffn = configuration(f"ffn={family}").ffn
    assert ffn.router.get("selection_bias", False) == ("selection_bias" in ffn.balance)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_balance_of_a_preset_trains_its_router(family):
    moe = block(family, torch.float32).train()
    with record_routing(moe) as record:
        moe(tokens(torch.float32))
        losses = record.losses()
        before = {name: tensor.clone() for name, tensor in moe.named_buffers()}
        update_router_bias(moe, record)
    assert set(losses) == {n for n in moe.balance if n != "selection_bias"}
    for loss in losses.values():
        (gradient,) = torch.autograd.grad(loss, moe.router.weight, retain_graph=True)
        assert gradient.abs().max() > 0
    assert all((tensor != before[name]).any() for name, tensor in moe.named_buffers())


def two_layers(family: str) -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Two layers after each other, and each one's choices (B, S, E) and logits (B, S, E)."""
    model = nn.Sequential(block(family, torch.float64), block(family, torch.float64)).train()
    model[1].router.weight.data.mul_(-0.5)  # or both layers would choose alike
    seen, x = [], tokens(torch.float64)
    for layer in model:
        logits = x @ layer.router.weight.T
        expert = layer.router(x.reshape(-1, H)).expert.view(B, S, K)
        seen.append((nn.functional.one_hot(expert, E).sum(2).double(), logits))
        x = layer(x)
    return model, seen


def losses_of(model: nn.Module) -> dict[str, float]:
    with record_routing(model) as record:
        model(tokens(torch.float64))
        return {name: loss.item() for name, loss in record.losses().items()}


def test_minimind_adds_its_load_over_layers_with_its_coefficient():
    model, seen = two_layers("minimind")
    expected = 0.0
    for chosen, logits in seen:
        share = chosen.sum((0, 1)) / (B * S)
        expected += 5e-4 * E * (share * logits.softmax(-1).mean((0, 1))).sum().item()
    assert losses_of(model) == pytest.approx({"load_minimind": expected}, rel=1e-10)


@pytest.mark.parametrize(
    ("family", "coefficient"),
    [("minimind_2025", 0.01), ("deepseek_v2", 0.003), ("deepseek_v3", 1e-4), ("glm4_moe", 1e-4)],
)
def test_a_sequence_s_load_is_its_own_and_layers_are_added(family, coefficient):
    model, seen = two_layers(family)
    expected = 0.0
    for chosen, logits in seen:
        score = (
            logits.softmax(-1) if family in ("minimind_2025", "deepseek_v2") else logits.sigmoid()
        )
        score = score / score.sum(-1, keepdim=True)
        for b in range(B):
            over = chosen[b].sum(0) / (S * K / E)
            expected += coefficient * (over * score[b].mean(0)).sum().item() / B
    assert losses_of(model) == pytest.approx({"load": expected}, rel=1e-10)


def router_gradient(*more: str) -> float:
    moe = block("minimind", torch.float64, "ffn.num_experts_per_tok=1", *more)
    _, found = run(moe, tokens(torch.float64))
    return found["router.weight"].abs().max().item()


def test_minimind_lets_its_trap_pass_and_the_task_gives_its_router_no_gradient():
    config = configuration("ffn=minimind")
    assert list(config.lint.allow) == ["top1-normalised"]
    with pytest.raises(ConfigError, match="the task gives the router no gradient"):
        configuration("ffn=minimind", "lint.allow=[]")
    assert (config.ffn.num_experts, config.ffn.num_experts_per_tok) == (4, 1)
    assert router_gradient() < 1e-12
    assert router_gradient("ffn.router.norm_topk_prob=false") > 1e-2


def test_minimind_s_experts_are_as_wide_as_its_dense_ffn():
    # ⌈π·768 / 64⌉·64 of 2026, and 8/3·768 of 2025
    for family, width in (("minimind", 2432), ("minimind_2025", 2048)):
        with torch.device("meta"):
            moe = build(f"ffn={family}", hidden_size=768)
        assert moe.experts.up_proj.weight.shape == (4, width, 768)
    assert moe.shared.up_proj.weight.shape == (2048, 768)


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3", "minimind"])
def test_the_parts_of_a_preset_are_chosen_as_those_of_moe(family):
    ffn = configuration(
        f"ffn={family}", "ffn/router=qwen3_moe", "ffn/expert=naive", "ffn/balance=[z,entropy]"
    ).ffn
    assert ffn.router.selection_bias is False
    assert ffn.router.norm_topk_prob is False
    assert ffn.expert.name == "naive"
    assert dict(ffn.balance) == {"z": 0.001, "entropy": 0.001}
    assert dict(configuration(f"ffn={family}", "ffn/balance=null").ffn.balance) == {}


def test_balance_terms_are_chosen_by_name_one_or_several_or_none():
    def balance(choice: str) -> dict:
        return OmegaConf.to_container(configuration("ffn=moe", f"ffn/balance={choice}").ffn.balance)

    assert OmegaConf.to_container(configuration("ffn=moe").ffn.balance) == MoEConfig().balance
    assert balance("load_hf") == {"load_hf": 0.001}
    assert balance("[load_minimind,z]") == {"load_minimind": 5e-4, "z": 0.001}
    assert balance("null") == {}
    with pytest.raises(ConfigError, match="did you mean 'load_hf'"):
        balance("load_h")

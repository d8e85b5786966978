"""Every preset of a whole MoE block against transformers' block and a float64 oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from moe_blocks import (
    FAMILIES,
    SHARED_WIDTH,
    E,
    H,
    K,
    assert_equal,
    block,
    gradients,
    run,
    small,
    tokens,
)
from moe_oracle import COMBINES, oracle
from moe_references import REFERENCES
from test_router_presets import ORACLES

# The blocks of transformers that compute float64 in float64; the others route in float32.
EXACT = ("dbrx", "gpt_oss", "lfm2_moe", "phimoe")


def test_every_preset_has_a_reference_an_oracle_and_a_router_preset_of_its_name():
    assert set(FAMILIES) == set(REFERENCES) == set(ORACLES)
    assert set(COMBINES) == set(SHARED_WIDTH)


def compare(
    family: str, dtype: torch.dtype, tolerance: float, *changes: str, **options: Any
) -> None:
    moe, reference = block(family, dtype, *changes), REFERENCES[family]
    theirs = reference.load(dict(moe.state_dict()), **options)
    (y, ours), (expected, wanted) = run(moe, tokens(dtype)), run(theirs, tokens(dtype))
    assert_equal(y, expected, tolerance)
    assert_equal(ours["x"], wanted.pop("x"), tolerance)
    assert_equal(reference.lay_out(ours, wanted), wanted, tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_preset_computes_what_transformers_does(family):
    compare(family, torch.float32, 1e-6)


@pytest.mark.parametrize("family", EXACT)
def test_a_preset_computes_in_float64_what_transformers_does(family):
    compare(family, torch.float64, 1e-10)


# What checkpoints of a family may set otherwise: our changes, and transformers' options.
VARIANTS: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("qwen2_moe", ("router.norm_topk_prob=true",), {"norm_topk_prob": True}),
    (
        "deepseek_v2",
        ("router.n_group=1", "router.routed_scaling_factor=2"),
        {"topk_method": "greedy", "routed_scaling_factor": 2.0},
    ),
    ("deepseek_v3", ("router.norm_topk_prob=false",), {"norm_topk_prob": False}),
    ("glm4_moe", ("router.routed_scaling_factor=2.5",), {"routed_scaling_factor": 2.5}),
    ("ernie4_5_moe", ("router.norm_min=0.6",), {"moe_norm_min": 0.6}),
    (
        "lfm2_moe",
        ("router.norm_topk_prob=false", "router.routed_scaling_factor=1.5"),
        {"norm_topk_prob": False, "routed_scaling_factor": 1.5},
    ),
    ("cohere2_moe", ("shared_combine=sum",), {"shared_expert_combination_strategy": "sum"}),
    ("cohere2_moe", ("router.score=sigmoid",), {"expert_selection_fn": "sigmoid"}),
    ("dbrx", ("router.norm_p=2",), {"moe_normalize_expert_weights": 2.0}),
    ("phimoe", ("router.jitter=0.3",), {"router_jitter_noise": 0.3}),
    ("gpt_oss", ("expert.alpha=1", "expert.limit=0.2"), {"swiglu_alpha": 1.0, "swiglu_limit": 0.2}),
    ("granitemoe", ("expert.activation=gelu",), {"hidden_act": "gelu"}),
]


@pytest.mark.parametrize(("family", "changes", "options"), VARIANTS)
def test_a_checkpoint_s_other_option_is_an_override_of_the_preset(family, changes, options):
    compare(family, torch.float32, 1e-6, *(f"ffn.{change}" for change in changes), **options)
    with pytest.raises(AssertionError):
        compare(family, torch.float32, 1e-6, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_preset_is_its_formula_in_float64(family):
    moe, x, y = block(family, torch.float64), tokens(torch.float64), tokens(torch.float64)
    assert (moe.shared is not None) == (family in COMBINES)
    ours, found = run(moe, x)
    expected = oracle(family, {**dict(moe.named_parameters()), **dict(moe.named_buffers())}, y)
    assert_equal(ours, expected, 1e-10)
    wanted = gradients(expected, {"x": y, **dict(moe.named_parameters())})
    assert_equal(found, wanted, 1e-10)


# Options of the blocks above whose other value must give another output.
OPTIONS = {
    **dict.fromkeys(
        ("deepseek_v3", "glm4_moe", "nemotron_h"),
        ("ffn.router.topk_group=4", "ffn.router.norm_topk_prob=false"),
    ),
    "deepseek_v2": ("ffn.router.topk_group=4", "ffn.router.norm_topk_prob=true"),
    "qwen2_moe": ("ffn.shared_combine=average", "ffn.router.norm_topk_prob=true"),
    "cohere2_moe": ("ffn.shared_combine=sum",),
    "gpt_oss": ("ffn.expert.limit=7", "ffn.expert.alpha=1", "ffn.expert.up_offset=0"),
    "llama4": ("ffn.router.apply_on=output", "ffn.router.score=softmax"),
    "longcat_flash": ("ffn.router.routed_scaling_factor=1", "ffn.router.norm_topk_prob=true"),
    "phimoe": ("ffn.router.jitter=0",),
}


@pytest.mark.parametrize(
    ("family", "change"), [(family, change) for family in OPTIONS for change in OPTIONS[family]]
)
def test_an_option_of_a_preset_shows_in_the_compared_output(family, change):
    """Or the comparisons above would hold without it."""
    y, other = (
        block(family, torch.float32, *more)(tokens(torch.float32)) for more in ((), (change,))
    )
    assert (y - other).abs().max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_biases_show_in_the_compared_output_and_every_expert_is_used(family):
    moe, x = block(family, torch.float32), tokens(torch.float32)
    y = moe(x)
    assert len(set(moe.router(x.reshape(-1, H)).expert.tolist())) == E
    for name, tensor in moe.state_dict().items():
        if "bias" in name:
            kept = tensor.clone()
            tensor.zero_()
            assert (moe(x) - y).abs().max() > 1e-3, name
            tensor.copy_(kept)


def test_small_blocks_have_the_sizes_of_the_oracles():
    assert (E, K) == (8, 2)
    assert {f for f in FAMILIES if "ffn.router.n_group=4" in small(f)} == {
        "deepseek_v2",
        "deepseek_v3",
        "glm4_moe",
        "nemotron_h",
    }

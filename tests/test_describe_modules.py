"""Any module in numbers: counted against torch and by hand, shared parameters once."""

import json

import torch
from torch import nn

import mlpkit


def test_a_moe_has_the_parameters_of_its_parts_and_k_of_e_experts_active():
    moe = mlpkit.build_ffn(
        "moe",
        hidden_size=8,
        num_experts=4,
        num_experts_per_tok=1,
        router={"name": "topk", "norm_topk_prob": False},
        expert={"name": "swiglu", "intermediate_size": 16},
        shared={"name": "naive", "intermediate_size": 4},
    )
    found = mlpkit.describe(moe)
    one, shared, router = 3 * 8 * 16, 2 * 8 * 4, 4 * 8
    assert found.parameters == 4 * one + shared + router
    assert found.active_parameters == one + shared + router
    assert {part.name: part.parameters for part in found.parts} == {
        "router": router,
        "experts": 4 * one,
        "shared": shared,
    }


def test_a_decoder_counts_as_its_configuration_does():
    overrides = ["ffn=moe", "model.hidden_size=16", "model.num_layers=3"]
    model = mlpkit.build_model(overrides)
    found, wanted = mlpkit.describe(model), mlpkit.describe(overrides)
    assert found.parameters == wanted.parameters == sum(p.numel() for p in model.parameters())
    assert found.active_parameters == wanted.active_parameters
    text = str(found)
    assert "0-2 ×3  Block" in text
    assert f"{found.active_parameters:,}" in text.splitlines()[-1]


def test_experts_of_several_types_are_active_by_their_share():
    types = [{"name": "swiglu", "intermediate_size": 8, "num_experts": 3}]
    types += [{"name": "naive", "intermediate_size": 8, "num_experts": 1}]
    moe = mlpkit.build_ffn(
        "moe", hidden_size=8, experts=types, num_experts=4, num_experts_per_tok=2, router="topk"
    )
    found = mlpkit.describe(moe)
    assert found.active_parameters == 4 * 8 + (3 * 3 * 64 + 2 * 64) * 2 // 4


def test_a_shared_parameter_counts_once_and_a_strangers_module_is_described():
    model = nn.ModuleDict({"a": nn.Linear(4, 5), "b": nn.Linear(4, 5), "none": nn.ReLU()})
    model.b.weight = model.a.weight
    found = mlpkit.describe(model)
    assert found.parameters == found.active_parameters == 4 * 5 + 5 + 5
    assert [part.name for part in found.parts] == ["a", "b"]
    assert "active" not in str(found)
    assert json.loads(json.dumps(found.as_dict()))["parts"][0]["detail"] == "Linear, weight 5×4"


def test_it_needs_no_storage():
    with torch.device("meta"):
        ffn = mlpkit.build_ffn("swiglu", hidden_size=8, intermediate_size=16)
    assert mlpkit.describe(ffn).parameters == 3 * 8 * 16

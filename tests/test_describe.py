"""What is shown of a model equals what is built and what torch counts."""

import json

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mlpkit import plugins
from mlpkit.build import build_model
from mlpkit.compose import ConfigError, compose
from mlpkit.describe import count_flops, count_parameters, describe, ffn_flops
from mlpkit.registry import Provider
from mlpkit.specs import FFNSpec

SMALL = ["model.hidden_size=16", "model.num_layers=3", "training.sequence_length=12"]
VARIANTS = [
    [],
    ["ffn=naive"],
    ["ffn=gated", "activation=gelu", "ffn.bias=true"],
    ["ffn=naive", "ffn.bias=true", "ffn.intermediate_size=10"],
    ["model.tie_word_embeddings=false"],
    ["model.qk_norm=true", "model.head_dim=6", "model.num_key_value_heads=1"],
    ["model.num_layers=1"],
]
by_variant = pytest.mark.parametrize("overrides", VARIANTS, ids=lambda v: " ".join(v) or "default")


class Twice(nn.Module):
    """A stranger's FFN that says nothing of its size."""

    def __init__(self, *, hidden_size, rank: int = 3):
        super().__init__()
        self.first = nn.Linear(hidden_size, rank)
        self.second = nn.Linear(rank, hidden_size, bias=False)

    def forward(self, x):
        return self.second(self.first(x).relu()) + self.second(self.first(x))


@pytest.fixture
def stranger(monkeypatch):
    loaded = plugins.load()
    loaded.registries.ffn.add([FFNSpec(name="twice", target=Twice)], Provider("test"))
    monkeypatch.setattr(plugins, "load_once", lambda: loaded)


def part(description, name):
    (found,) = [p for p in description.parts if p.name == name]
    return found


@by_variant
def test_parameters_are_those_of_the_built_model(overrides):
    description = describe([*SMALL, *overrides])
    model = build_model([*SMALL, *overrides])
    assert description.parameters == sum(p.numel() for p in model.parameters())
    assert description.parameters == sum(p.parameters * p.count for p in description.parts)
    block = model.layers[0]
    for name in ("self_attn", "ffn"):
        counted = sum(p.numel() for p in getattr(block, name).parameters())
        assert part(description, name).parameters == counted


@by_variant
def test_flops_are_those_that_torch_counts(overrides):
    config = compose([*SMALL, *overrides])
    tokens = torch.zeros(2, config.training.sequence_length, dtype=torch.long)
    # the counter knows no fused attention and would count 0
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        build_model(config)(tokens)
    description = describe(config)
    assert description.flops_per_token * tokens.numel() == counter.get_total_flops()
    assert description.flops_per_token == sum(p.flops * p.count for p in description.parts)
    assert description.training_flops_per_token == 3 * description.flops_per_token


@pytest.mark.usefixtures("stranger")
def test_an_ffn_that_gives_no_formulas_is_counted():
    overrides = [*SMALL, "ffn=twice", "ffn.rank=5"]
    description = describe(overrides)
    ffn = part(description, "ffn")
    assert ffn.parameters == 16 * 5 + 5 + 5 * 16
    assert ffn.flops == 2 * 2 * 2 * 16 * 5  # each matrix is used twice
    assert ffn.detail == description.ffn == "twice"
    model = build_model(overrides)
    assert ffn_flops(compose(overrides), model.layers[0].ffn) == ffn.flops
    assert count_flops(Twice(hidden_size=4), 4) == 2 * 2 * 2 * 4 * 3


def test_counting_leaves_the_module_where_it_was_and_counts_a_shared_tensor_once():
    module = Twice(hidden_size=4)
    count_flops(module, 4)
    assert {p.device.type for p in module.parameters()} == {"cpu"}
    assert count_parameters([module, module, module.first]) == 4 * 3 + 3 + 3 * 4


def test_a_naive_ffn_is_8_h_squared_and_a_gated_one_3_h_m():
    naive = part(describe(["ffn=naive"]), "ffn")
    gated = part(describe(["ffn=gated", "ffn.intermediate_size=100"]), "ffn")
    assert (naive.parameters, naive.flops) == (8 * 128**2, 2 * 8 * 128**2)
    assert (gated.parameters, gated.flops) == (3 * 128 * 100, 2 * 3 * 128 * 100)
    assert naive.detail == "naive, 2·H·I = 2·128·512"
    assert gated.detail == "gated, 3·H·I = 3·128·100"


def test_json_comes_back_as_it_went():
    description = describe(SMALL)
    facts = description.as_dict()
    back = json.loads(json.dumps(facts))
    assert back == json.loads(json.dumps(back))
    assert back["parameters"] == description.parameters
    assert back["training_flops_per_token"] == 3 * back["flops_per_token"]
    assert back["parts"][0] == {
        "name": "embed_tokens",
        "depth": 1,
        "count": 1,
        "detail": "V×H = 257×16, also the head",
        "parameters": 257 * 16,
        "flops": 2 * 257 * 16,
    }


def test_the_text_shows_every_part_its_numbers_and_the_totals():
    description = describe([*SMALL, "model.tie_word_embeddings=false"])
    lines = str(description).splitlines()
    for found in description.parts:
        (line,) = [text for text in lines if f"─ {found.name}" in text]
        assert not found.parameters or f" {found.parameters:,}" in line
        assert not found.flops or line.endswith(f" {found.flops:,}")
    assert f" {description.parameters:,} " in lines[-2]
    assert lines[-2].endswith(f" {description.flops_per_token:,}")
    assert "sequence length 12" in lines[-1]
    assert "layers ×3" in str(description)


@pytest.mark.parametrize(
    ("overrides", "label", "note"),
    [
        ([], "swiglu", ""),
        (["activation=gelu"], "gated[gelu]", "ffn=swiglu is gated[gelu] here"),
        (["ffn=gated", "activation=silu"], "swiglu", "ffn=gated is swiglu here"),
        (["ffn=naive", "activation=gelu"], "naive[gelu]", ""),
    ],
)
def test_what_is_called_otherwise_than_it_is_has_a_note(overrides, label, note):
    description = describe([*SMALL, *overrides])
    assert (description.ffn, description.note) == (label, note)
    assert str(description).endswith(f"note: {note}") == bool(note)


def test_nothing_is_stored_and_a_built_model_gives_the_same_numbers():
    overrides = ["model.hidden_size=65536", "model.num_layers=2"]  # 170 GB if it had storage
    assert describe(overrides).parameters > 4e10
    model = build_model(SMALL)
    assert describe(compose(SMALL), model) == describe(SMALL)


def test_a_wrong_configuration_is_refused():
    with pytest.raises(ConfigError, match="unknown ffn 'swigul'"):
        describe(["ffn=swigul"])

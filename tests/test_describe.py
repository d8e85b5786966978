"""What is shown of a model equals what is built and what torch counts."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mlpkit import plugins
from mlpkit.build import build_model
from mlpkit.cli import main
from mlpkit.compose import ConfigError, compose, conf_dir
from mlpkit.describe import describe, side_by_side
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
    ["ffn=moe", "ffn.backend=loop"],
    [
        *("ffn=moe", "ffn.num_experts=4", "ffn/shared=naive", "ffn.shared_combine=gated"),
        *("ffn.latent_size=8", "ffn.backend=loop", "ffn/router=sparsemixer"),
    ],
]
TYPES = "ffn.experts=[{name:swiglu,intermediate_size:16,num_experts:6},{name:zero,num_experts:2}]"
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
    loaded.registries.ffn.add([FFNSpec(name="twice", target=Twice, width="rank")], Provider("test"))
    monkeypatch.setattr(plugins, "load_once", lambda: loaded)


def part(description, *path):
    parts = description.parts
    for name in path:
        (found,) = [p for p in parts if p.name == name]
        parts = found.parts
    return found


@by_variant
def test_parameters_are_those_of_the_built_model(overrides):
    description = describe([*SMALL, *overrides])
    model = build_model([*SMALL, *overrides])
    assert description.parameters == sum(p.numel() for p in model.parameters())
    assert description.parameters == sum(p.parameters for p in description.parts)
    block = model.layers[0]
    for name in ("self_attn", "ffn"):
        counted = sum(p.numel() for p in getattr(block, name).parameters())
        assert part(description, "layers", name).parameters == counted


@by_variant
def test_a_part_has_the_numbers_of_its_own_parts(overrides):
    layers = part(describe([*SMALL, *overrides]), "layers")
    for whole in (layers, *(p for p in layers.parts if p.parts)):
        for number in ("parameters", "active_parameters", "flops"):
            assert getattr(whole, number) == whole.count * sum(
                getattr(p, number) for p in whole.parts
            )


@by_variant
def test_flops_are_those_that_torch_counts(overrides):
    config = compose([*SMALL, *overrides])
    tokens = torch.zeros(2, config.training.sequence_length, dtype=torch.long)
    # the counter knows no fused attention and would count 0
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        build_model(config)(tokens)
    description = describe(config)
    assert description.flops_per_token * tokens.numel() == counter.get_total_flops()
    assert description.flops_per_token == sum(p.flops for p in description.parts)
    assert description.training_flops_per_token == 3 * description.flops_per_token
    per_step = config.training.batch_size * 12 * description.training_flops_per_token
    assert description.training_flops_per_step == per_step
    assert description.flops_range == (description.flops_per_token,) * 2
    assert description.active_range == (description.active_parameters,) * 2


@pytest.mark.usefixtures("stranger")
def test_an_ffn_that_gives_no_formulas_is_counted_and_its_matrices_are_shown():
    description = describe([*SMALL, "ffn=twice", "ffn.rank=5"])
    ffn = part(description, "layers", "ffn")
    assert ffn.parameters == ffn.active_parameters == 16 * 5 + 5 + 5 * 16
    assert ffn.flops == 2 * 2 * 2 * 16 * 5  # each matrix is used twice
    assert description.ffn == "twice"
    assert ffn.detail == "twice, first 5×16, second 16×5"
    assert ffn.width == "rank = 5, as given"


def test_a_naive_ffn_is_8_h_squared_and_a_gated_one_3_h_m():
    naive = part(describe(["ffn=naive"]), "layers", "ffn")
    gated = part(describe(["ffn=gated", "ffn.intermediate_size=100"]), "layers", "ffn")
    assert (naive.parameters, naive.flops) == (8 * 128**2, 2 * 8 * 128**2)
    assert (gated.parameters, gated.flops) == (3 * 128 * 100, 2 * 3 * 128 * 100)
    assert naive.detail == "naive, 2·H·I = 2·128·512 = 131,072"
    assert gated.detail == "gated, 3·H·I = 3·128·100 = 38,400"


@pytest.mark.parametrize(
    ("hidden_size", "overrides", "detail", "width"),
    [
        (512, [], "3·H·I = 3·512·1408 = 2,162,688", "8/3·512 = 1365.33 ↑64 → 1408"),
        (768, [], "3·H·I = 3·768·2048 = 4,718,592", "8/3·768 = 2048"),
        (
            *(768, ["ffn.intermediate_size=pi"]),
            *("3·H·I = 3·768·2432 = 5,603,328", "π·768 = 2412.74 ↑64 → 2432"),
        ),
        (768, ["ffn=naive"], "2·H·I = 2·768·3072 = 4,718,592", "4·768 = 3072"),
        (
            *(768, ["ffn.intermediate_size=llama:1.3:256"]),
            "3·H·I = 3·768·2816 = 6,488,064",
            "⌊8/3·768⌋ = 2048, ⌊1.3·2048⌋ = 2662 ↑256 → 2816",
        ),
        (768, ["ffn.intermediate_size=10"], "3·H·I = 3·768·10 = 23,040", "10, as given"),
    ],
)
def test_the_formula_and_the_width_rule_are_shown_with_numbers(
    hidden_size, overrides, detail, width
):
    size = [f"model.hidden_size={hidden_size}", "model.num_layers=1"]
    description = describe([*size, *overrides])
    ffn = part(description, "layers", "ffn")
    assert ffn.detail.partition(", ")[2] == detail
    assert ffn.width == description.width == width
    assert detail in str(description)
    assert f"width {width}" in str(description)


def test_a_moe_shows_its_parts_its_backend_and_the_width_of_its_experts():
    overrides = ["ffn=moe", "ffn/shared=swiglu", "ffn.backend=loop", "model.hidden_size=512"]
    description = describe(overrides)
    assert description.ffn == "moe[8×swiglu, top 2, shared swiglu]"
    details = {p.name: (p.count, p.detail) for p in part(description, "layers", "ffn").parts}
    assert details == {
        "router": (1, "topk, E×H = 8×512, 2 of 8"),
        "experts": (8, "swiglu, 3·H·I = 3·512·704 = 1,081,344"),
        "combine": (1, "2·K·H = 2·2·512"),
        "shared": (1, "swiglu, 3·H·I = 3·512·704 = 1,081,344"),
    }
    experts = part(description, "layers", "ffn", "experts")
    assert experts.width == "8/3·512 = 1365.33 ↑64 → 1408, 1408/2 = 704"
    assert experts.parameters == 8 * 1_081_344
    assert experts.active_parameters == 2 * 1_081_344
    text = str(description)
    assert f"{description.active_parameters:,}" in text
    assert "experts  loop, at 1,024 rows an expert on a CPU" in text
    assert "range" not in text


def test_a_backend_that_cannot_run_the_experts_says_why():
    overrides = [*SMALL, "ffn=moe", "ffn/expert=zero"]
    assert describe(overrides).backend.startswith("loop, at ")
    assert "; grouped: the witness raised" in describe(overrides).backend
    assert describe(SMALL).backend == ""


def test_experts_of_several_types_have_a_range():
    description = describe([*SMALL, "ffn=moe", TYPES])
    ffn = 2 * 3 * 16 * 16
    router, combine = 2 * 8 * 16, 2 * 2 * 16
    attention = part(description, "layers", "self_attn").flops
    head = 2 * 257 * 16
    base = head + 3 * (attention + router + combine)
    assert description.ffn == "moe[6×swiglu + 2×zero, top 2]"
    assert description.flops_range == (base, base + 3 * 2 * ffn)
    assert description.flops_per_token == base + 3 * 2 * 6 * ffn // 8
    all_used = description.parameters - 3 * 4 * 3 * 16 * 16  # four of six are idle
    assert description.active_range == (all_used - 3 * 2 * 3 * 16 * 16, all_used)
    low, high = description.flops_range
    assert f"a token uses {low:,} to {high:,} forward FLOPs" in str(description)


def test_json_comes_back_as_it_went():
    description = describe(SMALL)
    facts = description.as_dict()
    back = json.loads(json.dumps(facts))
    assert back == json.loads(json.dumps(back))
    assert back["parameters"] == description.parameters
    assert back["training_flops_per_token"] == 3 * back["flops_per_token"]
    assert back["memory"]["total"] == description.memory.total
    assert back["parts"][0] == {
        "name": "embed_tokens",
        "count": 1,
        "detail": "V×H = 257×16, also the head",
        "width": "",
        "parameters": 257 * 16,
        "active_parameters": 257 * 16,
        "flops": 2 * 257 * 16,
        "parts": [],
    }
    (ffn,) = [p for p in back["parts"][1]["parts"] if p["name"] == "ffn"]
    assert ffn["width"] == "8/3·16 = 42.67 ↑64 → 64"


def every(parts):
    for found in parts:
        yield found
        yield from every(found.parts)


@pytest.mark.parametrize("overrides", [[], ["ffn=moe"]], ids=["dense", "moe"])
def test_the_text_shows_every_part_its_numbers_and_the_totals(overrides):
    description = describe([*SMALL, "model.tie_word_embeddings=false", *overrides])
    lines = str(description).splitlines()
    for found in every(description.parts):
        (line,) = [text for text in lines if f"─ {found.name}" in text and found.detail in text]
        assert not found.parameters or f" {found.parameters:,}" in line
        assert not found.flops or line.endswith(f" {found.flops:,}")
        assert not overrides or not found.parameters or f" {found.active_parameters:,}" in line
    (total,) = [text for text in lines if text.startswith("total")]
    assert f" {description.parameters:,} " in total
    assert total.endswith(f" {description.flops_per_token:,}")
    assert (" active " in lines[0]) == bool(overrides)
    assert "sequence length 12" in str(description)
    assert "layers ×3" in str(description)


def test_models_side_by_side_have_a_column_each():
    variants = (["ffn=naive"], ["ffn=swiglu"], ["ffn=moe"], ["ffn=gated", "activation=silu"])
    found = [describe([*SMALL, *v]) for v in variants]
    rows = side_by_side(found, ["a", "b", "c", "d"]).splitlines()
    table = {line.partition("  ")[0]: line for line in rows}
    assert rows[0].split() == ["a", "b", "c", "d"]
    assert table["ffn"].split("  ")[-1].strip() == "swiglu"
    assert "2·H·I = 2·16·64 = 2,048" in table["formula"]
    assert "8/3·16 = 42.67 ↑64 → 64, 64/2 = 32 ↑64 → 64" in table["width"]
    for description in found:
        assert f"{description.parameters:,}" in table["parameters"]
        assert f"{description.active_parameters:,}" in table["active parameters"]
        assert f"{description.flops_per_token:,}" in table["forward FLOPs/token"]
    assert table["FFN parameters"].split()[2:5] == ["6,144", "9,216", "(×1.5)"]
    assert rows[-1] == "note: ffn=gated is swiglu here"


@pytest.mark.parametrize(
    ("overrides", "label", "note"),
    [
        ([], "swiglu", ""),
        (["activation=gelu"], "gated[gelu]", "ffn=swiglu is gated[gelu] here"),
        (["ffn=gated", "activation=silu"], "swiglu", "ffn=gated is swiglu here"),
        (["ffn=naive", "activation=gelu"], "naive[gelu]", ""),
        (["ffn=moe", "activation=gelu"], "moe[8×gated[gelu], top 2]", ""),
        (["ffn=moe", "ffn/router=sparsemixer"], "moe[8×swiglu, top 2, router sparsemixer]", ""),
    ],
)
def test_what_is_called_otherwise_than_it_is_has_a_note(overrides, label, note):
    description = describe([*SMALL, *overrides])
    assert (description.ffn, description.note) == (label, note)
    assert str(description).endswith(f"note: {note}") == bool(note)


def test_nothing_is_stored_and_a_built_model_gives_the_same_numbers():
    overrides = ["model.hidden_size=65536", "model.num_layers=2"]  # 170 GB if it had storage
    assert describe(overrides).parameters > 4e10
    assert describe([*overrides, "ffn=moe"]).parameters > 1e11
    model = build_model(SMALL)
    assert describe(compose(SMALL), model) == describe(SMALL)


def test_a_wrong_configuration_is_refused():
    with pytest.raises(ConfigError, match="unknown ffn 'swigul'"):
        describe(["ffn=swigul"])


def test_the_command_line_shows_one_model_or_several_side_by_side(capsys):
    assert main(["describe", *SMALL, "ffn=naive"]) == 0
    assert capsys.readouterr().out == f"{describe([*SMALL, 'ffn=naive'])}\n"
    assert main(["describe", *SMALL, "ffn=naive,moe"]) == 0
    found = [describe([*SMALL, f"ffn={ffn}"]) for ffn in ("naive", "moe")]
    assert capsys.readouterr().out == side_by_side(found, ["ffn=naive", "ffn=moe"]) + "\n"
    assert main(["describe", *SMALL, "ffn=naive,moe", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [f["overrides"][-1] for f in facts] == ["ffn=naive", "ffn=moe"]
    assert [f["parameters"] for f in facts] == [d.parameters for d in found]


PRESETS = sorted(path.stem for path in Path(conf_dir(), "ffn").glob("*.yaml"))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_described_with_the_parameters_that_are_built(name):
    overrides = [f"ffn={name}", "model.num_layers=1", "model.hidden_size=32"]
    description = describe(overrides)
    with torch.device("meta"):
        model = build_model(compose(overrides))
    assert description.parameters == sum(p.numel() for p in model.parameters())
    assert f"{description.parameters:,}" in str(description)

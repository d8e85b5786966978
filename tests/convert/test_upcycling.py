"""Upcycling: the mixture computes what the dense model did, and where not, the receipt says why."""

import copy
import json
import math
from functools import cache

import pytest
import torch
import yaml
from torch import nn

import mlpkit
from mlpkit.build import build_ffn, build_model
from mlpkit.cli import main
from mlpkit.compose import ConfigError, compose
from mlpkit.convert.upcycling import UpcycleError, configs, upcycle_model
from mlpkit.convert.upcycling.filling import Cut, weight_sums
from mlpkit.convert.upcycling.parts import Piece, bias_shares, cut
from mlpkit.data import ByteTokenizer
from mlpkit.plugins import registries
from mlpkit.training import load_run, train

SMALL = ["model.hidden_size=8", "model.num_layers=2"]
SMALL += ["model.num_attention_heads=2", "model.num_key_value_heads=1"]
WIDE = "ffn.intermediate_size=12"
FOUR = ["ffn.num_experts=4"]
DENSE = ("naive", "gated", "bilinear", "reglu", "geglu", "swiglu", "clamped_gated")
DENSE += ("output_gated", "low_rank")


@cache
def _composed(*overrides):
    return compose(overrides)


def composed(overrides):
    """A configuration; most are asked for often, and composing takes longest."""
    return copy.deepcopy(_composed(*overrides))


@pytest.fixture(autouse=True)
def _compose_once(monkeypatch):
    monkeypatch.setattr(configs, "compose", composed)


def dense(*overrides, spread=0.05):
    """A configuration, and its model with values as after training: no bias is zero."""
    config = composed([*SMALL, *overrides])
    model = build_model(config, tokenizer=ByteTokenizer())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(spread * torch.randn(parameter.shape, generator=generator))
    return model.eval(), ByteTokenizer(), config


def logits(model, dtype=torch.float64):
    tokens = torch.arange(48).reshape(2, 24)
    with torch.no_grad():
        return copy.deepcopy(model).to(dtype).eval()(tokens)


def difference(one, other, dtype=torch.float64):
    return float((logits(one, dtype) - logits(other, dtype)).abs().max())


def test_copies_leave_the_logits_as_they_are():
    source = dense(WIDE, spread=0.0)
    done = mlpkit.upcycle(source, ["ffn.num_experts=4"])
    assert difference(source[0], done.model, torch.float32) < 1e-6
    assert difference(source[0], done.model) < 1e-13
    assert done.receipt.preserved
    assert done.receipt.logits_difference < 1e-6
    experts = done.model.layers[0].ffn.experts
    assert torch.equal(experts.gate_proj.weight[3], source[0].layers[0].ffn.gate_proj.weight)


@pytest.mark.parametrize(
    ("name", "split"), [("naive", 1), ("clamped_gated", 1), *((name, 4) for name in DENSE)]
)
def test_every_dense_ffn_with_biases_becomes_copies_and_parts(name, split):
    source = dense(f"ffn={name}", WIDE, "ffn.bias=true", "model.num_layers=1")
    overrides = ["ffn.num_experts=8", "ffn.num_experts_per_tok=4"]
    done = upcycle_model(*source, overrides, split=split)
    assert difference(source[0], done.model) < 1e-12
    assert done.receipt.preserved, done.receipt.reasons
    assert done.config.ffn.expert.intermediate_size == 12 // split


def test_the_dense_ffns_that_are_tried_are_all_that_are_registered():
    others = {"moe", "zero", "copy", "constant"}
    assert {spec.name for spec in registries().ffn.list()} - others == {*DENSE}


@pytest.mark.parametrize("activation", ["prelu", "xielu", "gelu"])
def test_parameters_of_an_activation_come_along(activation):
    source = dense("ffn=naive", WIDE, f"activation={activation}")
    done = upcycle_model(*source, [*FOUR, "ffn.num_experts_per_tok=2"], split=2)
    assert difference(source[0], done.model) < 1e-12


class Chunked(nn.Module):
    """A stranger's FFN: gate and up packed in one matrix, a vector over the width, a buffer."""

    def __init__(self, *, hidden_size: int, intermediate_size: int = 12) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden_size, 2 * intermediate_size)
        self.scale = nn.Parameter(torch.rand(intermediate_size))
        self.register_buffer("sign", torch.randint(0, 2, (intermediate_size,)) * 2.0 - 1)
        self.down_proj = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x):
        gate, up = self.inner(x).chunk(2, -1)
        return self.down_proj(gate.sigmoid() * up * self.scale * self.sign)


def test_a_strangers_ffn_with_packed_projections_is_split_right():
    mlpkit.register_ffn("chunked_for_upcycling")(Chunked)
    source = dense("ffn=chunked_for_upcycling")
    done = upcycle_model(*source, [*FOUR, "ffn.num_experts_per_tok=4"], split=2)
    assert difference(source[0], done.model) < 1e-12
    assert done.receipt.preserved


def test_a_norm_over_the_width_cannot_be_split_and_is_told():
    source = dense("ffn=naive", "ffn.inner_norm=rms", WIDE)
    done = upcycle_model(*source, FOUR, split=2)
    assert done.receipt.reasons == ("parts of a NaiveFFN do not add up to the whole",)
    assert difference(source[0], done.model) > 0.01


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        (["ffn=mixtral", *FOUR], {}),
        (["ffn=gpt_oss", *FOUR, "ffn.num_experts_per_tok=2"], {"split": 2}),
        (["ffn=minimax_m2", "ffn.num_experts=9", "ffn.num_experts_per_tok=6"], {"split": 3}),
        (
            [
                *("ffn=deepseek_v3", "ffn.num_experts=10", "ffn.num_experts_per_tok=5"),
                *("ffn.router.n_group=1", "ffn.router.topk_group=1"),
            ],
            {"split": 6},  # one part of the six is the shared FFN
        ),
        (["ffn=cohere2_moe", "ffn.num_experts=8"], {}),  # routed and shared are averaged
        (["ffn=moe", *FOUR, "ffn.router.routed_scaling_factor=2.5"], {}),
    ],
)
def test_families_keep_the_function_where_their_weights_add_up(overrides, options):
    source = dense(WIDE)
    done = upcycle_model(*source, overrides, **options)
    assert done.receipt.preserved, done.receipt.reasons
    assert difference(source[0], done.model) < 1e-12
    again = build_model(done.config, tokenizer=ByteTokenizer())
    again.load_state_dict(done.model.state_dict())
    assert torch.equal(logits(again), logits(done.model))


@pytest.mark.parametrize(
    ("overrides", "options", "reason"),
    [
        (FOUR, {"noise": 0.1}, r"noise of 0.1 standard deviations"),
        (["ffn.num_experts_per_tok=3"], {"split": 2}, r"num_experts_per_tok=3 is no multiple"),
        (["ffn=olmoe", *FOUR, "ffn.num_experts_per_tok=2"], {}, r"norm_topk_prob=true"),
        (["ffn.capacity_factor=1"], {}, "capacity_factor drops tokens"),
        (["ffn=llama4", *FOUR], {}, "weights multiply the experts' input"),
        (["ffn/shared=swiglu"], {}, "shared FFN is a copy beside the routed"),
        (FOUR, {"scale": 0.5}, "weights add up to 0.5, not to 1"),
    ],
)
def test_what_changes_the_function_is_measured_and_told(overrides, options, reason):
    source = dense(WIDE)
    receipt = upcycle_model(*source, overrides, **options).receipt
    assert not receipt.preserved
    assert any(reason in text for text in receipt.reasons), receipt.reasons
    assert reason in str(receipt)
    assert receipt.logits_difference > 1e-3


def test_the_receipt_s_numbers_are_those_of_the_models():
    source = dense(WIDE)
    done = upcycle_model(*source, FOUR, noise=0.2)
    before, after = source[0].layers[1].ffn.double(), done.model.layers[1].ffn.double()
    x = torch.randn(64, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        worst = (after(x) - before(x)).abs().max()
        largest = before(x).abs().max()
    layer = done.receipt.layers[1]
    assert layer.difference == pytest.approx(float(worst), rel=1e-6)
    assert layer.relative == pytest.approx(float(worst / largest), rel=1e-6)
    counts = [sum(p.numel() for p in m.parameters()) for m in (source[0], done.model)]
    assert done.receipt.parameters == tuple(counts)
    assert json.loads(json.dumps(done.receipt.as_dict()))["preserved"] is False


def test_without_a_constant_sum_the_mean_is_right():
    source = dense(WIDE)
    done = upcycle_model(*source, ["ffn=olmoe", "ffn.num_experts=16", "ffn.num_experts_per_tok=4"])
    for block, layer in zip(done.model.layers, done.receipt.layers, strict=True):
        sums = weight_sums(block.ffn.router, 8)
        assert layer.weight_sum == pytest.approx((float(sums.min()), float(sums.max())))
        assert float(sums.mean()) == pytest.approx(1, abs=0.1)
    assert done.config.ffn.router.routed_scaling_factor == pytest.approx(
        done.model.layers[0].ffn.router.routed_scaling_factor
    )


def test_noise_is_relative_seeded_and_different_for_each_expert():
    source = dense("ffn.intermediate_size=256")
    moe = upcycle_model(*source, FOUR, noise=0.1).model.layers[0].ffn
    same = upcycle_model(*source, FOUR, noise=0.1).model.layers[0].ffn
    weight, base = moe.experts.up_proj.weight, source[0].layers[0].ffn.up_proj.weight
    assert torch.equal(weight, same.experts.up_proj.weight)
    added = (weight - base).detach()
    assert not torch.equal(added[0], added[1])
    assert float(added.std() / base.detach().std()) == pytest.approx(0.1, rel=0.05)


def test_parts_of_a_copy_share_a_row_of_the_router_and_copies_do_not():
    moe = upcycle_model(*dense(WIDE), ["ffn.num_experts=6"], split=2).model.layers[0].ffn
    rows = moe.router.weight
    assert torch.equal(rows[0::2], rows[1::2])
    assert len({tuple(row.tolist()) for row in rows}) == 3


def test_chosen_layers_alone_become_mixtures_and_the_others_keep_theirs():
    source = dense(WIDE, "model.num_layers=4")
    done = upcycle_model(*source, FOUR, layers="1,3")
    kinds = [type(block.ffn).__name__ for block in done.model.layers]
    assert kinds == ["GatedFFN", "MoE", "GatedFFN", "MoE"]
    assert difference(source[0], done.model) < 1e-12
    assert [layer.layer for layer in done.receipt.layers] == [1, 3]


def test_slots_of_different_ffns_become_mixtures_of_their_own():
    slots = ["+ffn@ffns.wide=naive", "ffns.wide.intermediate_size=16", 'model.layers={"0":wide}']
    source = dense(WIDE, "model.num_layers=3", *slots)
    done = upcycle_model(*source, FOUR, split=2, layers="0-1")
    assert difference(source[0], done.model) < 1e-12
    widths = [
        getattr(block.ffn, "experts", block.ffn).down_proj.weight.shape[-1]
        for block in done.model.layers
    ]
    assert widths == [8, 6, 12]


def test_it_trains_and_its_experts_become_different():
    torch.manual_seed(0)
    done = upcycle_model(*dense(WIDE), FOUR)
    model = done.model.train()
    tokens = torch.randint(257, (4, 17))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(12):
        with mlpkit.record_routing(model) as record:
            scores = model(tokens[:, :-1]).flatten(0, 1)
        loss = nn.functional.cross_entropy(scores, tokens[:, 1:].flatten())
        balance = sum(record.losses().values())
        (loss + balance).backward()
        assert model.layers[0].ffn.router.weight.grad.abs().max() > 0
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    first, second = model.layers[0].ffn.experts.up_proj.weight[:2]
    assert not torch.allclose(first, second)


@pytest.mark.parametrize(
    ("start", "overrides", "options", "error", "message"),
    [
        ([], ["training.max_steps=3"], {}, UpcycleError, "takes overrides of ffn"),
        ([], ["ffn.expert.bias=true"], {}, UpcycleError, "its experts are the run's own FFN"),
        ([], ["ffn=swiglu"], {}, UpcycleError, "ffn=swiglu holds no experts"),
        ([], ["ffn=longcat_flash"], {}, UpcycleError, "add ffn.experts=null"),
        ([], ["ffn.latent_size=4"], {}, UpcycleError, "ffn.latent_size is 4"),
        ([], ["ffn.num_exprets=4"], {}, ConfigError, "num_experts"),
        ([], [], {"split": 5}, UpcycleError, "split=5 does not divide the width 12"),
        ([], [], {"split": 0}, UpcycleError, "split=0"),
        ([], FOUR, {"split": 3}, UpcycleError, "give a multiple of 3"),
        ([], FOUR, {"noise": -1.0}, UpcycleError, "noise is -1.0"),
        ([], FOUR, {"noise": math.nan}, UpcycleError, "noise is nan"),
        (["ffn=moe"], FOUR, {}, UpcycleError, "is 'moe' already; leave its layers out"),
        ([], FOUR, {"layers": "7"}, ValueError, "the layers are 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(start, overrides, options, error, message):
    source = dense(*start, WIDE) if not start else dense(*start)
    with pytest.raises(error, match=message) as caught:
        upcycle_model(*source, overrides, **options)
    assert caught.value.exit_code == 2


def test_a_shared_width_that_does_not_fit_is_refused():
    with pytest.raises(UpcycleError, match=r"a shared FFN of 5 and experts of 3 do not"):
        Cut.of(12, 3, 5)
    assert Cut.of(12, 3, 6) == Cut(width=12, routed=(Piece(6, 3), Piece(9, 3)), shared=Piece(0, 6))
    with pytest.raises(UpcycleError, match="which is no part of it"):
        cut("a", torch.zeros(12, 8), torch.Size([5, 8]), Piece(0, 6), 12)


def test_biases_that_every_part_adds_are_divided_and_others_are_not():
    torch.manual_seed(0)
    ffn = build_ffn("naive", hidden_size=8, intermediate_size=12, bias=True)
    narrow = [build_ffn("naive", hidden_size=8, intermediate_size=4, bias=True) for _ in range(3)]
    pieces = [Piece(0, 4), Piece(4, 4), Piece(8, 4)]
    assert bias_shares(ffn, narrow, pieces, 8) == 3
    gated = build_ffn("gated", hidden_size=8, intermediate_size=12)
    parts = [build_ffn("gated", hidden_size=8, intermediate_size=6) for _ in range(2)]
    assert bias_shares(gated, parts, [Piece(0, 6), Piece(6, 6)], 8) in (1, 2)  # it has none


def test_a_run_becomes_a_run_that_every_verb_takes(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    train(compose([*tiny, "run_dir=dense"]))
    assert main(["upcycle", "dense", "fine", "ffn.num_experts=6", "--split", "2"]) == 0
    shown = capsys.readouterr().out
    assert "6 experts each, the FFN split into 2, router weights times 2" in shown
    assert "the same function" in shown
    assert main(["generate", "fine", "--tokens", "3"]) == 0
    model, tokenizer, config = load_run(tmp_path / "fine")
    assert difference(load_run(tmp_path / "dense")[0], model) < 1e-12
    result = json.loads((tmp_path / "fine" / "result.json").read_text())
    assert (result["status"], result["ffn"]) == ("ok", "moe[6×swiglu, top 2]")
    assert result["upcycled"]["from"] == "dense"
    assert result["upcycled"]["receipt"]["preserved"] is True
    assert yaml.safe_load((tmp_path / "fine" / "config.yaml").read_text())["match"] == "none"
    assert main(["upcycle", "dense", "fine"]) == 2  # nothing is written over
    assert "'ok'" in capsys.readouterr().err
    assert main(["upcycle", "dense", "other", "--json", "--noise", "0.1"]) == 0
    assert json.loads(capsys.readouterr().out)["reasons"]
    assert tokenizer.name == "bytes"
    assert config.run_dir is None


def test_what_cannot_be_written_leaves_no_half_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    source = dense(WIDE)
    with pytest.raises(ValueError, match="holds other files"):
        mlpkit.upcycle(source, FOUR, out=tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(UpcycleError):
        mlpkit.upcycle(source, FOUR, split=5, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()

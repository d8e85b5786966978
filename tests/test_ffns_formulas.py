"""The FFNs' formulas by hand or from their parts, their names, and their parameters and FLOPs."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from mlpkit.build import BuildError, build_ffn
from mlpkit.catalogue.ffn_sizes import RankError, naive_params, resolve_rank
from mlpkit.catalogue.ffns import FFNS
from mlpkit.ffns import (
    ClampedGatedFFN,
    FactorisedLinear,
    FFNOptionError,
    GatedFFN,
    LowRankFFN,
    NaiveFFN,
    OutputGatedFFN,
)
from mlpkit.plugins import registries
from mlpkit.specs import resolve

H, I = 6, 10  # noqa: E741
PAIRINGS = {
    "gated": torch.sigmoid,
    "bilinear": lambda x: x,
    "reglu": F.relu,
    "geglu": F.gelu,
    "swiglu": F.silu,
}


def x_of(*shape):
    return torch.randn(*shape, H, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def built(name, **options):
    torch.manual_seed(0)
    return build_ffn(name, hidden_size=H, intermediate_size=I, **options).double()


def one(kind, gate, up, down, **options):
    """A gated FFN of width 1 with these three weights."""
    ffn = kind(hidden_size=1, intermediate_size=1, **options).double()
    with torch.no_grad():
        for name, weight in {"gate_proj": gate, "up_proj": up, "down_proj": down}.items():
            ffn.get_submodule(name).weight.fill_(weight)
    return ffn


@pytest.mark.parametrize("name", PAIRINGS)
def test_a_gated_ffn_by_name_has_the_activation_that_its_paper_gives_it(name):
    ffn, x = built(name), x_of(2, 3)
    expected = F.linear(
        PAIRINGS[name](F.linear(x, ffn.gate_proj.weight)) * F.linear(x, ffn.up_proj.weight),
        ffn.down_proj.weight,
    )
    torch.testing.assert_close(ffn(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in PAIRINGS if n != "gated"])
def test_a_pairing_by_name_is_the_gated_ffn_composed_to_the_bit(name):
    spec = registries().ffn.get(name)
    assert spec.family == "gated"
    composed = built("gated", activation=spec.default_activation)
    assert torch.equal(built(name)(x_of(4)), composed(x_of(4)))


def test_every_pairing_of_the_catalogue_is_compared():
    assert set(PAIRINGS) - {"gated"} == {spec.name for spec in FFNS if spec.family == "gated"}


def test_an_inner_norm_normalises_the_activated_elements():
    x = x_of(2, 3)
    for norm in ("layer", "rms"):
        ffn = built("naive", inner_norm=norm, activation="silu", bias=True)
        nn.init.normal_(ffn.inner_norm.weight)
        inner = F.silu(ffn.up_proj(x))
        centred = inner - inner.mean(-1, keepdim=True) if norm == "layer" else inner
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        shift = 0
        if norm == "layer":
            shift = nn.init.normal_(ffn.inner_norm.bias)
        expected = ffn.down_proj(centred / scale * ffn.inner_norm.weight + shift)
        torch.testing.assert_close(ffn(x), expected, rtol=1e-12, atol=1e-12)


def test_inner_dropout_zeroes_activated_elements_in_training_alone():
    ffn = NaiveFFN(hidden_size=400, activation=nn.Identity(), inner_dropout=0.25)
    with torch.no_grad():
        ffn.up_proj.weight.fill_(1 / 400)
        ffn.down_proj.weight.fill_(1.0)
    x = torch.ones(400)
    assert ffn.eval()(x).tolist() == pytest.approx([1600.0] * 400)
    dropped = ffn.train()(x)  # every output is the sum of the 1600 elements, those kept times 4/3
    assert len(dropped.unique()) == 1
    kept = dropped[0].item() / (4 / 3)
    assert kept == pytest.approx(round(kept), abs=0.02)
    assert 1100 < kept < 1300


def test_the_clamped_ffn_by_hand():
    # gate and up are cut at 7 and ±7: x = 1 gives gate 10 → 7, up -9 → -7
    ffn = one(ClampedGatedFFN, 10.0, -9.0, 2.0)
    sigmoid = 1 / (1 + math.exp(-1.702 * 7))
    assert ffn(torch.ones(1).double()).item() == pytest.approx(2 * (-7 + 1) * 7 * sigmoid)
    # a gate of -10 is not cut, up is 9 → 7
    sigmoid = 1 / (1 + math.exp(1.702 * 10))
    assert ffn(-torch.ones(1).double()).item() == pytest.approx(2 * (7 + 1) * -10 * sigmoid)
    # where up is 0, the gate still passes
    bare = one(ClampedGatedFFN, 1.0, 0.0, 1.0, alpha=0.5)
    assert bare(torch.ones(1).double()).item() == pytest.approx(1 / (1 + math.exp(-0.5)))


def test_the_clamped_ffn_without_a_clamp_is_swiglu():
    options = {"alpha": 1.0, "limit": 1e9, "up_offset": 0.0}
    ffn, plain = built("clamped_gated", **options), built("swiglu")
    torch.testing.assert_close(ffn(x_of(4)), plain(x_of(4)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
def test_a_limit_that_clamps_everything_is_refused(limit):
    with pytest.raises(FFNOptionError, match=f"limit is {limit}; give a number above 0"):
        ClampedGatedFFN(hidden_size=H, limit=limit)


@pytest.mark.parametrize("name", ["alpha", "up_offset"])
def test_a_number_that_is_none_is_refused(name):
    with pytest.raises(FFNOptionError, match=f"{name} is inf; give a finite number"):
        ClampedGatedFFN(hidden_size=H, **{name: math.inf})


def test_an_inner_norm_that_is_none_is_refused_with_what_there_is():
    with pytest.raises(BuildError, match="inner_norm is 'batch'; choose one of layer, rms, or"):
        build_ffn("naive", hidden_size=H, inner_norm="batch")


def test_the_output_gate_scales_each_position_by_one_number():
    gated, ffn, x = built("swiglu", bias=True), built("output_gated", bias=True), x_of(2, 3)
    ffn.load_state_dict(gated.state_dict() | {"output_gate.weight": torch.zeros(1, H)})
    torch.testing.assert_close(ffn(x), gated(x) / 2, rtol=1e-12, atol=1e-12)
    weight = nn.init.normal_(ffn.output_gate.weight)
    amount = 1 / (1 + (-(x * weight[0]).sum(-1)).exp())
    torch.testing.assert_close(ffn(x), amount[..., None] * gated(x), rtol=1e-12, atol=1e-12)
    # by hand: sigmoid(0) · relu(2)·3·5 at x = 1
    tiny = one(OutputGatedFFN, 2.0, 3.0, 5.0, activation=nn.ReLU())
    nn.init.zeros_(tiny.output_gate.weight)
    assert tiny(torch.ones(1).double()).item() == 15


def test_the_low_rank_ffn_is_the_gated_one_with_the_products_as_matrices():
    ffn, full, x = built("low_rank", rank=3, bias=True), built("swiglu", bias=True), x_of(2, 3)
    state = {}
    for name in ("gate_proj", "up_proj", "down_proj"):
        layer = ffn.get_submodule(name)
        state[f"{name}.weight"] = layer.outer.weight @ layer.inner.weight
        state[f"{name}.bias"] = layer.outer.bias
        assert torch.linalg.matrix_rank(state[f"{name}.weight"]) == 3
    full.load_state_dict(state)
    torch.testing.assert_close(ffn(x), full(x), rtol=1e-12, atol=1e-12)


def test_a_factorised_linear_starts_as_large_as_a_plain_one():
    torch.manual_seed(0)
    x = torch.randn(200, 256)
    plain = nn.Linear(256, 512, bias=False)(x)
    factorised = FactorisedLinear(in_features=256, out_features=512, rank=64, bias=False)(x)
    assert factorised.std().item() == pytest.approx(plain.std().item(), rel=0.05)


@pytest.mark.parametrize(
    ("rank", "hidden_size", "found"), [(None, 64, 16), (None, 2, 1), (5, 8, 5)]
)
def test_the_rank_is_what_is_written_or_a_quarter_of_h(rank, hidden_size, found):
    assert resolve_rank(rank, hidden_size) == found
    ffn = LowRankFFN(hidden_size=hidden_size, activation=nn.SiLU(), rank=rank)
    assert ffn.down_proj.inner.out_features == found


@pytest.mark.parametrize("rank", [0, -2, 1.5, True])
def test_a_rank_that_is_none_is_refused(rank):
    with pytest.raises(RankError, match=f"rank is {rank}; give a whole number ≥ 1"):
        LowRankFFN(hidden_size=H, activation=nn.SiLU(), rank=rank)


def test_the_default_rank_has_a_third_of_the_parameters():
    low, full = registries().ffn.get("low_rank"), registries().ffn.get("swiglu")
    share = resolve(low.num_params)(768) / resolve(full.num_params)(768)
    assert share == pytest.approx(11 / 32, rel=1e-3)  # 3·(H/4)·(11/3)·H over 8·H²


OPTIONS = {
    "naive": [{"inner_norm": "rms"}, {"inner_norm": "layer", "bias": True}],
    "low_rank": [{"rank": 3}, {"rank": 1, "bias": True}],
}
SIZED = [
    pytest.param(spec, options, id=f"{spec.name}-{options}")
    for spec in FFNS
    for options in [{}, {"bias": True}, *OPTIONS.get(spec.name, [])]
]


@pytest.mark.parametrize("width", [I, None, "4x"])
@pytest.mark.parametrize(("spec", "options"), SIZED)
def test_the_formulas_count_what_is_built_and_what_torch_counts(spec, options, width):
    options = {"intermediate_size": width, **options}
    ffn = build_ffn(spec.name, hidden_size=H, **options)
    counted = sum(parameter.numel() for parameter in ffn.parameters())
    assert resolve(spec.num_params)(H, **options) == counted
    with FlopCounterMode(display=False) as counter:
        ffn(torch.zeros(3, H))
    assert resolve(spec.flops_per_token)(H, **options) * 3 == counter.get_total_flops()


def test_the_parameters_by_hand():
    assert naive_params(6, intermediate_size=10, inner_norm="layer") == 2 * 60 + 20
    count = {spec.name: resolve(spec.num_params)(6, intermediate_size=10) for spec in FFNS}
    assert count["output_gated"] == 3 * 60 + 6
    assert count["low_rank"] == 3 * 1 * (6 + 10)
    assert count["clamped_gated"] == count["geglu"] == 180


def test_gated_and_clamped_start_from_the_same_values():
    torch.manual_seed(0)
    gated = GatedFFN(hidden_size=H, activation=nn.SiLU(), intermediate_size=I)
    torch.manual_seed(0)
    clamped = ClampedGatedFFN(hidden_size=H, intermediate_size=I)
    assert gated.state_dict().keys() == clamped.state_dict().keys()
    assert all(torch.equal(t, clamped.state_dict()[k]) for k, t in gated.state_dict().items())

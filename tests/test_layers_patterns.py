"""Which FFN stands in which layer: patterns, and the slots of a composed configuration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from mlpkit.compose import ConfigError, compose, quote_null
from mlpkit.compose.checks import group_of
from mlpkit.layers import LayerPatternError, compact, layer_slots, span_text
from mlpkit.lint import lint
from mlpkit.plugins import registries
from mlpkit.sweep import expand, job_id

DENSE_FIRST = 'model.layers={"0": dense, "1-": main}'
MIXED = ["ffn=moe", "ffn.num_experts=4", "ffn.backend=loop", "+ffn@ffns.dense=swiglu"]
m, d = "main", "dense"
# pattern of four layers → slots
GIVEN = [
    (None, [m, m, m, m]),
    ({}, [m, m, m, m]),
    ({"0-1": d, "2-": m}, [d, d, m, m]),
    ({0: d, "3": "other"}, [d, m, m, "other"]),
    ({"0,2-3": d}, [d, m, d, d]),
    ({" 1 - 2 , 3": d}, [m, d, d, d]),
    ({"3-": d}, [m, m, m, d]),
    ({"every": 2, "others": d}, [d, m, d, m]),
    ({"every": 2, "offset": 0, "others": d}, [m, d, m, d]),
    ({"every": 3, "slot": d}, [m, m, d, m]),
    ({"every": 1, "slot": d}, [d, d, d, d]),
    ([d, m, "other", m], [d, m, "other", m]),
]
# pattern of four layers → words of the error
WRONG = [
    ({"0-1": d, "1-": m}, ("layer 1 twice", "'0-1'", "'1-'")),
    ({0: d, "0": m}, ("layer 0 twice",)),
    ({"4": d}, ("'4'", "num_layers is 4", "0 to 3")),
    ({"2-4": d}, ("'2-4'", "0 to 3")),
    ({"4-": d}, ("'4-'", "0 to 3")),
    ({"2-1": d}, ("'2-1'", "ends before it starts")),
    ({"-1": d}, ("'-1'", "count from 0")),
    ({"first": d}, ("'first'", "0-1")),
    ({"0,": d}, ("'0,'",)),
    ({True: d}, ("'True'",)),
    ({"0": "dens"}, ("'dens'", "did you mean 'dense'?", "+ffn@ffns.dens=NAME")),
    ({"0": None}, ("'None'", "main, dense, other")),
    ([d, m], ("lists 2 slots", "num_layers is 4")),
    ("dense", ("'dense'", "a mapping such as")),
    (3, ("is 3", "null")),
    ({"every": 0, "others": d}, ("every: 0", "at least 1")),
    ({"every": True, "others": d}, ("every: True",)),
    ({"others": d}, ("every: None",)),
    ({"every": 2, "0": d}, ("the key '0'", "every: N")),
    ({"every": 2, "offset": 2, "others": d}, ("offset is 2", "0 to 1")),
    ({"every": 2}, ("every layer the slot 'main'", "others")),
]


@pytest.mark.parametrize(("pattern", "slots"), GIVEN, ids=str)
def test_a_pattern_gives_each_layer_its_slot(pattern, slots):
    assert layer_slots(pattern, 4) == slots
    assert layer_slots(OmegaConf.create({"layers": pattern}).layers, 4) == slots


@pytest.mark.parametrize(("pattern", "words"), WRONG, ids=str)
def test_a_wrong_pattern_names_the_key_and_what_was_found(pattern, words):
    with pytest.raises(LayerPatternError) as caught:
        layer_slots(pattern, 4, known=(m, d, "other"))
    for word in ("model.layers", *words):
        assert word in str(caught.value)


@given(st.lists(st.sampled_from([m, d, "other"]), min_size=1, max_size=24))
def test_a_short_pattern_gives_the_slots_back(slots):
    assert layer_slots(compact(slots), len(slots)) == slots


@pytest.mark.parametrize("slots", [[d, m] * 6, [m, d, m] * 4, [m, m, m, d] * 5 + [m]])
def test_what_repeats_becomes_a_period(slots):
    short = compact(slots)
    assert short is not None
    assert "every" in short
    assert layer_slots(short, len(slots)) == slots


def test_layers_are_told_in_runs():
    assert span_text([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert span_text([3]) == "3"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (DENSE_FIRST, "model.layers={0: dense, 1-: main}"),
        ("model.layers={'0-1' : dense}", "model.layers={0-1 : dense}"),
        ("+model.layers={0: 'dense'}", "+model.layers={0: 'dense'}"),
        ('data.path="a: b"', 'data.path="a: b"'),
    ],
)
def test_quotes_around_layers_go_since_hydra_refuses_them(given, expected):
    assert quote_null(given) == expected


def test_a_slot_is_typed_and_checked_like_ffn():
    config = compose([*MIXED, DENSE_FIRST, "ffns.dense.bias=true"])
    assert config.ffns.dense.bias is True
    assert OmegaConf.get_type(config.ffns.dense) is OmegaConf.get_type(compose([]).ffn)
    parts = compose(
        ["+ffn@ffns.b=moe", "ffn/router@ffns.b.router=deepseek_v3", "model.layers={0: b}"]
    )
    assert parts.ffns.b.router.score == "sigmoid"
    assert compose(["+ffn@ffns.b=deepseek_v3"]).ffns.b.num_experts == 256


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["+ffn@ffns.dense=swiglo"], ("'swiglo'", "did you mean 'swiglu'?")),
        (["+ffns.dense=swiglo"], ("ffns.dense", "did you mean 'swiglu'?")),
        (["ffn@ffns.dense=swiglu"], ("+ffn@ffns.dense=NAME",)),
        (["ffn/router@ffns.dense.router=topk"], ("has no FFN that has router", "+ffn@ffns.dense")),
        ([*MIXED, "ffn/router@ffns.dense.router=topk"], ("ffns.dense has no FFN that has router",)),
        (["ffns.dense=swiglu"], ("no slot 'ffns.dense'", "+ffn@ffns.dense=NAME")),
        ([*MIXED, "ffns.dense.bais=true"], ("'ffns.dense.bais'", "'ffns.dense.bias'")),
        ([*MIXED, "+ffns.dense.bais=true"], ("'ffns.dense.bais'", "'ffns.dense.bias'")),
        ([*MIXED, "ffns.dense.bias=maybe"], ("ffns.dense.bias", "maybe")),
        ([*MIXED, "ffns.dense.name=naive"], ("ffns.dense.name", "write +ffn@ffns.dense=naive")),
        ([*MIXED, "ffns.dense.intermediate_size=-3"], ("ffns.dense.intermediate_size is -3",)),
        (["+ffn@ffns.main=naive"], ("ffns.main", "that is ffn")),
        (["+ffns.Big=naive"], ("ffns.Big", "letter first")),
        ([*MIXED, "model.layers={0: dens}"], ("'dens'", "did you mean 'dense'?")),
        ([*MIXED, "model.layers={7: dense}"], ("'7'", "model.num_layers is 4")),
        ([*MIXED, "model.layers={9: dense}", "model.num_layers=0"], ("model.num_layers is 0",)),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_is_wrong_with_a_slot_is_told_with_its_key(overrides, words):
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    for word in words:
        assert word in str(caught.value)


def test_a_part_is_chosen_by_its_group():
    assert group_of("ffn.router") == "ffn/router"
    assert group_of("ffns.dense") == "+ffn@ffns.dense"
    assert group_of("ffns.dense.router") == "ffn/router@ffns.dense.router"


def test_the_default_has_one_slot():
    config = compose([])
    assert config.ffns == {}
    assert config.model.layers is None


def codes(config) -> list[str]:
    return [f"{finding.code}: {finding}" for finding in lint(config, registries())]


def test_an_ffn_that_no_layer_has_is_noted():
    assert not codes(compose([*MIXED, DENSE_FIRST]))
    (note,) = codes(compose(MIXED))
    assert note.startswith("unused-slot: ffns.dense stands in no layer")
    (note,) = codes(compose([*MIXED, "model.layers={0-: dense}"]))
    assert note.startswith("unused-slot: ffn stands in no layer")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["ffns.b.num_experts_per_tok=9"], ("ffns.b.num_experts_per_tok is 9",)),
        (["ffns.b.num_experts_per_tok=1"], ("ffns.b.router.norm_topk_prob=false",)),
        (["ffn/router@ffns.b.router=expert_choice"], ("ffns.b.router 'expert_choice'",)),
        (["ffns.b.expert.intermediate_size=-1"], ("ffns.b.expert.intermediate_size is -1",)),
        (["ffn/expert@ffns.b.expert=moe"], ("ffns.b.expert is a moe",)),
    ],
    ids=str,
)
def test_the_traps_of_a_mixture_are_found_in_every_slot(overrides, words):
    slots = ["+ffn@ffns.b=moe", "model.layers={0: b}"]
    compose(slots)  # a whole MoE in a slot is no expert
    with pytest.raises(ConfigError) as caught:
        compose([*slots, *overrides])
    for word in words:
        assert word in str(caught.value)


def test_a_sum_over_layers_counts_those_of_the_slot():
    """K = 2: balanced, load_minimind is 2 for each layer that has it, and 0.04 of it 0.08."""
    overrides = [*MIXED, "ffn/balance=load_minimind", "++ffn.balance.load_minimind=0.04"]
    assert not codes(compose([*overrides, "model.layers={0-2: dense}"]))
    (note,) = codes(compose([*overrides, "model.layers={0-1: dense}"]))
    assert note.startswith("large-balance")
    assert "0.16" in note


def test_an_activation_must_reach_a_layer_not_a_slot():
    compose(["ffn=zero", "+ffn@ffns.b=gated", "model.layers={0: b}", "activation=gelu"])
    with pytest.raises(ConfigError, match="the ffn 'zero' takes none"):
        compose(["ffn=zero", "+ffn@ffns.b=gated", "activation=gelu"])
    with pytest.raises(ConfigError, match="'zero' and 'copy' takes none"):
        compose(["ffn=copy", "+ffn@ffns.b=zero", "model.layers={0: b}", "activation=gelu"])


def test_one_identity_for_every_way_to_say_the_same():
    def identity(*overrides: str) -> str:
        return job_id(compose(list(overrides)), {})

    first = identity(*MIXED, DENSE_FIRST)
    assert identity(*MIXED, "model.layers={0: dense}") == first
    assert identity(*MIXED, "model.layers=[dense,main,main,main]") == first
    assert identity(*MIXED, "+ffn@ffns.b=naive", DENSE_FIRST) == first  # stands in no layer
    assert identity(*MIXED, "model.layers={1: dense}") != first
    assert identity(*MIXED, DENSE_FIRST, "ffns.dense.bias=true") != first
    assert identity(*MIXED) == identity(*MIXED[:-1]) == identity(*MIXED, "model.layers={0: main}")
    whole = ["+ffn@ffns.b=naive", "model.layers={0-: b}"]
    assert identity(*whole) == identity("ffn=moe", *whole)  # ffn stands in no layer


def test_a_sweep_goes_over_patterns_and_slots():
    jobs = expand(["+ffn@ffns.dense=swiglu,naive", 'model.layers={"0": dense},null'])
    names = [compose(job).ffns.dense.name for job in jobs]
    assert names == ["swiglu", "swiglu", "naive", "naive"]
    assert [compose(job).model.layers for job in jobs] == [{0: "dense"}, None] * 2

"""Presets by name in Python, and one clear error for a size, option or table that cannot be."""

from pathlib import Path

import pytest
import torch

import mlpkit
from mlpkit.build import BuildError
from mlpkit.build.presets import with_preset
from mlpkit.compose import compose
from mlpkit.registry import UnknownNameError

CONF = Path(__file__).parents[1] / "conf"
ROUTERS = sorted(path.stem for path in (CONF / "ffn" / "router").glob("*.yaml"))


def test_a_preset_of_an_ffn_is_what_composing_it_gives_under_the_options_of_the_call():
    wanted = compose(["ffn=mixtral"]).ffn
    name, options = with_preset("ffn", "mixtral", {"num_experts": 4})
    assert name == "moe"
    assert options["num_experts"] == 4
    assert options["router"] == wanted.router
    moe = mlpkit.build_ffn("mixtral", hidden_size=8, num_experts=4, expert="naive")
    assert moe.router.num_experts == 4
    assert moe(torch.zeros(3, 8)).shape == (3, 8)


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "llama4", "phimoe"])
def test_a_preset_of_a_router_is_what_composing_it_gives(name):
    assert name in ROUTERS
    wanted = dict(compose(["ffn=moe", f"ffn/router={name}"]).ffn.router)
    entry, options = with_preset("router", name, {})
    assert {"name": entry, **options} == wanted


def test_a_preset_with_a_known_trap_is_built_as_the_family_had_it():
    moe = mlpkit.build_ffn("minimind", hidden_size=8, num_experts=4)
    assert (moe.router.num_experts_per_tok, moe.router.norm_topk_prob) == (1, True)


def test_an_entry_keeps_its_own_name_and_an_unknown_one_is_refused():
    assert with_preset("ffn", "swiglu", {"bias": True}) == ("swiglu", {"bias": True})
    with pytest.raises(UnknownNameError, match="unknown ffn 'mixtrla'"):
        mlpkit.build_ffn("mixtrla", hidden_size=8)
    with pytest.raises(UnknownNameError, match=r"unknown router '\.\./mixtral'"):
        mlpkit.build_router("../mixtral", hidden_size=8, num_experts=4, num_experts_per_tok=2)


@pytest.mark.parametrize("size", [0, -1, 8.0, "8", True, None])
@pytest.mark.parametrize("name", ["swiglu", "moe"])
def test_a_hidden_size_that_is_none_is_one_error(name, size):
    with pytest.raises(BuildError, match=rf"hidden_size is {size!r}; give a whole number"):
        mlpkit.build_ffn(name, hidden_size=size)


@pytest.mark.parametrize("option", ["num_experts", "num_experts_per_tok"])
def test_a_number_of_experts_that_is_none_is_one_error(option):
    with pytest.raises(BuildError, match=f"{option} is -2; give a whole number"):
        mlpkit.build_ffn("moe", hidden_size=8, **{option: -2})
    sizes = {"hidden_size": 8, "num_experts": 4, "num_experts_per_tok": 2, option: "x"}
    with pytest.raises(BuildError, match=f"{option} is 'x'"):
        mlpkit.build_router("topk", **sizes)


def test_an_unknown_option_of_a_moe_is_told_all_that_it_has():
    with pytest.raises(BuildError, match=r"'num_expert'; did you mean 'num_experts'\?") as caught:
        mlpkit.build_ffn("moe", hidden_size=8, num_expert=4)
    for option in ("num_experts_per_tok", "expert,", "experts", "router", "backend", "balance"):
        assert option in str(caught.value)
    with pytest.raises(BuildError, match=r"balance is 3; give a mapping"):
        mlpkit.build_ffn("moe", hidden_size=8, balance=3)

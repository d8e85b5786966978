"""Equal budgets: widths against hand-computed ones, counts against built modules."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch.utils.flop_counter import FlopCounterMode

from mlpkit.build import build_ffn, build_model
from mlpkit.cli import main
from mlpkit.compose import ConfigError, compose
from mlpkit.sweep import job_id, match_budget
from mlpkit.sweep.matching import residual_text
from mlpkit.training import load_config

H = 96  # SwiGLU's width is 8/3·96 = 256, so that a layer has 3·96·256 = 73,728 parameters


def matched(*overrides: str) -> tuple[Any, dict[str, Any]]:
    config, record = match_budget(compose([f"model.hidden_size={H}", *overrides]))
    assert record is not None
    return config, record


def parameters(config: Any) -> int:
    """Of the FFN as it is built, each tensor once."""
    ffn = OmegaConf.to_container(config.ffn)
    return sum(p.numel() for p in build_ffn(ffn, hidden_size=H).parameters())


# 2·H·I = 73,728 → 384; with biases 2·H·I + I + H = 73,728 → 381.5, of which the nearest multiple
# of 8 is 0.65 % off, which is tolerated; a MoE of 8: 8·3·H·I + 8·H = 73,728 → 31.67; its
# FLOPs have 2·K·H for the weighted sum of a token's experts.
@pytest.mark.parametrize(
    ("overrides", "kind", "width", "actual"),
    [
        (["ffn=swiglu"], "params", 256, 73_728),
        (["ffn=naive"], "params", 384, 2 * H * 384),
        (["ffn=naive", "ffn.bias=true"], "params", 384, 2 * H * 384 + 384 + H),
        (["ffn=moe"], "params", 32, 8 * 3 * H * 32 + 8 * H),
        (["ffn=moe"], "active_params", 127, 2 * 3 * H * 127 + 8 * H),
        (["ffn=moe", "ffn.num_experts_per_tok=4"], "active_params", 63, 4 * 3 * H * 63 + 8 * H),
        (["ffn=naive"], "flops", 384, 2 * 2 * H * 384),
        (["ffn=moe"], "flops", 126, 2 * (2 * 3 * H * 126 + 8 * H) + 2 * 2 * H),
    ],
)
def test_widths_are_those_worked_out_by_hand(
    overrides: list[str], kind: str, width: int, actual: int
) -> None:
    config, record = matched(*overrides, f"match={kind}")
    target = 73_728 * (2 if kind == "flops" else 1)
    assert (record["kind"], record["to"], record["target"]) == (kind, "swiglu", target)
    assert (record["width"], record["actual"]) == (width, actual)
    assert record["residual"] == pytest.approx(actual / target - 1)
    assert OmegaConf.select(config, record["width_key"]) == width


@pytest.mark.parametrize(
    "overrides",
    [
        ["ffn=naive"],
        ["ffn=geglu"],
        ["ffn=gated", "ffn.bias=true", "activation=gelu"],
        ["ffn=moe", "ffn/expert=naive"],
        ["ffn=moe", "ffn/shared=swiglu", "ffn.shared.intermediate_size=8"],
        ["ffn=mixtral"],
    ],
    ids=" ".join,
)
def test_what_is_counted_is_what_is_built(overrides: list[str]) -> None:
    config, record = matched(*overrides, "match=params")
    assert record["actual"] == parameters(config)
    assert abs(record["residual"]) <= 0.02
    model = build_model(config)
    built = [sum(p.numel() for p in layer.ffn.parameters()) for layer in model.layers]
    assert built == [record["actual"]] * config.model.num_layers


@pytest.mark.parametrize("ffn", ["naive", "gated", "bilinear"])
def test_flops_are_those_that_torch_counts(ffn: str) -> None:
    config, record = matched(f"ffn={ffn}", "match=flops")
    module = build_ffn(OmegaConf.to_container(config.ffn), hidden_size=H)
    with FlopCounterMode(display=False) as counter:
        module(torch.zeros(7, H))
    assert counter.get_total_flops() == 7 * record["actual"]


def test_a_multiple_of_8_is_taken_where_it_costs_little() -> None:
    given = "match_to={name: swiglu, intermediate_size: 500}"
    config, record = matched("ffn=naive", "match=params", given)
    assert record["to"] == "swiglu(intermediate_size=500)"
    assert record["target"] == 3 * H * 500
    assert config.ffn.intermediate_size == 752  # exact would be 750
    assert record["residual"] == pytest.approx(752 / 750 - 1)


def test_solving_again_gives_the_same_and_the_given_one_stays() -> None:
    given = compose(["ffn=moe", "match=active_params"])
    before = copy.deepcopy(given)
    config, record = match_budget(given)
    assert given == before
    again, same = match_budget(config)
    assert (again, same) == (config, record)
    assert job_id(again, {}) == job_id(config, {}) != job_id(given, {})


def test_without_a_budget_nothing_changes() -> None:
    config = compose(["ffn=naive", "ffn.intermediate_size=24"])
    assert match_budget(config) == (config, None)


def test_the_budget_does_not_depend_on_what_the_variant_changes() -> None:
    targets = {
        matched(*overrides, "match=params")[1]["target"]
        for overrides in (["ffn=naive"], ["activation=gelu"], ["ffn=moe"], ["ffn.bias=true"])
    }
    assert targets == {73_728}


def test_an_ffn_without_a_width_is_said_to_be_unmatched() -> None:
    config, record = matched("ffn=constant", "match=params")
    assert "residual" not in record
    assert "'constant' has no width" in record["unmatched"]
    assert config == compose(["ffn=constant", f"model.hidden_size={H}", "match=params"])
    assert residual_text(record) == "unmatched"
    assert residual_text(None) == ""


def test_a_budget_below_the_smallest_width_shows_how_far_it_is() -> None:
    _, record = matched("ffn=longcat_flash", "match=params")
    assert record["width"] == 1
    assert record["residual"] > 0.5


def test_every_slot_is_matched_and_the_worst_is_shown_first() -> None:
    layers = 'model.layers={"0": dense, "1": odd, "2-": main}'
    slots = ["+ffn@ffns.dense=naive", "+ffn@ffns.odd=copy", "+ffn@ffns.unused=naive", layers]
    config, record = matched("ffn=moe", *slots, "match=active_params")
    assert config.ffns.dense.intermediate_size == 384
    assert config.ffn.expert.intermediate_size == 127
    assert config.ffns.unused.intermediate_size is None
    assert list(record["slots"]) == ["dense", "odd", "main"]
    assert record["slots"]["dense"]["width_key"] == "ffns.dense.intermediate_size"
    assert "'copy' has no width" in record["unmatched"]
    _, record = matched(
        "ffn=moe", *slots[:1], 'model.layers={"0": dense, "1-": main}', "match=flops"
    )
    assert record["width_key"] == "ffn.expert.intermediate_size"  # exact in dense, not in main


def test_a_part_given_by_its_bare_name_becomes_a_mapping() -> None:
    config = compose([f"model.hidden_size={H}", "ffn=moe", "match=active_params"])
    bare = copy.deepcopy(config)
    bare.ffn.expert = "swiglu"
    found, record = match_budget(bare)
    expected, same = match_budget(config)
    assert record == same
    assert found.ffn.expert.intermediate_size == expected.ffn.expert.intermediate_size
    assert parameters(found) == parameters(expected)
    whole = copy.deepcopy(compose([f"model.hidden_size={H}", "match=params"]))
    whole.ffn = "naive"
    found, _ = match_budget(whole)
    assert found.ffn.intermediate_size == 384


@pytest.mark.parametrize(
    ("match_to", "words"),
    [
        ("swigul", ("match_to", "did you mean 'swiglu'")),
        ("null", ("match_to is None", "name: swiglu")),
        ("{intermediate_size: 3}", ("match_to is", "name: swiglu")),
        ("copy", ("copy", "counts no params")),
        ("{name: swiglu, nonsense: 3}", ("match_to", "nonsense")),
    ],
)
def test_a_wrong_match_to_is_named(match_to: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as raised:
        matched("match=params", f"match_to={match_to}")
    for word in words:
        assert word in str(raised.value)


def test_a_single_run_is_matched_and_recorded(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = [o for o in tiny if "intermediate_size" not in o]
    assert main(["train", *line, "ffn=naive", "match=params", "run_dir=run"]) == 0
    record = json.loads(Path("run/result.json").read_text())["match"]
    # 8/3·16 = 42.7 ↑64 → 64; 2·16·I = 3·16·64 → 96
    assert (record["target"], record["actual"], record["width"]) == (3072, 3072, 96)
    saved = load_config(Path("run"))
    assert saved.ffn.intermediate_size == 96
    assert (saved.match, saved.match_to) == ("params", "swiglu")
    assert match_budget(saved) == (saved, record)

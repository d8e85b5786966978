"""Different FFNs in different layers: what is built, described and trained."""

from __future__ import annotations

import io
import json
import math
import shlex
from pathlib import Path

import pytest
import torch
import yaml
from docs_reader import commands, fences, table
from omegaconf import OmegaConf
from rich.console import Console
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mlpkit.build import build_model
from mlpkit.cli import main
from mlpkit.compose import check, compose
from mlpkit.describe import describe, side_by_side
from mlpkit.layers import SPELLINGS, layer_slots
from mlpkit.sweep import job_id
from mlpkit.training import load_run, train
from mlpkit.training.run_directory import RunDirectory, load_config

DENSE_FIRST = 'model.layers={"0": dense, "1-": main}'
MIXED = ["ffn=moe", "ffn.num_experts=4", "ffn.backend=loop", "+ffn@ffns.dense=swiglu"]
SMALL = ["model.hidden_size=16", "training.sequence_length=12"]


def test_each_block_gets_the_ffn_of_its_slot_with_the_values_of_its_place():
    alone = {name: build_model([*SMALL, f"ffn={name}"]) for name in ("moe", "naive")}
    mixed = build_model(
        [*SMALL, "ffn=moe", "+ffn@ffns.b=naive", "model.layers={every: 2, others: b}"]
    )
    for index, name in enumerate(("naive", "moe", "naive", "moe")):
        got = mixed.layers[index].state_dict()
        expected = alone[name].layers[index].state_dict()
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[key], expected[key]) for key in got)


VARIANTS = [
    [*MIXED, DENSE_FIRST],
    [*MIXED, "model.layers={every: 2, others: dense}", "activation=gelu"],
    [*MIXED, "model.layers=[dense,dense,dense,dense]"],
    ["+ffn@ffns.b=naive", "+ffn@ffns.c=gated", "model.layers={0: b, 2: c}"],
]


@pytest.mark.parametrize("overrides", VARIANTS, ids=lambda v: v[-1])
def test_a_description_has_the_numbers_of_the_built_model(overrides):
    config = compose([*SMALL, *overrides])
    description, model = describe(config), build_model(config)
    assert description.parameters == sum(p.numel() for p in model.parameters())
    assert description.parameters == sum(p.parameters for p in description.parts)
    assert description.active_parameters == sum(p.active_parameters for p in description.parts)
    tokens = torch.zeros(2, 12, dtype=torch.long)
    # the counter knows no fused attention and would count 0
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens)
    assert description.flops_per_token * tokens.numel() == counter.get_total_flops()
    assert description.memory.activations is not None


def test_a_description_shows_the_layers_of_each_slot():
    config = compose([*SMALL, *MIXED, 'model.layers={"0-1": dense, "2-": main}'])
    description, model = describe(config), build_model(config)
    dense, moe = [p for p in description.parts if p.name.startswith("layers ")]
    assert (dense.name, dense.count, dense.detail) == ("layers 0-1", 2, "dense, each:")
    assert (moe.name, moe.count, moe.detail) == ("layers 2-3", 2, "main, each:")
    for part, layers in ((dense, model.layers[:2]), (moe, model.layers[2:])):
        assert part.parameters == sum(p.numel() for p in layers.parameters())
    # H 16: width 64, with K = 2 an expert has 64/2 rounded up to 64; two of four are idle
    idle = 2 * (2 * 3 * 16 * 64)
    assert description.active_parameters == description.parameters - idle
    assert description.ffn == "swiglu (layers 0-1), moe[4×swiglu, top 2] (layers 2-3)"
    assert description.backend.startswith("loop")
    assert "├─ layers 0-1 ×2  dense, each:" in str(description)
    assert describe([*SMALL, *MIXED, DENSE_FIRST]).parts[1].name == "layer 0"
    assert json.dumps(description.as_dict())


def test_a_range_is_of_the_layers_that_have_one():
    """Two of the four layers have swiglu and copy experts: 0 to 2 of K = 2 cost something."""
    types = "ffn.experts=[{name: swiglu, intermediate_size: 64, num_experts: 2}, "
    types += "{name: copy, num_experts: 2}]"
    overrides = [*SMALL, *MIXED, types, "model.layers={every: 2, others: dense}"]
    description = describe(overrides)
    low, high = description.active_range
    assert high - low == 2 * 2 * (3 * 16 * 64)
    assert low + high == 2 * description.active_parameters
    assert description.flops_range[1] - description.flops_range[0] == 2 * (high - low)


def test_what_is_not_what_it_is_called_is_noted_with_its_slot():
    description = describe([*SMALL, *VARIANTS[1]])
    assert description.note == "ffn@ffns.dense=swiglu is gated[gelu] here"


def test_models_side_by_side_compare_the_ffns_of_all_layers():
    config = [*SMALL, *MIXED, DENSE_FIRST]
    model = build_model(config)
    counted = sum(p.numel() for layer in model.layers for p in layer.ffn.parameters())
    rows = side_by_side([describe(config), describe(SMALL)], ["a", "b"]).splitlines()
    (row,) = [row.split() for row in rows if row.startswith("FFN parameters")]
    dense = 4 * 3 * 16 * 64
    assert row[2:] == [f"{counted:,}", f"{dense:,}", f"(×{dense / counted:.4g})"]


def mixed_run(tiny: list[str]) -> list[str]:
    rest = [o for o in tiny if not o.startswith("ffn")]
    return [*MIXED, "ffn.expert.intermediate_size=12", *rest]


def test_dense_and_moe_layers_train_together_and_load_again(tiny, tmp_path: Path):
    console = Console(file=io.StringIO(), width=200)
    config = compose([*mixed_run(tiny), DENSE_FIRST])
    result = train(config, run_dir=tmp_path / "run", console=console)
    assert set(result["metrics"]["load"]) == {"layers.1.ffn"}
    assert result["ffn"] == "swiglu (layer 0), moe[4×swiglu, top 2] (layer 1)"
    assert math.isfinite(result["metrics"]["val_bpb"])
    model, _, loaded = load_run(tmp_path / "run")
    assert loaded == config
    assert job_id(loaded, {}) == job_id(config, {})
    fresh = build_model(config).layers
    for index, name in ((0, "ffn.up_proj.weight"), (1, "ffn.experts.up_proj.weight")):
        before, after = (dict(x[index].named_parameters())[name] for x in (fresh, model.layers))
        assert not torch.equal(before, after)


def test_a_configuration_saved_before_there_were_slots_loads(tiny, tmp_path: Path):
    config = compose(tiny)
    older = OmegaConf.to_container(config)
    del older["ffns"], older["model"]["layers"]
    RunDirectory.create(tmp_path / "old").write_config(OmegaConf.create(older))
    assert load_config(tmp_path / "old") == config


def test_a_yaml_file_may_hold_the_pattern_with_quotes_or_without(tiny):
    config = compose(mixed_run(tiny))
    for text in ('{"0": dense, "1-": main}', "{0: dense, 1-: main}"):
        config.model.layers = OmegaConf.create(text)
        check(config)
        assert [type(x.ffn).__name__ for x in build_model(config).layers] == ["GatedFFN", "MoE"]


def test_the_blocks_of_the_documentation_run(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rest = [o for o in tiny if not o.startswith("ffn")]
    (line,) = [line for fence in fences("docs/layers.md", "bash") for line in commands(fence)]
    program, *arguments = shlex.split(line)
    assert (program, arguments[-1]) == ("mlpkit", DENSE_FIRST)
    assert main([*arguments, *rest, "training.max_steps=1", "run_dir=out"]) == 0
    assert "├─ layer 0  dense" in capsys.readouterr().out
    assert load_config(tmp_path / "out").model.layers == {0: "dense", "1-": "main"}
    for fence in fences("docs/layers.md", "python"):
        exec(compile(fence.text, "docs/layers.md", "exec"), {})
    assert "├─ layers 0,2 ×2  dense, each:" in capsys.readouterr().out


def test_the_tables_of_the_documentation_hold():
    slots = {
        "null": "mmmmmm",
        '{"0-1": dense, "2-": main}': "ddmmmm",
        '{"0": dense}': "dmmmmm",
        '{"0,2-3": dense, "5": big}': "dmddmb",
        "{every: 2, others: dense}": "dmdmdm",
        "{every: 3, offset: 0, slot: dense}": "dmmdmm",
        "[dense, main, main, main, main, dense]": "dmmmmd",
    }
    assert table("docs/layers.md", "Patterns") == list(slots)
    for pattern, letters in slots.items():
        found = layer_slots(yaml.safe_load(pattern), 6)
        assert "".join(slot[0] for slot in found) == letters
    shown = [cell.replace("`", "") for cell in table("docs/layers.md", "Patterns of Hugging Face")]
    assert shown == [", ".join(keys) for keys, _ in SPELLINGS]


def test_a_sweep_over_patterns_trains_and_an_unknown_slot_is_refused(
    tiny, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    rest = [*(o for o in tiny if not o.startswith("ffn")), "training.max_steps=1"]
    line = [
        "train",
        "-m",
        "ffn=moe",
        "ffn.backend=loop",
        "+ffn@ffns.dense=swiglu",
        f"{DENSE_FIRST},null",
    ]
    assert main([*line, *rest]) == 0
    assert "2 ok, 0 failed" in capsys.readouterr().out
    assert main([*line, *rest]) == 0  # the same two jobs
    assert capsys.readouterr().out.count("done before, val_bpb") == 2
    assert main(["train", "ffn=moe", DENSE_FIRST]) == 2
    assert "names the slot 'dense'" in capsys.readouterr().err

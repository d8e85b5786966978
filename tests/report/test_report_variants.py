"""Variants: what makes them, what they are called, and which may be ranked together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from synthetic import FAILING, MOE, NAIVE, SWIGLU, Look, write_run, write_sweep

from mlpkit.report.naming import Subject, name_variants, typed_overrides
from mlpkit.report.records import Run
from mlpkit.report.runs import find_runs
from mlpkit.report.variants import flatten, identity, make_variants, planned_tokens


def run(name: str, *overrides: str, seed: int = 0, status: str = "ok", **config) -> Run:
    """A run from memory, with a nested configuration."""
    return Run(
        path=Path(name),
        id=name,
        status=status,
        config={"seed": seed, **config},
        overrides=overrides,
        result={
            "data": {"fingerprint": "f", "tokenizer": "t"},
            "metrics": {"val_bpb": 1.5, "tokens": 100},
            "started": f"2026-01-01T00:00:0{seed}",
        },
    )


def names(*runs: Run) -> list[str]:
    return [variant.name for variant in make_variants(runs)[0]]


def subject(*overrides: str, **config) -> Subject:
    return Subject(flatten(config), typed_overrides(overrides), config["ffn"]["name"])


def test_seeds_and_paths_make_no_variant():
    swiglu = {"ffn": {"name": "swiglu"}, "training": {"log_every": 1, "max_steps": 5}}
    often = {"ffn": {"name": "swiglu"}, "training": {"log_every": 2, "max_steps": 5}}
    (variant,), axes, warnings = make_variants(
        [
            run("a", seed=0, run_dir="x", **swiglu),
            run("b", seed=1, run_dir="y", data={"path": "/data"}, **swiglu),
            run("c", seed=2, data={"path": "/elsewhere"}, resume="auto", keep_going=False, **often),
        ]
    )
    assert (variant.name, variant.seeds_ok, axes, warnings) == ("swiglu", (0, 1, 2), (), [])


def test_what_is_trained_makes_variants():
    base = {"ffn": {"name": "swiglu"}, "training": {"learning_rate": 0.1}}
    other = {"ffn": {"name": "swiglu"}, "training": {"learning_rate": 0.2}}
    assert names(run("a", **base), run("b", **other)) == [
        "swiglu · learning_rate=0.1",
        "swiglu · learning_rate=0.2",
    ]


def test_the_other_fingerprint_is_another_variant():
    a, b = (run(name, ffn={"name": "swiglu"}) for name in "ab")
    b.result["data"]["fingerprint"] = "g"
    variants, _, _ = make_variants([a, b])
    assert [v.name for v in variants] == ["swiglu · fingerprint=f", "swiglu · fingerprint=g"]
    assert {v.group for v in variants} == {0, 1}


def test_names_of_the_program():
    found = name_variants(
        [
            subject("ffn=swiglu", ffn={"name": "swiglu"}, activation=None),
            subject("ffn=naive", "activation=gelu", ffn={"name": "naive"}, activation="gelu"),
            subject("ffn=moe", "ffn/router=mixtral", ffn={"name": "moe", "router": {"k": 2}}),
            subject("ffn=moe", "+ffn/router='forced'", ffn={"name": "moe", "router": {"k": 3}}),
        ]
    )
    assert found.names == [
        "swiglu",
        "naive · activation=gelu",
        "moe · router=mixtral",
        "moe · router=forced",
    ]
    assert [axis.key for axis in found.axes] == ["ffn", "activation", "router"]
    assert found.axes[2].values == ("", "mixtral", "forced")
    assert found.levels[1] == {"ffn": "naive", "activation": "gelu", "router": ""}


def test_a_common_override_is_not_in_the_name():
    found = name_variants(
        [
            subject("ffn=swiglu", "training=quick", ffn={"name": "swiglu"}, training={"steps": 5}),
            subject("ffn=naive", "training=quick", ffn={"name": "naive"}, training={"steps": 5}),
        ]
    )
    assert found.names == ["swiglu", "naive"]


def test_an_override_that_changes_nothing_is_not_an_axis():
    found = name_variants(
        [
            subject(
                "ffn=swiglu", "training=default", ffn={"name": "swiglu"}, training={"steps": 5}
            ),
            subject("ffn=naive", ffn={"name": "naive"}, training={"steps": 5}),
        ]
    )
    assert [axis.key for axis in found.axes] == ["ffn"]


def test_what_was_not_typed_has_its_value_on_the_axis_and_not_in_the_name():
    found = name_variants(
        [
            subject("training.lr=0.1", ffn={"name": "swiglu"}, training={"lr": 0.1}),
            subject(ffn={"name": "swiglu"}, training={"lr": 0.3}),
        ]
    )
    assert found.names == ["swiglu · lr=0.1", "swiglu"]
    assert found.axes[0].values == ("0.1", "0.3")


def test_the_same_last_word_twice_is_told_apart():
    found = name_variants(
        [
            subject("ffn.expert.activation=a", "activation=b", ffn={"name": "m"}, activation="b"),
            subject("ffn.expert.activation=c", "activation=b", ffn={"name": "m", "expert": 1}),
            subject(
                "ffn.expert.activation=c",
                "activation=d",
                ffn={"name": "m", "expert": {"activation": "c"}},
                activation="d",
            ),
        ]
    )
    assert len(set(found.names)) == 3
    assert {axis.key for axis in found.axes} == {"expert.activation", "activation"}


def test_runs_from_python_are_named_by_their_configuration():
    found = name_variants(
        [
            subject(ffn={"name": "naive", "bias": False, "activation": None}),
            subject(ffn={"name": "gated", "bias": False, "activation": None}),
            subject(ffn={"name": "gated", "bias": True, "activation": None}),
        ]
    )
    assert found.names == ["naive · bias=False", "gated · bias=False", "gated · bias=True"]


def test_what_cannot_be_told_apart_is_numbered():
    found = name_variants([Subject({}, {}, "x"), Subject({}, {}, "x")])
    assert found.names == ["x", "x #2"]


def test_a_doubled_seed_counts_once_and_is_said():
    config = {"ffn": {"name": "swiglu"}}
    early, late = run("early", **config), run("late", **config)
    early.result["started"], late.result["started"] = "2026-01-01", "2026-02-01"
    (variant,), _, (warning,) = make_variants([late, early, run("other", seed=1, **config)])
    assert [r.id for r in variant.ok] == ["late", "other"]
    assert warning.key == "doubled"
    assert warning.values == {
        "variant": "swiglu",
        "seed": 0,
        "runs": ["late", "early"],
        "counted": "late",
    }


@pytest.mark.parametrize("score", [None, float("nan"), float("inf"), "1.5", True])
def test_a_score_that_is_no_number_does_not_count(score):
    a = run("a", ffn={"name": "swiglu"})
    a.result["metrics"]["val_bpb"] = score
    (variant,), _, _ = make_variants([a])
    assert variant.ok == ()
    assert variant.runs == (a,)


def test_other_data_tokenizer_or_budget_is_another_group(tmp_path):
    looks = {
        "a": SWIGLU,
        "b": NAIVE,
        "other data": replace(SWIGLU, extra={"data": {"fingerprint": "x", "tokenizer": "bytes"}}),
        "other tokens": replace(MOE, overrides=("ffn=moe", "training.max_steps=500")),
        "other tokenizer": replace(MOE, extra={"data": {"fingerprint": "y", "tokenizer": "bpe"}}),
    }
    for name, look in looks.items():
        write_run(tmp_path / name, look)
    variants, _, _ = make_variants(find_runs(tmp_path))
    groups = {v.runs[0].id: v.group for v in variants}
    assert groups["a"] == groups["b"] == 0  # the largest
    assert len({groups[name] for name in looks}) == 4


def test_broken_and_missing_runs_join_the_variant_that_they_belong_to(tmp_path):
    sweep = write_sweep(tmp_path, (SWIGLU, NAIVE, FAILING), seeds=(0, 1, 2))
    folders = [tmp_path / "multirun" / job["id"] for job in json.loads(sweep.read_text())["jobs"]]
    (folders[1] / "result.json").write_text("{")  # a configuration and no result
    (folders[4] / "config.yaml").unlink()  # a result and no configuration
    for file in folders[5].iterdir():  # nothing at all
        file.unlink()
    variants, _, _ = make_variants(find_runs(sweep))
    assert {v.name: [r.status for r in v.runs] for v in variants} == {
        "swiglu": ["ok", "ok", "broken"],
        "naive": ["ok", "ok", "missing"],
        "moe · learning_rate=0.3": ["failed"] * 3,
    }


def test_runs_that_say_nothing_stay_alone(tmp_path):
    for name in "ab":
        write_run(tmp_path / name, SWIGLU)
        (tmp_path / name / "config.yaml").unlink()
        (tmp_path / name / "result.json").write_text("{")
    assert [v.name for v in make_variants(find_runs(tmp_path))[0]] == ["a", "b"]


def test_matched_widths_do_not_stand_in_the_names(tmp_path):
    for index, (look, width) in enumerate([(SWIGLU, 384), (NAIVE, 576)]):
        write_run(tmp_path / str(index), replace(look, overrides=(*look.overrides, "match=params")))
        path = tmp_path / str(index) / "config.yaml"
        config = yaml.safe_load(path.read_text())
        config["ffn"]["intermediate_size"] = width
        path.write_text(yaml.safe_dump(config))
    variants, axes, _ = make_variants(find_runs(tmp_path))
    assert [v.name for v in variants] == ["swiglu", "naive"]
    assert [axis.key for axis in axes] == ["ffn"]
    assert dict(variants[1].key)["ffn.intermediate_size"] == 576


def test_planned_tokens():
    assert planned_tokens({"training": dict(max_steps=5, batch_size=4, sequence_length=3)}) == 60
    assert planned_tokens({"training": {"max_steps": 5}}) is None
    assert planned_tokens({"training": None}) is None


def test_an_identity_is_without_seed_and_path_and_with_fingerprints(tmp_path):
    write_run(tmp_path / "a", Look(overrides=("ffn=swiglu", "data.path=/x", "data.tokenizer=/t")))
    (found,) = find_runs(tmp_path)
    known = identity(found)
    assert not {"seed", "run_dir", "data.path", "data.tokenizer"} & set(known)
    assert known["data.fingerprint"] == "5e1f" * 4
    assert known["training.max_steps"] == 1000

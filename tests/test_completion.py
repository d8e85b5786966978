"""Completion: what the query answers to a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlpkit.cli import VERBS, main
from mlpkit.cli.completion import answer
from mlpkit.cli.completion.lines import split_line
from mlpkit.compose import conf_dir
from mlpkit.configs.run import ModelConfig, TrainingConfig
from mlpkit.plugins import registries

BREAKS = " \t\n\"'@><=;|&(:"  # bash's default COMP_WORDBREAKS


def complete(line: str) -> list[str]:
    return answer([], {"COMP_LINE": f"mlpkit {line}"})


def presets(group: str) -> set[str]:
    return {path.stem for path in (Path(conf_dir()) / group).glob("*.yaml")}


def test_an_empty_word_offers_the_verbs_and_a_dash_the_flags() -> None:
    assert complete("") == list(VERBS)
    assert complete("comp") == ["completion"]
    assert complete("-") == ["--help", "--version", "--debug"]
    assert complete("--debug tra") == ["train"]


def test_list_and_show_take_kinds_then_names_and_aliases() -> None:
    assert complete("list ") == list(registries().by_noun())
    assert complete("show --json ff") == ["ffn"]
    assert complete("show ffn gl") == ["glu"]
    assert set(registries().ffn.names()) <= set(complete("list ffn "))
    assert complete("list nothing ") == []
    assert complete("list ffn swiglu ") == []


@pytest.mark.parametrize("verb", ["train", "describe"])
def test_groups_offer_registered_names_and_presets(verb: str) -> None:
    ffns = set(registries().ffn.names()) | presets("ffn")
    assert complete(f"{verb} ffn=") == [f"ffn={name}" for name in sorted(ffns)]
    routers = set(registries().router.names()) | presets("ffn/router")
    assert set(complete(f"{verb} ffn/router=")) == {f"ffn/router={name}" for name in routers}
    assert set(complete(f"{verb} model=")) == {f"model={name}" for name in presets("model")}


def test_the_activation_group_takes_every_activation_and_null() -> None:
    names = [*registries().activation.names(), "null"]
    assert complete("train activation=") == [f"activation={name}" for name in names]


def test_keys_are_those_of_the_schemas() -> None:
    fields = {f"model.{name}=" for name in ModelConfig.__dataclass_fields__}
    assert set(complete("train model.")) == fields
    fields = {f"training.{name}=" for name in TrainingConfig.__dataclass_fields__}
    assert set(complete("train -m training.")) == fields
    assert complete("train lint.") == ["lint.allow="]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train ffn.inter", ["ffn.intermediate_size="]),
        ("train ffn=gated ffn.inter", ["ffn.intermediate_size="]),
        ("train f", ["ffn=", "ffn/", "ffn.", "ffns."]),
        ("train ffn/r", ["ffn/router="]),
        ("train +mod", ["+model="]),
        ("train ~act", ["~activation"]),
        ("train hydra.sweepe", ["hydra.sweeper."]),
        ("train ffn.name", []),
        ("train training.precision=", ["auto", "float32", "bf16"]),
        ("train training.device=c", ["cpu", "cuda"]),
        ("train model.qk_norm=", ["true", "false"]),
        ("train model.hidden_size=", ["128"]),
        ("train ffn=nope ffn.", []),
        ("train ffn=swiglu 'ffn=gate", ["gated"]),
        ("train ffn.activation=gelu_1", ["gelu_10"]),
        ("train ffn.activation=nu", ["null"]),
        ("train nonsense.", []),
        ("train nonsense=", []),
        ("nonsense ", []),
        ("completion ", ["bash", "zsh", "fish"]),
        ("completion bash ", []),
        ("train --cf", ["--cfg"]),
        ("train --cfg ", ["job", "hydra", "all"]),
        ("train -c j", ["job"]),
        ("train --hel", ["--help"]),
        ("train -m", ["-m"]),
        ("describe --js", ["--json"]),
        ("generate run --top", ["--top-k"]),
        ("generate run --top-k ", []),
    ],
)
def test_a_line_is_completed(line: str, expected: list[str]) -> None:
    word = split_line(line)[0][-1]
    key = word.partition("=")[0] + "=" if "=" in word else ""
    assert complete(line) == [key + value for value in expected]


def test_the_top_level_hides_hydra_until_it_is_asked_for() -> None:
    found = complete("train ")
    assert {"ffn=", "ffn.", "ffn/", "model.", "activation=", "seed="} <= set(found)
    assert not any("hydra" in candidate for candidate in found)
    assert {"hydra.", "hydra/"} & {c[:6] for c in complete("train hyd")}


@pytest.mark.parametrize(
    "before", ["activation=gelu", "activation=null,relu", "seed=x", "'model=glob(*)'", "-m ffn=a"]
)
def test_other_overrides_on_the_line_do_not_silence_a_key(before: str) -> None:
    assert "model.num_layers=" in complete(f"train {before} model.num_l")


def test_the_last_value_of_a_sweep_is_completed_and_its_first_gives_the_keys() -> None:
    assert complete("train -m ffn=naive,gate") == ["ffn=naive,gated"]
    assert complete("train -m training.precision=auto,b") == ["training.precision=auto,bf16"]
    assert "ffn.intermediate_size=" in complete("train -m ffn=gated,swiglu ffn.")


def test_paths_are_completed_for_values_that_begin_as_one_and_for_path_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outputs").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "outside.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert complete("generate o") == ["outputs/", "outside.txt"]
    assert complete("train run_dir=./o") == ["run_dir=./outputs/", "run_dir=./outside.txt"]
    assert complete(f"train run_dir={tmp_path}/out") == [
        f"run_dir={tmp_path}/outputs/",
        f"run_dir={tmp_path}/outside.txt",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train ffn=swig", ["swiglu"]),
        ("train ffn.inter", ["ffn.intermediate_size="]),
        ("train 'ffn=swig", ["ffn=swiglu"]),  # within quotes bash breaks no word
        ('train "ffn=swig', ["ffn=swiglu"]),
        ("show ffn gate", ["gated"]),
    ],
)
def test_bash_gets_what_follows_its_last_word_break(line: str, expected: list[str]) -> None:
    env = {"COMP_LINE": f"mlpkit {line}", "COMP_WORDBREAKS": BREAKS}
    assert answer([], env) == expected


def test_words_given_one_by_one_answer_like_a_line() -> None:
    assert (
        answer(["mlpkit", "train", "ffn=swig"], {}) == complete("train ffn=swig") == ["ffn=swiglu"]
    )
    assert answer(["mlpkit", "train", "'ffn=swig"], {}) == ["ffn=swiglu"]


def test_an_unknown_shell_is_refused_and_the_query_is_not_advertised(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["completion", "ksh"])
    assert "ksh" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["completion", "--help"])
    assert "query" not in capsys.readouterr().out

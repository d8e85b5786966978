"""Composing: names into a typed configuration, and one helpful error for whatever is wrong."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from mlpkit import plugins
from mlpkit.build import build_model
from mlpkit.compose import (
    GROUPS,
    ConfigError,
    RegistrySource,
    check,
    compose,
    conf_dir,
    quote_null,
)
from mlpkit.registry import Provider
from mlpkit.schema import SchemaError
from mlpkit.specs import FFNSpec

CONF = Path(__file__).parents[1] / "conf"
FILES = sorted(path.relative_to(CONF).with_suffix("") for path in CONF.glob("**/*.yaml"))


def plain(*overrides):
    return OmegaConf.to_container(compose(overrides), resolve=True)


def python(code, **options):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], text=True, capture_output=True, **options
    )


def test_the_default_is_a_single_dense_swiglu_and_nothing_of_moe():
    config = plain()
    assert config["ffn"] == {
        "name": "swiglu",
        "activation": None,
        "intermediate_size": None,
        "bias": False,
        "dropout": 0.0,
    }
    assert config["activation"] is None
    assert config.pop("parallel")["expert"] == 1  # asks nothing of the model
    text = OmegaConf.to_yaml(OmegaConf.create(config))
    assert not re.search(r"moe|router|expert|balance|_target_", text)


# overrides → the offending key and value, and the nearest right thing
WRONG = {
    "ffn=swigul": r"unknown ffn 'swigul'; did you mean 'swiglu'\?.*gated, .*naive, .*swiglu",
    "ffn.intermediate_sise=3": r"unknown key 'ffn.intermediate_sise'; did you mean "
    r"'ffn.intermediate_size'\?",
    "+ffn.intermediate_sise=3": r"'ffn.intermediate_sise'; did you mean 'ffn.intermediate_size'",
    "++ffn.anything=1": r"unknown key 'ffn.anything' \(ffn 'swiglu' has: .*bias",
    "+ffn.anything=1": r"unknown key 'ffn.anything' \(ffn 'swiglu' has: .*bias",
    "+ffn._target_=os.system": r"unknown key 'ffn._target_'",
    "+model._target_=os.system": r"unknown key 'model._target_'",
    "+_target_=os.system": r"unknown key '_target_'",
    "ffn.name=gated": r"ffn.name is 'gated'.*those of 'swiglu'; write ffn=gated",
    "ffn.name=moe": r"ffn.name is 'moe'.*those of 'swiglu'; write ffn=moe",
    "ffn=[swiglu,gated]": r"ffn takes one name; found \[swiglu,gated\] ",
    "ffn.name=mol": r"ffn: unknown ffn 'mol'",
    "ffn.name=null": r"ffn.name",
    "model.hidden_size=abc": r"model.hidden_size: Value 'abc'.*Integer",
    "model.hidden_size=129": r"model.hidden_size 129 .*use model.hidden_size 128 or 136",
    "model.hidden_size=0": r"model.hidden_size is 0; it must be at least 1",
    "model.hidden_size=null": r"model.hidden_size cannot be null; give it a value",
    "model.num_key_value_heads=3": r"num_key_value_heads 3; .*fit: 1, 2, 4",
    "ffn.intermediate_size=-5": r"ffn.intermediate_size is -5; .* null for 8/3",
    "ffn.intermediate_size=8/2": r"ffn.intermediate_size is '8/2'.*8/3, 4x, pi",
    "ffn.intermediate_size=3000000000": r"is 3000000000; it must be at most 2147483647",
    "ffn.intermediate_size=1.5": r"ffn.intermediate_size: Value '1.5'",
    "ffn.intermediate_size=true": r"ffn.intermediate_size: Value 'True'",
    "ffn.bias=maybe": r"ffn.bias: Value 'maybe' is not a valid bool",
    "ffn.bias=???": r"ffn.bias has no value; set it: ffn.bias=VALUE",
    "ffn.dropout=1": r"ffn.dropout is 1.0; it must be below 1",
    "ffn.dropout=nan": r"ffn.dropout is nan; it must be at least 0",
    "activation=gelo": r"unknown activation 'gelo'; did you mean 'gelu'\?",
    "ffn.activation=gelo": r"ffn.activation: unknown activation 'gelo'; did you mean 'gelu'\?",
    "ffn.activation=3": r"ffn.activation is 3; give the name of one of: .*gelu",
    "ffn.activation=[gelu]": r"ffn.activation is \['gelu'\]; give the name of one of: ",
    "ffn.activation={slope: 1}": r"ffn.activation.name is None; give one of: ",
    "ffn.activation={name: leaky_relu, negative_slop: 1}": r"unknown key "
    r"'ffn.activation.negative_slop'; did you mean 'ffn.activation.negative_slope'",
    "ffn.activation={name: leaky_relu, negative_slope: x}": r"ffn.activation: Value 'x'.*Float",
    "ffn.activation={name: gelu, _target_: os.system}": r"key 'ffn.activation._target_'",
    "activation={name: gelo}": r"activation: unknown activation 'gelo'; did you mean 'gelu'",
    "modle=tiny": r"unknown key 'modle'; did you mean 'model'\?",
    "model=tinny": r"unknown model 'tinny'; did you mean 'tiny'\?",
    "model=5": r"model is 5; give a name \(minimind, nano, small, tiny\)",
    "model=null": r"model is null; give a name \(minimind, nano, small, tiny\)",
    "training=slow": r"unknown training 'slow' \(there are: default, lesson, quick\)",
    "training.max_steps=0": r"training.max_steps is 0; it must be at least 1 \(optimizer steps\)",
    "training.max_steps=???": r"training.max_steps has no value",
    "training.max_step=5": r"'training.max_step'; did you mean 'training.max_steps'",
    "training.learning_rate=nan": r"training.learning_rate is nan; it must be above 0",
    "training.learning_rate=inf": r"training.learning_rate is inf; give a finite number",
    "training.learning_rate=0": r"training.learning_rate is 0.0; it must be above 0",
    "training.min_learning_rate_ratio=2": r"is 2.0; it must be at most 1 ",
    "training.beta1=1": r"training.beta1 is 1.0; it must be below 1",
    "training.precision=bf61": r"training.precision is 'bf61'; did you mean 'bf16'\? .*float32",
    "seed=-1": r"seed is -1; it must be at least 0",
    "seed=${nope}": r"seed: Interpolation key 'nope' not found",
    "run_dir=${oc.env:NO_SUCH_VARIABLE}": r"run_dir: .*NO_SUCH_VARIABLE",
    "ffn.activation=${nope}": r"ffn.activation: Interpolation key 'nope'",
    "lint.allow=3": r"lint.allow",
    "+x=1": r"unknown key 'x' \(the configuration has: seed, activation",
    "++x.y=1": r"unknown key 'x'",
    "~ffn": r"ffn is nothing; give the name of one of: .*gated, .*naive, .*swiglu",
    "~data": r"data is nothing; give the name of one of: hf, jsonl, parquet, pystdlib, text",
    "~seed": r"seed has no value; set it: seed=VALUE",
    "~lint": r"lint has no value",
    "lint=${seed}": r"lint is 0; drop lint=, and change its keys one by one",
    "~training.max_steps": r"training.max_steps: .*deletion",
    "~nothing": r"'nothing' does not exist",
    "ffn=null": r"ffn is nothing; give the name of one of",
    "ffn={name: gated}": r"ffn.name is 'gated'.*write ffn=gated",
    "ffn=gated,naive": r"ffn=gated,naive: several values are several runs: add -m",
    "ffn/router=topk": r"the chosen ffn has no router to choose; .*drop ffn/router=",
    "ffn": r"ffn.*EQUAL",
    "=3": r"=3: ",
    "data=txt": r"unknown data 'txt'; did you mean 'text'",
    "data.path=x": r"unknown key 'data.path'",
    "hydra=1": r"hydra=1",
}


WRONG_IN_A_MIXTURE = {
    "ffn.router=null": r"ffn.router is nothing; give the name of one of: .*topk",
    "ffn.expert=null": r"ffn.expert is nothing; give the name of one of: .*swiglu",
    "ffn.backend=null": r"ffn.backend is nothing; give the name of one of: .*loop",
    "ffn.num_experts=1000000000": r"ffn.num_experts is 1000000000; it must be at most 10000 \(E\)",
    "ffn.num_experts_per_tok=1000000000": r"num_experts_per_tok is 1000000000; .* at most 10000",
    "ffn.router.n_group=1000000000": r"ffn.router.n_group is 1000000000; .* at most 10000",
    "ffn.latent_size=1000000000000": r"ffn.latent_size is 1000000000000; .* at most 2147483647",
    "ffn.router.routed_scaling_factor=nan": r"ffn.router.routed_scaling_factor is nan; .*finite",
}


@pytest.mark.parametrize("override", WRONG_IN_A_MIXTURE)
def test_a_part_or_number_that_a_mixture_cannot_do_without_is_asked_for(override):
    with pytest.raises(ConfigError, match=WRONG_IN_A_MIXTURE[override]):
        compose(["ffn=moe", override])


@pytest.mark.parametrize("override", WRONG)
def test_a_wrong_override_is_answered_with_key_value_and_the_way_out(override):
    with pytest.raises(ConfigError) as error:
        compose([override])
    message = str(error.value)
    assert re.search(WRONG[override], message, re.DOTALL), message
    assert error.value.exit_code == 2
    assert "full_key" not in message  # OmegaConf's internals


def test_an_unread_activation_is_refused_until_it_is_allowed():
    overrides = ["activation=gelu", "ffn.activation=relu"]
    with pytest.raises(ConfigError, match=r"activation is set, .* ffn\.activation is set too"):
        compose(overrides)
    assert compose([*overrides, "lint.allow=[unread-activation]"]).ffn.activation == "relu"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["activation=null"], None),
        (["activation=gelu"], {"name": "gelu"}),
        (
            ["activation=leaky_relu", "activation.negative_slope=0.2"],
            {"name": "leaky_relu", "negative_slope": 0.2},
        ),
        (
            ["activation={name: leaky_relu, negative_slope: 0.2}"],
            {"name": "leaky_relu", "negative_slope": 0.2},
        ),
    ],
)
def test_an_activation_is_null_a_name_or_a_mapping(overrides, expected):
    assert plain(*overrides)["activation"] == expected


@pytest.mark.parametrize("value", ["gelu", {"name": "leaky_relu", "negative_slope": 0.2}])
def test_an_ffn_s_own_activation_is_a_name_or_a_mapping(value):
    text = value if isinstance(value, str) else "{name: leaky_relu, negative_slope: 0.2}"
    assert plain(f"ffn.activation={text}")["ffn"]["activation"] == value


def test_an_alias_chooses_the_entry_under_its_name():
    assert plain("ffn=glu") == plain("ffn=gated")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("activation=null", "activation='null'"),
        ("activation=null,relu", "activation='null',relu"),
        ("ffn/expert=null", "ffn/expert='null'"),
        ("activation='null'", "activation='null'"),
        ("activation=nullify", "activation=nullify"),
        ("run_dir=null", "run_dir=null"),
        ("ffn.activation=null", "ffn.activation=null"),
        ("~ffn", "~ffn"),
    ],
)
def test_null_is_quoted_where_hydra_expects_a_name(given, expected):
    assert quote_null(given) == expected


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_shipped_file_composes_and_builds(path):
    group, name = path.parent.as_posix(), path.name
    if group == ".":
        assert name == "config"
        config = compose()
    elif group == "ffn/balance":
        config = compose(["ffn=moe", f"{group}={name}", "ffn.router.selection_bias=true"])
    elif group.startswith("ffn/"):
        group_schema = RegistrySource("mlpkit", "mlpkit://")
        options = OmegaConf.load(CONF / path.with_suffix(".yaml"))
        (base, own) = options.pop("defaults")
        assert own == "_self_"
        assert group_schema.is_config(f"{group}/{base}")
        schema = group_schema.load_config(f"{group}/{base}").config
        assert OmegaConf.merge(schema, options).name == base
        return
    else:
        config = compose([f"{group}={name}"])
    if config.model.num_layers * config.model.hidden_size > 2000:  # the same shapes, fewer times
        config.model.num_layers = 1
    with torch.device("meta"):
        model = build_model(config)
    assert model.embed_tokens.embedding_dim == config.model.hidden_size


def test_the_result_is_the_same_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("seed: 7")
    here = plain("ffn=gated", "model=small")
    monkeypatch.chdir(tmp_path)
    assert plain("ffn=gated", "model=small") == here
    assert list(tmp_path.iterdir()) == [tmp_path / "conf"]  # and leaves nothing behind


def test_composing_the_default_and_the_built_in_ffns_imports_no_torch():
    code = (
        "import sys; from mlpkit.compose import compose\n"
        "for ffn in ('swiglu', 'naive', 'gated'): compose([f'ffn={ffn}', 'data=text'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    run = python(code)
    assert (run.returncode, run.stderr) == (0, "")


def test_another_hydra_program_sees_nothing_of_mlpkit(tmp_path):
    (tmp_path / "config.yaml").write_text("x: 1")
    code = (
        "import hydra, sys\n"
        "from hydra.core.global_hydra import GlobalHydra\n"
        f"with hydra.initialize_config_dir({str(tmp_path)!r}, version_base='1.3'):\n"
        "    assert hydra.compose('config') == {'x': 1}\n"
        "    loader = GlobalHydra.instance().config_loader()\n"
        "    print(loader.get_group_options('ffn'), [s.path for s in loader.get_sources()])\n"
        "sys.exit(any(name.startswith('mlpkit') for name in sys.modules))"
    )
    run = python(code, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("[] ")
    assert "mlpkit://" not in run.stdout


def test_a_hydra_program_that_composes_here_has_its_own_configuration_back(tmp_path):
    (tmp_path / "config.yaml").write_text("x: 1")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        assert compose(["ffn=naive"]).ffn.name == "naive"
        with pytest.raises(ConfigError):
            compose(["ffn=nix"])
        assert hydra_compose("config") == {"x": 1}


@pytest.mark.parametrize("group", GROUPS)
def test_the_source_lists_a_group_s_entries_and_knows_its_own(group):
    source = RegistrySource("mlpkit", "mlpkit://")
    entries = plugins.registries().by_noun()[GROUPS[group]].names()
    assert [name for name in source.list(group, None) if name in entries] == entries
    assert all(source.is_config(f"{group}/{name}") for name in [*entries, "null"])
    assert not source.is_config(f"{group}/nope")
    assert source.is_group(group)
    assert not source.is_group(f"{group}/deeper")


class Stranger:
    def __init__(self, *, hidden_size: int, rank: int, activation=None, scale: float = 1.0):
        raise AssertionError("composing builds nothing")


@pytest.fixture
def strangers(monkeypatch):
    loaded = plugins.load()
    specs = [
        FFNSpec(name="lowrank", target=Stranger),
        FFNSpec(name="lost", target="mlpkit_lost.ffn:Lost"),
    ]
    loaded.registries.ffn.add(specs, Provider("test"))
    monkeypatch.setattr(plugins, "load_once", lambda: loaded)


@pytest.mark.usefixtures("strangers")
def test_a_plugin_s_ffn_is_chosen_and_checked_like_a_built_in():
    assert plain("ffn=lowrank", "ffn.rank=3")["ffn"] == {
        "name": "lowrank",
        "rank": 3,
        "activation": None,
        "scale": 1.0,
    }
    with pytest.raises(ConfigError, match=r"ffn\.rank has no value; set it: ffn\.rank=VALUE"):
        compose(["ffn=lowrank"])
    with pytest.raises(ConfigError, match=r"ffn\.rank: Value 'x'"):
        compose(["ffn=lowrank", "ffn.rank=x"])
    with pytest.raises(ConfigError, match=r"'ffn\.rang'; did you mean 'ffn\.rank'"):
        compose(["ffn=lowrank", "ffn.rank=2", "ffn.rang=3"])
    with pytest.raises(ConfigError, match=r"'lowrang'; did you mean 'lowrank'"):
        compose(["ffn=lowrang"])
    with pytest.raises(SchemaError, match=r"ffn 'lost' .* from mlpkit_lost\.ffn:Lost"):
        compose(["ffn=lost"])


def test_a_configuration_that_was_changed_after_composing_is_checked_again():
    config = compose()
    config.model.hidden_size = 130
    with pytest.raises(ConfigError, match=r"hidden_size 130"):
        check(config)


def test_the_shipped_folder_is_found_and_a_missing_one_says_so(monkeypatch, tmp_path):
    assert Path(conf_dir()) == CONF
    module = sys.modules[conf_dir.__module__]
    monkeypatch.setattr(module, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    monkeypatch.setattr(module, "files", lambda package: tmp_path)
    with pytest.raises(FileNotFoundError, match="reinstall mlpkit"):
        conf_dir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").touch()
    assert Path(conf_dir()) == tmp_path / "conf"


KEYS = st.sampled_from(
    """seed ffn ffn.name ffn.bias ffn.activation ffn.activation.name model model.hidden_size
    model.head_dim activation data data.path training training.max_steps lint lint.allow
    run_dir ffn/router ffn@model hydra hydra.run.dir x x.y _target_ defaults""".split()  # noqa: SIM905
)
VALUES = st.one_of(
    st.sampled_from(
        """swiglu gelu tiny text null ??? true 1 0 -1 1e400 nan {} [] {name:gelu} {name:[a]}
        [1,{a:b}] ${seed} ${ffn.name} ${ffn} ${x:y} ${ a,b range(3) '' "null" ../x""".split()  # noqa: SIM905
    ),
    st.integers().map(str),
    st.text(max_size=6),
)
OVERRIDES = st.one_of(
    st.builds("{}{}={}".format, st.sampled_from(["", "", "+", "++", "~"]), KEYS, VALUES),
    KEYS.map("~{}".format),
    st.text(max_size=8),
)


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(OVERRIDES, min_size=1, max_size=2))
def test_whatever_is_written_gives_a_configuration_or_one_config_error(overrides):
    try:
        config = compose(overrides)
    except ConfigError:
        return
    assert config.ffn.name in plugins.registries().ffn
    assert isinstance(config.training.max_steps, int)

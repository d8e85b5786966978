"""Names into modules: options, which activation applies, labels, and paired initial values."""

import copy
import pickle

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from mlpkit import plugins
from mlpkit.build import (
    BuildError,
    build_activation,
    build_data,
    build_ffn,
    build_model,
    ffn_label,
    seeded,
)
from mlpkit.compose import ConfigError, compose
from mlpkit.ffns import GatedFFN, NaiveFFN
from mlpkit.registry import Provider, UnknownNameError
from mlpkit.specs import FFNSpec

SMALL = ["model.hidden_size=16", "model.num_layers=2"]
SIZES = {"hidden_size": 6, "intermediate_size": 10}


class Stranger(nn.Module):
    """As anybody writes it: the activation's default is a module."""

    def __init__(self, *, hidden_size, rank=2, activation=nn.Tanh()):  # noqa: B008
        super().__init__()
        if rank < 1:
            raise ValueError(f"rank is {rank}")
        self.down = nn.Linear(hidden_size, rank)
        self.up = nn.Linear(rank, hidden_size)
        self.activation = activation

    def forward(self, x):
        return self.up(self.activation(self.down(x)))


class Demanding(nn.Module):
    def __init__(self, *, hidden_size, activation):
        super().__init__()


@pytest.fixture
def strangers(monkeypatch):
    loaded = plugins.load()
    monkeypatch.setattr(plugins, "load_once", lambda: loaded)
    specs = [
        FFNSpec(name="stranger", target=Stranger),
        FFNSpec(name="demanding", target=Demanding),
        FFNSpec(name="a_swiglu", target=Stranger, default_activation="silu", family="gated"),
        FFNSpec(name="no_module", target=lambda *, hidden_size: "text"),
        FFNSpec(name="no_host", target=lambda *, width: nn.Identity()),
        FFNSpec(name="open", target=lambda **options: nn.Linear(options["hidden_size"], 3)),
    ]
    loaded.registries.ffn.add(specs, Provider("test"))


def activation_of(*arguments, **options):
    return build_ffn(*arguments, **SIZES, **options).activation


@pytest.mark.parametrize(
    ("name", "kind", "default"),
    [
        ("naive", NaiveFFN, "relu"),
        ("gated", GatedFFN, "sigmoid"),
        ("glu", GatedFFN, "sigmoid"),
        ("swiglu", GatedFFN, "silu"),
    ],
)
def test_a_name_builds_its_class_with_its_default_activation(name, kind, default):
    module = build_ffn(name, **SIZES)
    assert type(module) is kind
    x = torch.linspace(-3, 3, 7)
    assert torch.equal(module.activation(x), build_activation(default)(x))


@pytest.mark.parametrize(
    ("own", "inherited", "expected"),
    [
        (None, None, "silu"),
        (None, "gelu", "gelu"),
        ("relu", "gelu", "relu"),
        ("relu", None, "relu"),
        ({"name": "leaky_relu", "negative_slope": 0.25}, "gelu", "leaky_relu"),
        (None, {"name": "leaky_relu", "negative_slope": 0.25}, "leaky_relu"),
    ],
)
def test_the_ffn_s_own_activation_wins_then_the_run_s_then_the_entry_s(own, inherited, expected):
    activation = activation_of("swiglu", activation=own, inherited_activation=inherited)
    options = {"negative_slope": 0.25} if expected == "leaky_relu" else {}
    x = torch.linspace(-3, 3, 7)
    assert torch.equal(activation(x), build_activation(expected, **options)(x))


def test_a_ready_activation_is_taken_as_it_is():
    ready = nn.Softsign()
    assert activation_of("naive", activation=ready) is ready


@pytest.mark.usefixtures("strangers")
def test_without_a_name_a_stranger_keeps_the_constructor_s_own_activation():
    x = torch.linspace(-3, 3, 7)
    for options in ({}, {"activation": None}):
        built = build_ffn("stranger", hidden_size=4, **options)
        assert torch.equal(built.activation(x), x.tanh())
    inherited = build_ffn("stranger", hidden_size=4, inherited_activation="relu")
    assert torch.equal(inherited.activation(x), x.relu())
    model = build_model([*SMALL, "ffn=stranger"])
    assert torch.equal(model.layers[0].ffn.activation(x), x.tanh())


@pytest.mark.parametrize("name", ["silu", "prelu"])
def test_two_builds_share_neither_activation_nor_parameters(name):
    first, second = (
        build_ffn("gated", activation=name, **SIZES),
        activation_of("gated", activation=name),
    )
    assert first.activation is not second
    model = build_model([*SMALL, "ffn=gated", f"activation={name}"])
    instances = [block.ffn.activation for block in model.layers]
    assert len({id(instance) for instance in instances}) == len(instances)
    parameters = [p for instance in instances for p in instance.parameters()]
    assert len({p.data_ptr() for p in parameters}) == len(parameters)
    assert bool(parameters) == (name == "prelu")


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"name": "swiglo"}, UnknownNameError, r"'swiglo'; did you mean 'swiglu'"),
        (
            {"name": "swiglu", "intermediate_sise": 3},
            BuildError,
            r"ffn 'swiglu' has no option 'intermediate_sise'; did you mean 'intermediate_size'",
        ),
        ({"name": "naive", "rank": 3}, BuildError, r"'rank' \(options: activation, intermed"),
        ({"name": "naive", "activation": "gelo"}, UnknownNameError, r"did you mean 'gelu'"),
        ({"name": "naive", "dropout": 2.0}, BuildError, r"ffn 'naive': .*2.0"),
        ({"name": "naive", "intermediate_size": -3}, BuildError, r"ffn 'naive': .*-3"),
        ({"name": "stranger", "rank": 0}, BuildError, r"ffn 'stranger': rank is 0"),
        ({"name": "stranger", "rang": 1}, BuildError, r"'rang'; did you mean 'rank'"),
        ({"name": "demanding"}, BuildError, r"'demanding' needs an activation"),
        ({"name": "no_module"}, BuildError, r"'no_module' gave a str, not an nn.Module"),
        ({"name": "no_host"}, BuildError, r"'no_host' has no option 'hidden_size'"),
        ({"name": {"bias": True}}, BuildError, r"mapping with a name; found {'bias': True}"),
        ({"name": "naive", "activation": {"slope": 1}}, BuildError, r"found {'slope': 1}"),
    ],
)
def test_what_cannot_be_built_names_the_part_and_the_nearest_option(arguments, kind, message):
    with pytest.raises(kind, match=message) as error:
        build_ffn(hidden_size=6, **arguments)
    assert error.value.exit_code == 2


@pytest.mark.usefixtures("strangers")
def test_an_open_ended_factory_is_given_whatever_is_written():
    assert build_ffn("open", hidden_size=4, other=1).in_features == 4


def test_a_mapping_has_options_and_keywords_come_on_top():
    module = build_ffn({"name": "naive", "intermediate_size": 5, "bias": True}, hidden_size=6)
    assert tuple(module.up_proj.weight.shape) == (5, 6)
    assert module.up_proj.bias is not None
    other = build_ffn({"name": "naive", "intermediate_size": 5}, hidden_size=6, intermediate_size=7)
    assert other.up_proj.out_features == 7


@pytest.mark.parametrize(
    ("ffn", "inherited", "label"),
    [
        ("swiglu", None, "swiglu"),
        ("swiglu", "gelu", "gated[gelu]"),
        ("swiglu", "sigmoid", "gated"),
        ("swiglu", "swish", "swiglu"),
        ("gated", None, "gated"),
        ("glu", None, "gated"),
        ("gated", "silu", "swiglu"),
        ({"name": "gated", "activation": {"name": "silu"}}, "gelu", "swiglu"),
        ("naive", None, "naive"),
        ("naive", "gelu", "naive[gelu]"),
        ("naive", "silu", "naive[silu]"),
        ({"name": "naive", "activation": "relu"}, "gelu", "naive"),
        (
            "gated",
            {"name": "leaky_relu", "negative_slope": 0.2},
            "gated[leaky_relu(negative_slope=0.2)]",
        ),
        ("geglu", None, "geglu"),
        ("geglu", "gelu", "geglu"),
        ("geglu", "silu", "swiglu"),
        ("reglu", "gelu", "gated[gelu]"),
        ("gated", "gelu", "gated[gelu]"),
        ("bilinear", None, "bilinear"),
        ("output_gated", None, "output_gated"),
        ("low_rank", "gelu", "low_rank[gelu]"),
        ("clamped_gated", "gelu", "clamped_gated"),
    ],
)
def test_a_label_says_what_an_ffn_is_whatever_it_was_called(ffn, inherited, label):
    assert ffn_label(ffn, inherited) == label


@pytest.mark.usefixtures("strangers")
def test_a_stranger_of_the_family_does_not_take_over_the_label():
    assert ffn_label("swiglu") == "swiglu"
    assert ffn_label("gated", "silu") == "swiglu"
    assert ffn_label("a_swiglu") == "a_swiglu"
    assert ffn_label("stranger", "gelu") == "stranger"


def state(*overrides):
    return build_model([*SMALL, *overrides]).state_dict()


def test_one_seed_gives_the_same_initial_values_and_another_one_others():
    first, again, other = state(), state(), state("seed=1")
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = [name for name in first if "norm" not in name]
    assert not any(torch.equal(first[name], other[name]) for name in drawn)
    layers = [first[f"layers.{i}.ffn.up_proj.weight"] for i in range(2)]
    assert not torch.equal(*layers)


@pytest.mark.parametrize(
    "overrides",
    [
        ["ffn=naive"],
        ["ffn=gated", "activation=prelu"],
        ["ffn.intermediate_size=10"],
        ["ffn.bias=true"],
        ["model.tie_word_embeddings=false"],
        ["model.num_layers=3"],
    ],
)
def test_variants_have_equal_values_wherever_they_have_equal_parts(overrides):
    first, other = state(), state(*overrides)
    shared = [name for name in first if ".ffn." not in name]
    assert any("self_attn" in name for name in shared)
    assert all(torch.equal(first[name], other[name]) for name in shared)


def test_gated_and_swiglu_start_from_the_same_weights():
    first, other = state("ffn=swiglu"), state("ffn=gated")
    assert first.keys() == other.keys()
    assert all(torch.equal(first[name], other[name]) for name in first)


def test_building_leaves_torch_s_generator_as_it_was_and_does_not_depend_on_it():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = state()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert all(torch.equal(first[name], value) for name, value in state().items())


def test_seeded_puts_the_generator_back_also_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="inside"), seeded(0, "part"):
        raise ValueError(f"{torch.rand(3)} drawn inside")
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(0, "part"):
        first = torch.rand(3)
    with seeded(0, "other"):
        second = torch.rand(3)
    assert not torch.equal(first, second)


def test_modules_hold_no_configuration_objects_and_can_be_copied_and_pickled():
    model = build_model([*SMALL, "activation={name: leaky_relu, negative_slope: 0.2}"])
    for module in model.modules():
        assert not any(OmegaConf.is_config(value) for value in vars(module).values())
        options = getattr(module, "options", {})
        assert not any(OmegaConf.is_config(value) for value in options.values())
    tokens = torch.tensor([[1, 2, 3]])
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(tokens), model(tokens))


def test_a_model_has_the_sizes_of_its_configuration():
    config = compose([*SMALL, "model.num_layers=3", "model.qk_norm=true", "model.dropout=0.5"])
    model = build_model(config)
    assert len(model.layers) == 3
    assert model.embed_tokens.weight.shape == (257, 16)
    assert model.layers[0].dropout.p == 0.5
    assert model.layers[0].ffn.down_proj.weight.shape == (16, 64)
    assert model(torch.zeros(2, 5, dtype=torch.long)).shape == (2, 5, 257)


def test_a_wrong_configuration_is_refused_however_it_comes():
    with pytest.raises(ConfigError, match="hidden_sise"):
        build_model(["model.hidden_sise=3"])
    config = compose(SMALL)
    config.model.hidden_size = 18
    with pytest.raises(ConfigError, match="hidden_size 18"):
        build_model(config)


def test_build_data_reads_the_configuration_s_source(tmp_path, monkeypatch):
    monkeypatch.setenv("MLPKIT_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text"
    text.mkdir()
    for number in range(40):
        (text / f"{number}.txt").write_text(f"this is text {number}\n" * 5)
    config = compose(["data=text", f"data.path={text}", "data.val_fraction=0.2"])
    dataset = build_data(config)
    assert dataset.meta.source == "mlpkit.data.sources:TextFiles"
    assert dataset.meta.val_fraction == 0.2
    decoded = dataset.tokenizer.decode([*dataset.train.tolist(), *dataset.val.tolist()]).decode()
    assert sorted(decoded.splitlines()) == sorted(
        f"this is text {number}" for number in range(40) for _ in range(5)
    )

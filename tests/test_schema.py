"""Schemas: the signature of a stranger's class or function, and the copies of the built-ins."""

import dataclasses
import inspect
from typing import Literal, Optional

import pytest
import torch
from omegaconf import OmegaConf
from omegaconf.errors import ValidationError
from torch import nn

from mlpkit.configs.data import DataConfig
from mlpkit.plugins import BUILTINS, load
from mlpkit.schema import (
    COMPONENTS,
    HOST_GIVEN,
    SchemaError,
    holds_experts,
    option_parameters,
    schema_of,
)
from mlpkit.specs import ActivationSpec, DataSpec, FFNSpec, resolve

REGISTRIES = load().registries.by_noun()
ENTRIES = [
    pytest.param(noun, spec, id=f"{noun}-{spec.name}")
    for noun, registry in REGISTRIES.items()
    for spec in registry.list()
]


# what a constructor gets as built experts is these options in configuration
EXPERTS = {"experts": ("num_experts", "num_experts_per_tok", "expert", "experts", "backend")}
PLAIN_OF_MOE = ("shared_combine", "latent_size", "capacity_factor", "drop_policy")


class Stranger:
    def __init__(
        self,
        hidden_size: int,
        rank: int,
        *args: object,
        scale: float = 1,
        limit: Optional[float] = None,  # noqa: UP045 - how strangers write it
        size: int | str = 3,
        depth: int = None,  # noqa: RUF013
        mode: Literal["a", "b"] = "a",
        sizes: list[int] = [1, 2],  # noqa: B006
        pair=(1, 2),
        anything="x",
        dtype: torch.dtype = torch.float32,
        activation: nn.Module = nn.SiLU(),  # noqa: B008
        **options: object,
    ):
        raise AssertionError("a schema builds nothing")


def schema_node(target, noun="ffn", kind=FFNSpec):
    return OmegaConf.structured(schema_of(noun, kind(name="foo", target=target)))


def test_a_stranger_s_signature_is_its_schema():
    assert OmegaConf.to_container(schema_node(Stranger)) == {
        "name": "foo",
        "rank": "???",  # no default
        "scale": 1.0,
        "limit": None,
        "size": 3,
        "depth": None,
        "mode": "a",
        "sizes": [1, 2],
        "pair": [1, 2],
        "anything": "x",
        "activation": None,  # a component: null is the constructor's own default
    }  # dtype has a default that YAML cannot hold: it is set in Python


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("rank", 4, "many"),
        ("scale", 0.5, "big"),
        ("limit", 2.5, "high"),
        ("size", "pi", 0.5),
        ("depth", 2, "deep"),
        ("name", "foo", None),
    ],
)
def test_plain_hints_are_checked(key, good, bad):
    node = schema_node(Stranger)
    node[key] = good
    assert node[key] == good
    with pytest.raises(ValidationError):
        node[key] = bad


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limit", None),
        ("depth", None),
        ("mode", 7),
        ("anything", [1]),
        ("activation", {"name": "gelu"}),
    ],
)
def test_null_where_it_is_the_default_and_anything_where_no_plain_hint_is_given(key, value):
    node = schema_node(Stranger)
    node[key] = value
    assert OmegaConf.to_container(node)[key] == value


def test_a_mutable_default_is_not_shared():
    schema = schema_of("ffn", FFNSpec(name="foo", target=Stranger))
    schema().sizes.append(3)
    assert schema().sizes == [1, 2]


def test_the_host_gives_the_hidden_size_and_open_ended_arguments_are_no_options():
    options = option_parameters("ffn", Stranger)
    assert not {"hidden_size", "args", "options", "self"} & set(options)
    assert {"rank", "dtype", "activation"} <= set(options)


def test_an_activation_function_has_its_options_after_the_tensor():
    def bend(z, slope: float = 0.1, *, power: int = 2):
        raise AssertionError

    node = schema_node(bend, "activation", ActivationSpec)
    assert OmegaConf.to_container(node) == {"name": "foo", "slope": 0.1, "power": 2}


def test_an_activation_class_has_no_tensor_in_front():
    class Bend(nn.Module):
        def __init__(self, slope: float = 0.1):
            super().__init__()

    node = schema_node(Bend, "activation", ActivationSpec)
    assert OmegaConf.to_container(node) == {"name": "foo", "slope": 0.1}


def test_a_hint_that_exists_only_for_the_type_checker_is_no_obstacle():
    class Hinted:
        def __init__(self, *, a: "Nowhere" = 1, b: "torch.nowhere.X" = 2):  # noqa: F821
            pass

    assert OmegaConf.to_container(schema_node(Hinted)) == {"name": "foo", "a": 1, "b": 2}


def test_a_data_source_has_what_every_source_has():
    class Feed:
        def __init__(self, *, url: str):
            pass

    node = schema_node(Feed, "data", DataSpec)
    common = [field.name for field in dataclasses.fields(DataConfig)]
    assert list(node) == [*common, "url"]
    assert (node.name, node.tokenizer, node.val_fraction) == ("foo", "bytes", 0.05)
    assert OmegaConf.is_missing(node, "url")


def test_a_config_class_is_taken_as_it_is():
    @dataclasses.dataclass
    class Mine:
        name: str = "foo"

    spec = FFNSpec(name="foo", target="no_such_module:X", config=Mine)
    assert schema_of("ffn", spec) is Mine


@pytest.mark.parametrize(
    ("target", "said"),
    [("no_such_module:X", "No module named 'no_such_module'"), ("math:nope", "nope")],
)
def test_a_target_that_cannot_be_imported_names_the_entry(target, said):
    with pytest.raises(SchemaError, match=rf"ffn 'foo' .* from {target}.*{said}") as error:
        schema_of("ffn", FFNSpec(name="foo", target=target))
    assert error.value.exit_code == 3


def test_an_option_called_name_is_refused_with_the_entry():
    class Named:
        def __init__(self, *, name="x"):
            pass

    with pytest.raises(SchemaError, match=r"ffn 'foo' .*'name'"):
        schema_of("ffn", FFNSpec(name="foo", target=Named))


@pytest.mark.parametrize(("noun", "spec"), ENTRIES)
def test_every_entry_has_a_schema_that_composes_with_its_name(noun, spec):
    node = OmegaConf.structured(schema_of(noun, spec))
    assert node.name == spec.name


@pytest.mark.parametrize(("noun", "spec"), [p for p in ENTRIES if p.values[1].config])
def test_a_config_class_equals_its_constructor_s_signature(noun, spec):
    added = {f.name for f in dataclasses.fields(DataConfig)} if noun == "data" else {"name"}
    fields = [f for f in dataclasses.fields(spec.config) if f.name not in added]
    parameters = option_parameters(noun, resolve(spec.target))
    made_of = EXPERTS if noun == "ffn" and holds_experts(spec) else {}
    names = [option for name in parameters for option in made_of.get(name, (name,))]
    assert {f.name for f in fields} == set(names)
    for field in fields:
        if made_of and field.name not in ("shared", *PLAIN_OF_MOE):
            continue  # configuration names the parts that the constructor gets
        expected = parameters[field.name].default
        if field.name in COMPONENTS and expected is inspect.Parameter.empty:
            expected = None
        assert (field.default, type(field.default)) == (expected, type(expected)), field.name


def test_config_classes_are_being_compared():
    compared = {(noun, spec.name) for noun, spec in (p.values for p in ENTRIES) if spec.config}
    assert {("ffn", "naive"), ("ffn", "gated"), ("ffn", "swiglu"), ("data", "text")} <= compared
    assert set(HOST_GIVEN) == set(REGISTRIES)
    for noun, registry in REGISTRIES.items():
        assert all(registry.provider(name) == BUILTINS for name in registry.names()), noun

"""The schema of a run: plain defaults inside their own limits, a meaning for each, no freezing."""

import dataclasses

import pytest
from omegaconf import OmegaConf

from mlpkit.build import BuildError
from mlpkit.build.moe import build_balance, build_router
from mlpkit.catalogue.ffns import FFNS
from mlpkit.catalogue.routers import BALANCES, ROUTERS
from mlpkit.compose import BOUNDS
from mlpkit.configs.run import LintConfig, ModelConfig, RunConfig, TrainingConfig, option

SCHEMAS = (RunConfig, ModelConfig, TrainingConfig, LintConfig)
FIELDS = [
    pytest.param(field, id=f"{schema.__name__}-{field.name}")
    for schema in SCHEMAS
    for field in dataclasses.fields(schema)
]


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_says_what_it_is_and_its_default_is_allowed(field):
    if dataclasses.is_dataclass(field.default_factory):
        return  # a group, whose own fields are here too
    limits = dict(field.metadata)
    assert len(limits.pop("doc")) > 3
    assert set(limits) <= {*BOUNDS, "choices"}
    for bound, limit in limits.items():
        if bound == "choices":
            assert field.default in limit
        elif field.default is not None:
            assert BOUNDS[bound][0](field.default, limit)


@pytest.mark.parametrize("schema", [*SCHEMAS, *(spec.config for spec in FFNS)])
def test_a_schema_is_keyword_only_and_can_be_changed(schema):
    assert all(field.kw_only for field in dataclasses.fields(schema))
    node = OmegaConf.structured(schema)
    assert not OmegaConf.is_readonly(node)
    assert node == OmegaConf.structured(schema())


def test_an_option_carries_its_limits_to_the_field():
    @dataclasses.dataclass
    class Some:
        x: int = option(3, "things", minimum=1)

    (field,) = dataclasses.fields(Some)
    assert Some().x == 3
    assert dict(field.metadata) == {"doc": "things", "minimum": 1}


@pytest.mark.parametrize("spec", FFNS, ids=lambda spec: spec.name)
def test_a_dense_ffn_has_these_options_and_says_nothing_by_default(spec):
    options = dataclasses.asdict(spec.config())
    silent = {"name": spec.name, "intermediate_size": None, "bias": False, "dropout": 0.0}
    assert silent.items() <= options.items()
    assert options.get("activation") is None
    assert ("activation" in options) == (spec.default_activation is not None)


LIMITED = [
    pytest.param(spec, field, id=f"{spec.name}-{field.name}")
    for spec in (*ROUTERS, *BALANCES)
    for field in dataclasses.fields(spec.config)
    if field.metadata
]


def built(spec, options):
    if spec in ROUTERS:
        sizes = {"hidden_size": 8, "num_experts": 4, "num_experts_per_tok": 2}
        return build_router(spec.name, **sizes, **options)
    return build_balance(spec.name, options)


@pytest.mark.parametrize(("spec", "field"), LIMITED)
def test_the_limits_of_a_router_or_balance_are_those_of_its_constructor(spec, field):
    limits = dict(field.metadata)
    for choice in limits.get("choices", (field.default,)):
        built(spec, {field.name: choice})
    outside = {"choices": "none of them", "minimum": limits.get("minimum", 0) - 1, "below": 1.0}
    for bound in limits.keys() & outside.keys():
        with pytest.raises(BuildError, match=field.name):
            built(spec, {field.name: outside[bound]})

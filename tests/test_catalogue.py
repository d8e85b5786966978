"""What ships: complete facts for every entry, and targets that exist."""

import re

import pytest
import torch

from mlpkit.build import build_ffn
from mlpkit.plugins import load
from mlpkit.schema import option_parameters
from mlpkit.specs import resolve

REGISTRIES = load().registries.by_noun()
ENTRIES = [
    pytest.param(noun, spec, id=f"{noun}-{spec.name}")
    for noun, registry in REGISTRIES.items()
    for spec in registry.list()
]
# an address, or who and then a number, a venue or an address
BY_POSITION = {"in_turn", "padded"}  # of the backend that chooses between two
SOURCE = re.compile(r"https://\S+|[A-Z].*, \S.*")


@pytest.mark.parametrize(("noun", "spec"), ENTRIES)
def test_an_entry_names_a_target_by_text_and_says_what_it_is_in_one_line(noun, spec):
    assert isinstance(spec.target, str)
    assert callable(resolve(spec.target))
    assert spec.summary
    assert "\n" not in spec.summary
    assert not spec.paper or SOURCE.fullmatch(spec.paper)


@pytest.mark.parametrize(("noun", "spec"), ENTRIES)
def test_a_target_s_options_are_keywords(noun, spec):
    target = resolve(spec.target)
    options = option_parameters(noun, target).values()
    assert all(p.kind is p.KEYWORD_ONLY for p in options if p.name not in BY_POSITION)


@pytest.mark.parametrize("spec", REGISTRIES["ffn"].list(), ids=lambda spec: spec.name)
def test_an_ffn_s_facts_hold_for_what_it_builds(spec):
    options = {} if spec.width is None or "." in spec.width else {spec.width: 10}
    module = build_ffn(spec.name, hidden_size=6, **options)
    assert module(torch.zeros(2, 3, 6)).shape == (2, 3, 6)
    if spec.num_params is not None:
        count = resolve(spec.num_params)(6, **options)
        assert count == sum(p.numel() for p in module.parameters())
    if spec.default_activation is not None:
        assert spec.default_activation in REGISTRIES["activation"]
    if spec.family:
        assert resolve(REGISTRIES["ffn"].get(spec.family).target) is resolve(spec.target)

"""Specs: frozen records, and targets that are imported on use."""

import dataclasses
import math

import pytest

from mlpkit.specs import (
    ActivationSpec,
    BackendSpec,
    BalanceSpec,
    DataSpec,
    FFNSpec,
    RouterSpec,
    resolve,
)

KINDS = (ActivationSpec, BackendSpec, BalanceSpec, DataSpec, FFNSpec, RouterSpec)


@pytest.mark.parametrize("kind", KINDS)
def test_a_spec_is_frozen_takes_keywords_alone_and_can_be_a_key(kind):
    spec = kind(name="foo", target="math:sqrt", aliases=["bar"])
    assert {spec: 1}[kind(name="foo", target="math:sqrt", aliases=("bar",))] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.name = "other"
    with pytest.raises(TypeError, match="positional"):
        kind("foo", "math:sqrt")


def test_aliases_that_are_one_text_are_refused_before_its_letters_become_names():
    with pytest.raises(TypeError, match=r"aliases of 'gated' is text; write \('glu',\)"):
        FFNSpec(name="gated", target="math:sqrt", aliases="glu")


def test_a_target_is_text_with_a_colon_or_the_object_itself():
    assert resolve("math:sqrt") is math.sqrt
    assert resolve(math.sqrt) is math.sqrt


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        ("math.sqrt", ValueError, r"'math.sqrt' has no ':'; write 'package.module:attribute'"),
        ("math:sqrr", ImportError, r"'math:sqrr'.*has no attribute 'sqrr'"),
        ("no_such_module_here:x", ImportError, "no_such_module_here"),
    ],
)
def test_a_target_that_leads_nowhere_says_so(target, kind, message):
    with pytest.raises(kind, match=message):
        resolve(target)

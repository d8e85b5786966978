"""The extension surface: one hook per registry, no arguments."""

import dataclasses
import inspect

import pytest

from mlpkit.hookspecs import HOOKS, Hooks
from mlpkit.plugins import Registries

NOUNS = [field.name for field in dataclasses.fields(Registries)]


def test_there_is_one_hook_for_each_registry_in_the_same_order():
    def plural(noun):
        return noun if noun == "data" else f"{noun}s"

    assert list(HOOKS) == [f"mlpkit_{plural(noun)}" for noun in NOUNS]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_takes_nothing_and_says_in_a_sentence_what_it_yields(hook):
    function = getattr(Hooks, hook)
    assert list(inspect.signature(function).parameters) == ["self"]
    assert function.__doc__.startswith("Yields ")
    assert function.__doc__.rstrip().endswith(".")
    with pytest.raises(AssertionError, match="never called"):
        function(Hooks())

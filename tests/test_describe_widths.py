"""The steps shown for a width end in the width that is built."""

import pytest
from torch import nn

from mlpkit import plugins
from mlpkit.build import build_ffn
from mlpkit.describe.parts import mixture_parts
from mlpkit.describe.widths import null_rule, width_steps
from mlpkit.plugins import registries
from mlpkit.registry import Provider
from mlpkit.specs import FFNSpec

RULED = [spec.name for spec in registries().ffn.list() if spec.width == "intermediate_size"]


def inner_width(ffn):
    """The width of a built FFN: the other size of the projection that gives H back."""
    inner = getattr(ffn.down_proj, "inner", ffn.down_proj)  # factorised: two matrices
    return inner.weight.shape[1]


@pytest.mark.parametrize("hidden_size", [16, 100])
@pytest.mark.parametrize("value", [None, "pi", "4x", "llama:1.3:16", 24])
@pytest.mark.parametrize("name", RULED)
def test_the_shown_width_is_the_built_one_dense_and_as_an_expert(name, value, hidden_size):
    ffn = {"name": name, "intermediate_size": value}
    width = inner_width(build_ffn(ffn, hidden_size=hidden_size))
    assert last(width_steps(ffn, hidden_size)) == width
    moe = {"name": "moe", "num_experts": 3, "num_experts_per_tok": 3, "expert": ffn}
    width = inner_width(build_ffn(moe, hidden_size=hidden_size).experts.expert(0))
    (experts,) = [p for p in mixture_parts(moe, hidden_size, None) if p.name == "experts"]
    assert last(experts.width) == width


def last(steps):
    return int(steps.removesuffix(", as given").split()[-1])


@pytest.mark.parametrize(
    ("name", "rule"), [("naive", "4x"), ("swiglu", "8/3"), ("low_rank", "8/3"), ("zero", None)]
)
@pytest.mark.parametrize("hidden_size", [1, 8, 512, 768])
def test_the_rule_of_a_null_width_is_found_by_counting(name, rule, hidden_size):
    assert null_rule(name, hidden_size) == rule


def test_a_strangers_own_rule_is_not_explained(monkeypatch):
    class Own(nn.Linear):
        def __init__(self, *, hidden_size, intermediate_size="mine"):
            super().__init__(hidden_size, hidden_size)

    loaded = plugins.load()
    loaded.registries.ffn.add([FFNSpec(name="own", target=Own)], Provider("test"))
    monkeypatch.setattr(plugins, "load_once", lambda: loaded)
    assert null_rule("own", 8) is None  # every rule counts the same
    assert width_steps("own", 8) == ""
    assert width_steps({"name": "own", "intermediate_size": "mine"}, 8) == ""
    assert width_steps({"name": "own", "intermediate_size": 3}, 8) == "3, as given"

"""The estimate of activations equals what autograd saves in a real forward on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlpkit import plugins
from mlpkit.build import build_model
from mlpkit.compose import compose
from mlpkit.describe import activation_bytes, describe
from mlpkit.registry import Provider
from mlpkit.specs import FFNSpec

SMALL = ["model.hidden_size=16", "model.num_layers=2", "training.sequence_length=12"]
MOE = ["ffn=moe", "ffn.num_experts=4", "ffn.backend=loop", "lint.allow=[non-causal]"]
VARIANTS = [
    [],
    ["ffn=naive", "ffn.bias=true"],
    ["ffn=low_rank", "activation=gelu"],
    ["model.tie_word_embeddings=false", "model.qk_norm=true", "ffn.dropout=0.5"],
    MOE,
    [*MOE, "ffn/router=uniform", "ffn/balance=null"],
    [*MOE, "ffn/shared=swiglu", "ffn.latent_size=8"],
]


def saved_bytes(model, batch, length):
    """What autograd saves, with every storage held so that it counts once."""
    saved = {}

    def keep(tensor):
        saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    tokens = torch.zeros(batch, length, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), reduction="sum")
    for parameter in model.parameters():
        saved.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


@pytest.mark.parametrize("overrides", VARIANTS, ids=lambda v: " ".join(v) or "default")
def test_activations_are_what_autograd_saves(overrides):
    torch.manual_seed(0)
    config = compose([*SMALL, *overrides, "training.batch_size=6"])
    model = build_model(config)
    expected = saved_bytes(model, 6, 12)
    assert activation_bytes(model, batch_size=6, sequence_length=12) == expected > 0
    assert describe(config).memory.activations == expected


def test_activations_are_those_of_the_largest_micro_batch():
    split = [*SMALL, "training.batch_size=5", "training.gradient_accumulation_steps=3"]
    whole = [*SMALL, "training.batch_size=2"]
    assert describe(split).memory.activations == describe(whole).memory.activations


def test_several_types_of_experts_take_even_shares():
    naive = "{name:naive,intermediate_size:32,num_experts:2}"
    types = f"ffn.experts=[{naive},{{name:copy,num_experts:1}},{{name:constant,num_experts:1}}]"
    config = compose(
        [*SMALL, *MOE, types, "ffn/router=uniform", "ffn/balance=null", "training.batch_size=2"]
    )
    expected = saved_bytes(build_model(config), 2, 12)
    assert describe(config).memory.activations == expected


class Nosy(nn.Module):
    """A stranger's FFN that looks at values."""

    def __init__(self, *, hidden_size):
        super().__init__()
        self.proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        return self.proj(x) if x.is_meta or x.sum().item() > 0 else -self.proj(x)


def test_an_ffn_that_looks_at_values_has_no_estimate_and_says_so(monkeypatch):
    loaded = plugins.load()
    spec = FFNSpec(name="nosy", target=Nosy, width=None, flops_per_token=lambda h: 2 * h * h)
    loaded.registries.ffn.add([spec], Provider("test"))
    monkeypatch.setattr(plugins, "load_once", lambda: loaded)
    description = describe([*SMALL, "ffn=nosy"])
    assert description.memory.activations is None
    assert description.memory.total == 4 * 4 * description.parameters
    assert "activations that cannot be estimated" in str(description)


def test_the_model_and_the_random_numbers_are_left_alone():
    model = build_model([*SMALL, *MOE])
    torch.manual_seed(3)
    before, expected = {k: v.clone() for k, v in model.state_dict().items()}, torch.rand(1)
    torch.manual_seed(3)
    activation_bytes(model.eval(), batch_size=2, sequence_length=3)
    assert torch.equal(torch.rand(1), expected)
    assert not model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())

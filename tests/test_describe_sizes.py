"""Sizes of every FFN, MoE included, equal the built module's parameters and torch's FLOPs."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mlpkit import plugins
from mlpkit.build import build_ffn
from mlpkit.describe import Span, count_flops, count_parameters, ffn_size
from mlpkit.describe.mixtures import moe_pieces
from mlpkit.plugins import registries
from mlpkit.registry import Provider
from mlpkit.specs import FFNSpec

H, TOKENS = 8, 24
E, K = 4, 2
SMALL = {"name": "swiglu", "intermediate_size": 16}
MOE = {
    "name": "moe",
    "num_experts": E,
    "num_experts_per_tok": K,
    "expert": SMALL,
    "backend": "loop",
}
DENSE = [spec.name for spec in registries().ffn.list() if spec.name != "moe"]
TYPES = [{**SMALL, "num_experts": 2}, {"name": "copy", "num_experts": 2}]
MIXTURES = [
    *({"router": router} for router in registries().router.names()),
    {"router": {"name": "topk", "score": "sigmoid", "bias": True, "selection_bias": True}},
    {"router": {"name": "topk", "apply_on": "input"}},
    {"router": {"name": "topk", "score": "prelu"}},
    {"num_experts_per_tok": 1, "router": {"name": "topk", "norm_topk_prob": False}},
    {"num_experts_per_tok": E},
    {"shared": SMALL},
    {"shared": "swiglu"},  # as wide as an expert
    {"output_bias": True},
    {"shared": {"name": "naive", "bias": True}, "shared_combine": "gated"},
    {"shared": "low_rank", "shared_combine": "average"},
    {"latent_size": 4},
    {"latent_size": 4, "shared": SMALL, "shared_combine": "gated", "num_experts_per_tok": 3},
    {"capacity_factor": float(E)},  # never full
    *({"expert": name} for name in DENSE),
    {"expert": {"name": "naive", "bias": True, "inner_norm": "rms"}},
    {"expert": {"name": "gated", "activation": "prelu"}},
    {"expert": {**MOE, "num_experts": 2, "num_experts_per_tok": 1}},
    {"shared": {**MOE, "router": "uniform"}},
]
by_mixture = pytest.mark.parametrize("options", MIXTURES, ids=str)


def counted(module):
    """What torch counts per token, and that every token costs as much as the others."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.randn(TOKENS, H))
    assert counter.get_total_flops() % TOKENS == 0
    return counter.get_total_flops() // TOKENS


def numel(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("activation", [None, "gelu", "prelu"])
@pytest.mark.parametrize("bias", [None, False, True])
@pytest.mark.parametrize("name", DENSE)
def test_a_dense_ffn_is_as_large_as_it_is_built_and_counted(name, bias, activation):
    torch.manual_seed(0)
    ffn = {"name": name}
    if registries().ffn.get(name).width:
        ffn |= {"intermediate_size": 12} if bias is None else {"bias": bias}
    if registries().ffn.get(name).default_activation:
        ffn["activation"] = activation
    module = build_ffn(ffn, hidden_size=H)
    size = ffn_size(ffn, hidden_size=H)
    assert size.parameters == numel(module)
    assert size.active == Span(low=numel(module), mean=numel(module), high=numel(module))
    assert size.flops.low == size.flops.mean == size.flops.high == counted(module)
    assert [size.of(kind) for kind in ("params", "active_params", "flops")] == [
        size.parameters,
        size.active.mean,
        size.flops.mean,
    ]


@by_mixture
def test_a_moe_is_as_large_as_it_is_built_and_costs_what_torch_counts(options):
    torch.manual_seed(0)
    ffn = {**MOE, **options}
    module = build_ffn(ffn, hidden_size=H)
    size = ffn_size(ffn, hidden_size=H)
    assert size.parameters == numel(module)
    assert size.flops.low == size.flops.mean == size.flops.high == counted(module)


@by_mixture
def test_active_parameters_are_all_but_those_of_the_experts_that_were_not_chosen(options):
    ffn = {**MOE, **options}
    module = build_ffn(ffn, hidden_size=H)
    idle = ffn["num_experts"] - ffn["num_experts_per_tok"]
    used = numel(module) - idle * numel(module.experts.expert(0))
    for inner, times in ((module.experts.expert(0), K), (module.shared, 1)):
        if hasattr(inner, "experts"):  # a MoE in the MoE has idle experts of its own
            unused = inner.experts.num_experts - inner.router.num_experts_per_tok
            used -= times * unused * numel(inner.experts.expert(0))
    size = ffn_size(ffn, hidden_size=H)
    assert (size.active.low, size.active.mean, size.active.high) == (used, used, used)


@pytest.mark.parametrize("bias", [False, True])
def test_a_moe_by_hand(bias):
    expert = {"name": "swiglu", "intermediate_size": 16, "bias": bias}
    size = ffn_size({**MOE, "expert": expert, "shared": expert}, hidden_size=H)
    one = 3 * 8 * 16 + bias * (2 * 16 + 8)
    assert size.parameters == 4 * 8 + 4 * one + one
    assert size.active.mean == 4 * 8 + 2 * one + one
    assert size.flops.mean == 2 * 4 * 8 + (2 + 1) * 2 * 3 * 8 * 16 + 2 * 2 * 8


@pytest.mark.parametrize(
    ("router", "bound"),
    [
        ({"name": "forced", "experts": [2, 3]}, "low"),
        ({"name": "forced", "experts": [0, 1]}, "high"),
        ("uniform", "mean"),
        ({"name": "forced", "experts": [0, 3]}, "mean"),
    ],
    ids=str,
)
def test_with_several_types_the_choice_of_experts_decides(router, bound):
    ffn = {**MOE, "experts": TYPES, "router": router}
    size = ffn_size(ffn, hidden_size=H)
    module = build_ffn(ffn, hidden_size=H)
    assert size.parameters == numel(module) == 2 * 3 * 8 * 16
    assert getattr(size.flops, bound) == counted(module)
    chosen = {"low": 0, "mean": 1, "high": 2}[bound]
    assert getattr(size.active, bound) == chosen * 3 * 8 * 16


def test_the_pieces_of_a_moe_add_up_to_it():
    for options in ({"shared": SMALL, "latent_size": 4}, {"experts": TYPES}, {"router": "uniform"}):
        ffn = {**MOE, **options}
        pieces, size = moe_pieces(ffn, hidden_size=H), ffn_size(ffn, hidden_size=H)
        assert size.parameters == sum(p.count * p.size.parameters for p in pieces)
        assert size.active.mean == sum(p.active.mean for p in pieces)
        assert size.flops.mean == sum(p.flops.mean for p in pieces)
        experts = [p for p in pieces if p.name == "experts"]
        assert sum(p.count for p in experts) == E
        assert sum(p.used for p in experts) == K
        assert all(p.least <= p.used <= p.most for p in experts)


def test_a_router_is_tried_without_a_trace():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    ffn_size("moe", hidden_size=H)
    assert torch.equal(torch.rand(1), expected)


class Twice(nn.Module):
    """A stranger's FFN that says nothing of its size."""

    def __init__(self, *, hidden_size, rank: int = 3):
        super().__init__()
        self.first = nn.Linear(hidden_size, rank)
        self.second = nn.Linear(rank, hidden_size, bias=False)

    def forward(self, x):
        return self.second(self.first(x).relu()) + self.second(self.first(x))


@pytest.fixture
def stranger(monkeypatch):
    loaded = plugins.load()
    loaded.registries.ffn.add([FFNSpec(name="twice", target=Twice, width="rank")], Provider("test"))
    monkeypatch.setattr(plugins, "load_once", lambda: loaded)


@pytest.mark.usefixtures("stranger")
def test_an_ffn_that_gives_no_formulas_is_counted_also_as_an_expert():
    size = ffn_size({"name": "twice", "rank": 5}, hidden_size=H)
    assert size.parameters == 8 * 5 + 5 + 5 * 8
    assert size.flops.mean == 2 * 2 * 2 * 8 * 5  # each matrix is used twice
    ffn = {**MOE, "expert": {"name": "twice", "rank": 5}}
    torch.manual_seed(0)
    module = build_ffn(ffn, hidden_size=H)
    assert ffn_size(ffn, hidden_size=H).parameters == numel(module)
    assert ffn_size(ffn, hidden_size=H).flops.mean == counted(module)


def test_counting_leaves_the_module_where_it_was_and_counts_a_shared_tensor_once():
    module = Twice(hidden_size=4)
    assert count_flops(module, 4) == 2 * 2 * 2 * 4 * 3
    assert {p.device.type for p in module.parameters()} == {"cpu"}
    assert count_parameters([module, module, module.first]) == 4 * 3 + 3 + 3 * 4

"""The width of any FFN for any budget, against a search over the built modules."""

import pytest
import torch

from mlpkit import plugins
from mlpkit.build import build_ffn
from mlpkit.compose import compose
from mlpkit.describe import (
    UnmatchedError,
    describe,
    ffn_size,
    solve_width,
    width_key,
    with_width,
)
from mlpkit.describe.sizes import KINDS
from mlpkit.plugins import registries
from mlpkit.registry import Provider
from mlpkit.sizing import BudgetError
from mlpkit.specs import FFNSpec

H = 8
MATCHED = [spec.name for spec in registries().ffn.list() if spec.width]
UNMATCHED = [spec.name for spec in registries().ffn.list() if not spec.width]
MOE = {"name": "moe", "num_experts": 4, "backend": "loop"}
VARIANTS = [
    *MATCHED,
    {"name": "naive", "bias": True, "inner_norm": "layer"},
    {"name": "swiglu", "activation": "prelu", "intermediate_size": 5},
    {**MOE, "shared": {"name": "swiglu", "intermediate_size": 4}},
    {**MOE, "expert": "low_rank", "latent_size": 4},
    {**MOE, "expert": {**MOE, "num_experts": 2}},
    {
        **MOE,
        "experts": [{"name": "zero", "num_experts": 3}, {"name": "naive", "num_experts": 1}],
    },
]


@pytest.mark.parametrize("ffn", VARIANTS, ids=str)
def test_no_other_width_is_nearer_to_the_budget(ffn):
    built = {}
    for width in range(1, 40):
        with torch.device("meta"):
            module = build_ffn(with_width(ffn, width), hidden_size=H)
        built[width] = sum(p.numel() for p in module.parameters())
    for target in (built[1], built[20], built[20] + 3, built[21] - 1, (built[7] + built[8]) // 2):
        solution = solve_width(ffn, hidden_size=H, target=target)
        assert solution.reached == built[solution.width]
        assert abs(solution.residual) == min(abs(n - target) for n in built.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ffn", VARIANTS, ids=str)
def test_every_kind_of_budget_is_met_from_both_sides(ffn, kind):
    sizes = [ffn_size(with_width(ffn, w), hidden_size=H).of(kind) for w in range(1, 60)]
    assert sizes == sorted(sizes)
    target = ffn_size({"name": "swiglu", "intermediate_size": 50}, hidden_size=H).of(kind)
    found = solve_width(ffn, hidden_size=H, target=target, kind=kind)
    assert found.reached == ffn_size(with_width(ffn, found.width), hidden_size=H).of(kind)
    for other in (found.width - 1, found.width + 1):
        if other:
            size = ffn_size(with_width(ffn, other), hidden_size=H).of(kind)
            assert abs(found.residual) <= abs(size - target)


def test_the_articles_numbers():
    naive = ffn_size("naive", hidden_size=768)
    assert naive.parameters == 8 * 768**2
    exact = solve_width("swiglu", hidden_size=768, target=naive.parameters)
    assert (exact.width, exact.residual) == (2048, 0)
    flops = solve_width("swiglu", hidden_size=768, target=naive.flops.mean, kind="flops")
    assert (flops.width, flops.residual) == (2048, 0)
    near = solve_width("swiglu", hidden_size=512, target=8 * 512**2)
    assert (near.width, near.residual) == (1365, -512)
    rounded = solve_width("swiglu", hidden_size=512, target=8 * 512**2, multiple=64)
    assert (rounded.width, rounded.residual) == (1344, 3 * 512 * 1344 - 8 * 512**2)


def test_experts_matched_by_active_parameters_are_half_as_wide_but_for_the_router():
    dense = ffn_size("swiglu", hidden_size=768)
    found = solve_width(MOE, hidden_size=768, target=dense.parameters, kind="active_params")
    # 4·768 of the router are 1.3 of the 3·768 that a unit of width costs each of two experts
    assert found.width == 1023


@pytest.mark.parametrize(
    ("ffn", "key"),
    [
        ("swiglu", "intermediate_size"),
        ("moe", "expert.intermediate_size"),
        ({**MOE, "expert": "moe"}, "expert.expert.intermediate_size"),
        (VARIANTS[-1], "experts.1.intermediate_size"),
    ],
    ids=str,
)
def test_the_key_is_where_the_width_goes(ffn, key):
    assert width_key(ffn) == key
    node = with_width(ffn, 77)
    for step in key.split("."):
        node = node[int(step) if step.isdigit() else step]
    assert node == 77


def test_the_key_is_an_override_of_the_command_line():
    overrides = ["ffn=moe", "model.hidden_size=16"]
    solution = solve_width(
        compose(overrides).ffn, hidden_size=16, target=10_000, kind="active_params"
    )
    key = width_key(compose(overrides).ffn)
    description = describe([*overrides, f"ffn.{key}={solution.width}", "model.num_layers=1"])
    (layers,) = [p for p in description.parts if p.name == "layers"]
    (ffn,) = [p for p in layers.parts if p.name == "ffn"]
    assert ffn.active_parameters == solution.reached


@pytest.mark.parametrize("name", UNMATCHED)
def test_an_ffn_without_a_width_is_unmatched_and_so_is_a_moe_of_it(name):
    for ffn in (name, {**MOE, "expert": name}):
        with pytest.raises(UnmatchedError, match=f"ffn '{name}' has no width") as refused:
            solve_width(ffn, hidden_size=H, target=100)
        assert refused.value.exit_code == 2


def test_several_widths_are_unmatched():
    types = [{"name": "swiglu", "num_experts": 2}, {"name": "naive", "num_experts": 2}]
    with pytest.raises(UnmatchedError, match="'moe' has 2 types of experts with a width"):
        solve_width({**MOE, "experts": types}, hidden_size=H, target=100)


def test_a_wrong_kind_and_a_wrong_budget_are_refused():
    with pytest.raises(UnmatchedError, match=r"match is 'param'; .* params, active_params, flops"):
        solve_width("swiglu", hidden_size=H, target=100, kind="param")
    with pytest.raises(BudgetError, match="budget is -1"):
        solve_width("swiglu", hidden_size=H, target=-1)


def test_the_width_of_a_strangers_ffn_is_what_its_spec_says(monkeypatch):
    class Low(torch.nn.Sequential):
        def __init__(self, *, hidden_size, rank=3):
            super().__init__(torch.nn.Linear(hidden_size, rank), torch.nn.Linear(rank, hidden_size))

    loaded = plugins.load()
    loaded.registries.ffn.add([FFNSpec(name="low", target=Low, width="rank")], Provider("test"))
    monkeypatch.setattr(plugins, "load_once", lambda: loaded)
    for ffn, copies in (("low", 1), ({**MOE, "expert": "low", "router": "uniform"}, 4)):
        found = solve_width(ffn, hidden_size=H, target=copies * (11 * (8 + 1 + 8) + 8))
        assert (found.width, found.residual) == (11, 0)
    assert width_key({**MOE, "expert": "low"}) == "expert.rank"

"""MoE: against a plain float64 loop, dense FFNs and transformers; its options and its contract."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from mlpkit.catalogue.moe import BACKENDS, MOE_FFNS
from mlpkit.configs.moe import ExpertListError, MoEConfig, expert_types, matched_expert_width
from mlpkit.experts import CopyExpert, ExpertGroups, Experts, ZeroExpert
from mlpkit.ffns import FeedForward, GatedFFN
from mlpkit.moe import MoE, MoEOptionError, expert_capacity
from mlpkit.registry import Provider, Registry
from mlpkit.routers import ExpertChoiceRouter, ForcedRouter, TopKRouter
from mlpkit.specs import resolve

H, INNER, E, K = 8, 16, 4, 2
WAYS = ("loop", "grouped", "padded", "gather", "auto")


def gated(hidden_size=H, **options):
    return GatedFFN(
        hidden_size=hidden_size, intermediate_size=INNER, activation=nn.SiLU(), **options
    )


def build(
    *, experts=E, per_token=K, backend="auto", router=None, bias=False, apply_on="output", **options
):
    torch.manual_seed(0)
    router = router or TopKRouter(
        hidden_size=H, num_experts=experts, num_experts_per_tok=per_token, apply_on=apply_on
    )
    width = options.get("latent_size") or H
    stack = Experts([gated(width, bias=bias) for _ in range(experts)], backend=backend)
    if options.pop("with_shared", False):
        options["shared"] = gated()
    return MoE(hidden_size=H, router=router, experts=stack, **options)


def tokens(*shape, dtype=torch.float64, seed=1):
    return torch.randn(*shape, H, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_hand(moe, x):
    """Token by token, triple by triple, from the router's answer; dropless."""
    flat = x.reshape(-1, H)
    routing = moe.router(flat)
    inner = flat if moe.latent_down_proj is None else flat @ moe.latent_down_proj.weight.T
    routed = torch.zeros_like(inner)
    triples = zip(routing.token.tolist(), routing.expert.tolist(), routing.weight, strict=True)
    for token, expert, weight in triples:
        ffn, row = moe.experts.expert(expert), inner[token]
        if moe.router.apply_on == "input":
            routed[token] += ffn(weight * row)
        else:
            routed[token] += weight * ffn(row)
    if moe.latent_up_proj is not None:
        routed = routed @ moe.latent_up_proj.weight.T
    if moe.shared is None:
        return routed.reshape(x.shape)
    shared = moe.shared(flat)
    mixed = {
        "sum": lambda: routed + shared,
        "average": lambda: (routed + shared) / 2,
        "gated": lambda: routed + torch.sigmoid(flat @ moe.shared_gate.weight.T) * shared,
    }
    return mixed[moe.shared_combine]().reshape(x.shape)


SHARED = st.sampled_from(
    [
        {},
        {"with_shared": True},
        {"with_shared": True, "shared_combine": "average"},
        {"with_shared": True, "shared_combine": "gated"},
    ]
)
OPTIONS = st.builds(
    lambda experts, per_token, shared, **rest: {
        "experts": experts,
        "per_token": min(experts, per_token),
        **shared,
        **rest,
    },
    experts=st.integers(1, 5),
    per_token=st.integers(1, 3),
    shared=SHARED,
    backend=st.sampled_from(WAYS),
    bias=st.booleans(),
    apply_on=st.sampled_from(["output", "input"]),
    latent_size=st.sampled_from([None, 6]),
)
few = settings(max_examples=25, deadline=None, derandomize=True)


@few
@given(OPTIONS)
def test_moe_is_the_weighted_sum_over_its_triples(options):
    moe, x = build(**options).double(), tokens(2, 3)
    assert isinstance(moe, FeedForward)
    torch.testing.assert_close(moe(x), by_hand(moe, x), rtol=0, atol=1e-12)


@few
@given(OPTIONS, st.permutations(range(6)))
def test_tokens_are_independent_and_their_order_does_not_matter(options, order):
    moe, x = build(**options).double(), tokens(6)
    y = moe(x)
    torch.testing.assert_close(moe(x[list(order)]), y[list(order)], rtol=0, atol=1e-12)
    torch.testing.assert_close(moe(x[2:4]), y[2:4], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", WAYS)
def test_one_expert_is_the_dense_ffn(backend):
    moe, x = build(experts=1, per_token=1, backend=backend).double(), tokens(2, 3)
    torch.testing.assert_close(moe(x), moe.experts.expert(0)(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", WAYS)
def test_all_experts_are_the_softmax_weighted_mixture(backend):
    moe, x = build(per_token=E, backend=backend).double(), tokens(5)
    weights = (x @ moe.router.weight.T).softmax(-1)
    mixture = sum(weights[:, e : e + 1] * moe.experts.expert(e)(x) for e in range(E))
    torch.testing.assert_close(moe(x), mixture, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"apply_on": "input"}, {"with_shared": True}], ids=str)
@pytest.mark.parametrize("backend", WAYS)
def test_moe_passes_gradcheck_in_input_and_every_parameter(backend, options):
    moe, x = build(experts=3, backend=backend, **options).double(), tokens(4).requires_grad_()
    names = [name for name, _ in moe.named_parameters()]
    values = [p.detach().requires_grad_() for p in moe.parameters()]

    def run(x, *values):
        return torch.func.functional_call(moe, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)


def test_moe_equals_transformers_qwen2_with_its_gated_shared_expert():
    from transformers.models.qwen2_moe.configuration_qwen2_moe import Qwen2MoeConfig
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

    config = Qwen2MoeConfig(
        hidden_size=H,
        moe_intermediate_size=INNER,
        shared_expert_intermediate_size=INNER,
        num_experts=E,
        num_experts_per_tok=K,
        norm_topk_prob=True,
    )
    config._experts_implementation = "eager"
    theirs = Qwen2MoeSparseMoeBlock(config).double()
    ours = build(with_shared=True, shared_combine="gated").double()
    state = {name: p.detach() for name, p in ours.named_parameters()}
    gate_up = [state.pop("experts.gate_proj.weight"), state.pop("experts.up_proj.weight")]
    theirs.load_state_dict(
        {
            "experts.gate_up_proj": torch.cat(gate_up, 1),
            "experts.down_proj": state.pop("experts.down_proj.weight"),
            "gate.weight": state.pop("router.weight"),
            "shared_expert_gate.weight": state.pop("shared_gate.weight"),
            **{name.replace("shared.", "shared_expert."): p for name, p in state.items()},
        }
    )
    x = tokens(2, 3)
    xs = [x.clone().requires_grad_() for _ in range(2)]
    got, want = ours(xs[0]), theirs(xs[1])
    want = want[0] if isinstance(want, tuple) else want
    (got.square().sum() + want.square().sum()).backward()
    # their router's softmax is float32 also in a float64 model
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)
    torch.testing.assert_close(xs[0].grad, xs[1].grad, rtol=0, atol=1e-6)
    down = ours.experts.down_proj.weight.grad
    torch.testing.assert_close(down, theirs.experts.down_proj.grad, rtol=0, atol=1e-6)
    router = ours.router.weight.grad
    torch.testing.assert_close(router, theirs.gate.weight.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", WAYS)
def test_one_token_leaves_no_parameter_without_a_gradient(backend):
    moe = build(backend=backend, with_shared=True)
    moe(tokens(1, dtype=torch.float32)).square().sum().backward()
    assert all(p.grad is not None for p in moe.parameters())
    used = set(moe.router(tokens(1, dtype=torch.float32)).expert.tolist())
    for index in range(E):
        assert moe.experts.down_proj.weight.grad[index].any() == (index in used)


@pytest.mark.parametrize("backend", WAYS)
def test_training_moves_every_expert(backend):
    moe = build(backend=backend)
    before = copy.deepcopy(moe.state_dict())
    optimizer = torch.optim.SGD(moe.parameters(), lr=0.1)
    for seed in range(5):
        optimizer.zero_grad()
        moe(tokens(8, dtype=torch.float32, seed=seed)).square().mean().backward()
        optimizer.step()
    after = moe.state_dict()
    for name, tensor in before.items():
        assert (after[name] != tensor).flatten(1).any(1).all(), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", WAYS)
def test_output_follows_the_inputs_dtype(backend, dtype):
    moe = build(backend=backend, with_shared=True).to(dtype)
    x = tokens(2, 3, dtype=dtype)
    y, exact = moe(x), by_hand(copy.deepcopy(moe).double(), x.double())
    bound = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), exact, rtol=bound, atol=bound)


@pytest.mark.parametrize("backend", WAYS)
def test_autocast_runs_forward_and_backward(backend):
    moe = build(backend=backend, bias=True, with_shared=True, shared_combine="gated", latent_size=6)
    x = tokens(2, 3, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = moe(x)
    y.sum().backward()
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, moe(x), rtol=3e-2, atol=3e-2)
    assert all(p.grad.dtype == torch.float32 for p in moe.parameters())


@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize("capacity", [None, 1.0])
def test_empty_and_odd_inputs_keep_their_shape(backend, capacity):
    moe = build(backend=backend, capacity_factor=capacity, with_shared=True).double()
    for shape in ((0,), (2, 0), (), (2, 1, 3)):
        x = tokens(*shape).requires_grad_()
        y = moe(x)
        assert y.shape == x.shape
        y.sum().backward()
        assert x.grad is not None
    assert all(p.grad is not None for p in moe.parameters())
    x = tokens(3, 2).transpose(0, 1)
    torch.testing.assert_close(
        build(backend=backend).double()(x), build(backend=backend).double()(x.contiguous())
    )


def test_noise_stays_in_the_router_and_the_callers_tensor_is_untouched():
    router = TopKRouter(hidden_size=H, num_experts=2, num_experts_per_tok=2, jitter=0.5)
    experts = Experts([CopyExpert(hidden_size=H) for _ in range(2)])
    moe, x = MoE(hidden_size=H, router=router, experts=experts).train(), tokens(5)
    before = x.clone()
    torch.testing.assert_close(moe(x), before)  # the weights of two copies add up to 1
    assert torch.equal(x, before)


def test_training_and_evaluation_are_one_path():
    moe, x = build(), tokens(2, 3, dtype=torch.float32)
    assert torch.equal(moe.train()(x), moe.eval()(x))
    with torch.inference_mode():
        torch.testing.assert_close(moe(x), by_hand(moe, x))


def test_copies_pickles_and_checkpointing_give_the_same_values():
    moe, x = build(with_shared=True), tokens(2, 3, dtype=torch.float32).requires_grad_()
    moe(x).square().sum().backward()
    want = [p.grad.clone() for p in moe.parameters()]
    for twin in (copy.deepcopy(moe), pickle.loads(pickle.dumps(moe))):
        assert torch.equal(twin(x), moe(x))
        twin.zero_grad()
        checkpoint(twin, x, use_reentrant=False).square().sum().backward()
        assert all(torch.equal(p.grad, w) for p, w in zip(twin.parameters(), want, strict=True))


@pytest.mark.parametrize(
    ("backend", "capacity"), [("auto", None), ("loop", 0.6), ("grouped", 0.6), ("padded", 0.6)]
)
def test_moe_compiles_to_one_graph(backend, capacity):
    torch.compiler.reset()
    moe = build(backend=backend, capacity_factor=capacity, with_shared=True)
    compiled = torch.compile(moe, fullgraph=True, backend="aot_eager")
    for seed in (1, 2):
        x = tokens(2, 3, dtype=torch.float32, seed=seed)
        want = moe(x)
        want.square().sum().backward()
        gradients = [p.grad for p in moe.parameters()]
        moe.zero_grad()  # sets them to None, so that the list above stays
        got = compiled(x)
        got.square().sum().backward()
        torch.testing.assert_close(got, want)
        for parameter, gradient in zip(moe.parameters(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
        moe.zero_grad()


def test_moe_is_built_on_the_meta_device_and_filled_later():
    with torch.device("meta"):
        empty = build(with_shared=True)
    assert all(p.is_meta for p in empty.parameters())
    full, x = build(with_shared=True), tokens(4, dtype=torch.float32)
    empty.to_empty(device="cpu").load_state_dict(full.state_dict())
    assert torch.equal(empty(x), full(x))


def test_taps_see_the_routing_of_each_forward_with_its_leading_shape():
    moe, seen = build(capacity_factor=0.25), []
    moe.taps.append(seen.append)
    moe(tokens(2, 3, dtype=torch.float32))
    moe.taps.clear()
    moe(tokens(5, dtype=torch.float32))
    (routing,) = seen
    assert routing.leading == (2, 3)
    assert len(routing.expert) == 2 * 3 * K  # before anything is dropped
    assert routing.num_experts_per_tok == K


def test_taps_are_reached_in_a_model_that_was_compiled_before():
    torch.compiler.reset()
    moe, x, loads = build(), tokens(2, 3, dtype=torch.float32), []
    compiled = torch.compile(moe, fullgraph=True, backend="aot_eager")
    compiled(x)
    moe.taps.append(lambda routing: loads.append(routing.expert))
    compiled(x)
    assert torch.equal(loads[0], moe.router(x.reshape(-1, H)).expert)


class FixedRouter(nn.Module):
    """Expert and weight of each (token, choice), given."""

    apply_on = "output"

    def __init__(self, expert, weight=None, num_experts=E):
        super().__init__()
        self.expert = torch.tensor(expert)
        self.weight = torch.ones(self.expert.shape) if weight is None else torch.tensor(weight)
        self.num_experts = num_experts

    def forward(self, x):
        from mlpkit.routing import Routing

        count, per_token = self.expert.shape
        token = torch.arange(count).repeat_interleave(per_token)
        scores = torch.zeros(count, self.num_experts)
        flat = self.expert.flatten(), self.weight.flatten().to(x.dtype)
        return Routing(token, *flat, per_token, scores, scores)


def kept_tokens(expert, factor, weight=None, policy="position", compiled=False):
    experts = Experts([CopyExpert(hidden_size=H) for _ in range(E)])
    router = FixedRouter(expert, weight)
    moe = MoE(
        hidden_size=H,
        router=router,
        experts=experts,
        capacity_factor=factor,
        drop_policy=policy,
    )
    run = torch.compile(moe, fullgraph=True, backend="aot_eager") if compiled else moe
    y = run(torch.ones(len(expert), H, dtype=torch.float64))
    return y[:, 0].tolist()


def test_an_expert_takes_its_capacity_and_the_rest_is_exactly_zero():
    # Eight tokens, all to expert 0 of 4: factor 1 gives it 2 rows, the first or the heaviest.
    crowd = [[0]] * 8
    assert kept_tokens(crowd, 1.0) == [1, 1, 0, 0, 0, 0, 0, 0]
    weight = [[0.1], [0.5], [0.25], [0.5], [0.75], [0.1], [0.2], [0.3]]
    heavy = kept_tokens(crowd, 1.0, weight, "probs")
    assert heavy == [0, 0.5, 0, 0, 0.75, 0, 0, 0]
    assert kept_tokens(crowd, 0.01) == [1, 0, 0, 0, 0, 0, 0, 0]
    assert kept_tokens(crowd, 1e6) == [1] * 8
    assert kept_tokens([[0]], 0.5) == [1]
    two = [[0, 1], [1, 0], [0, 2], [0, 3]]  # expert 0 is asked for by every token
    assert kept_tokens(two, 1.0) == [2, 2, 1, 1]


@pytest.mark.parametrize("policy", ["position", "probs"])
def test_dropping_is_the_same_in_a_compiled_graph(policy):
    torch.compiler.reset()
    crowd = [[0, 1], [1, 0], [0, 2], [0, 3]]
    weight = [[0.1, 0.9], [0.5, 0.5], [0.3, 0.7], [0.8, 0.2]]
    if policy == "position":
        eager = kept_tokens(crowd, 1.0, weight)
        assert eager == pytest.approx([1.0, 1.0, 0.7, 0.2])
    else:
        eager = kept_tokens(crowd, 1.0, weight, policy)
        assert eager == pytest.approx([0.9, 1.0, 0.7, 1.0])
    assert kept_tokens(crowd, 1.0, weight, policy, compiled=True) == pytest.approx(eager)


@pytest.mark.parametrize(
    ("rows", "experts", "factor", "want"),
    [(8, 4, 1.0, 2), (9, 4, 1.0, 3), (100, 10, 1.1, 11), (100, 10, 1.11, 12), (5, 4, 9.0, 5)],
)
def test_capacity_is_the_even_share_times_the_factor_rounded_up(rows, experts, factor, want):
    assert expert_capacity(rows, experts, factor) == want


def test_dropped_triples_give_the_router_no_gradient_and_kept_ones_do():
    moe, x = build(per_token=1, capacity_factor=0.01).double(), tokens(6).requires_grad_()
    y = moe(x)
    kept = y.abs().sum(-1) > 0
    assert kept.sum() == len(set(moe.router(x).expert.tolist()))
    y.sum().backward()
    assert torch.equal(x.grad.abs().sum(-1) > 0, kept)


def test_experts_see_each_chosen_row_once_and_no_other():
    rows = []

    def count(module, inputs):
        rows.append(len(inputs[0]))

    ffns = [gated() for _ in range(E)]
    for ffn in ffns:
        ffn.register_forward_pre_hook(count)
    router = TopKRouter(hidden_size=H, num_experts=E, num_experts_per_tok=3)
    moe = MoE(hidden_size=H, router=router, experts=Experts(ffns, backend="loop"))
    moe(tokens(7, dtype=torch.float32))
    assert sum(rows) == 7 * 3
    moe.capacity_factor = 0.5
    rows.clear()
    moe(tokens(7, dtype=torch.float32))
    assert max(rows) <= math.ceil(0.5 * 7 * 3 / E)


def test_expert_choice_and_forced_routers_run_through_the_same_steps():
    chosen = ExpertChoiceRouter(hidden_size=H, num_experts=E, num_experts_per_tok=K)
    for router in (chosen, ForcedRouter(hidden_size=H, num_experts=E, num_experts_per_tok=K)):
        moe, x = build(router=router).double(), tokens(2, 3)
        torch.testing.assert_close(moe(x), by_hand(moe, x), rtol=0, atol=1e-12)


def test_experts_of_different_types_stand_behind_one_router():
    router = TopKRouter(hidden_size=H, num_experts=4, num_experts_per_tok=2)
    stacks = [
        Experts([gated() for _ in range(2)]),
        Experts([CopyExpert(hidden_size=H)]),
        Experts([ZeroExpert(hidden_size=H)]),
    ]
    moe = MoE(hidden_size=H, router=router, experts=ExpertGroups(stacks)).double()
    x = tokens(9)
    torch.testing.assert_close(moe(x), by_hand(moe, x), rtol=0, atol=1e-12)
    assert "experts.0.gate_proj.weight" in moe.state_dict()


def test_state_dict_has_the_public_names_and_shapes():
    moe = build(with_shared=True, shared_combine="gated", latent_size=6)
    assert {name: tuple(t.shape) for name, t in moe.state_dict().items()} == {
        "router.weight": (E, H),
        "experts.gate_proj.weight": (E, INNER, 6),
        "experts.up_proj.weight": (E, INNER, 6),
        "experts.down_proj.weight": (E, 6, INNER),
        "shared.gate_proj.weight": (INNER, H),
        "shared.up_proj.weight": (INNER, H),
        "shared.down_proj.weight": (H, INNER),
        "shared_gate.weight": (1, H),
        "latent_down_proj.weight": (6, H),
        "latent_up_proj.weight": (H, 6),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"router": FixedRouter([[0]], num_experts=3)}, "knows 3 experts and there are 4"),
        ({"shared_combine": "mean", "with_shared": True}, "'mean'; choose one of sum"),
        ({"shared_combine": "gated"}, "no shared FFN"),
        ({"drop_policy": "random", "capacity_factor": 1.0}, "'random'; choose one of"),
        ({"drop_policy": "probs"}, "without a capacity_factor"),
        ({"capacity_factor": 0.0}, "capacity_factor is 0.0"),
        ({"capacity_factor": math.inf}, "capacity_factor is inf"),
        ({"capacity_factor": math.nan}, "capacity_factor is nan"),
        ({"latent_size": 0}, "latent_size is 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(MoEOptionError, match=message):
        build(**options)


def test_balance_is_kept_for_the_record():
    balance = {"load": 0.01}
    moe = build(balance=balance)
    balance["load"] = 1.0
    assert moe.balance == {"load": 0.01}
    assert build().balance == {}


def test_repr_names_the_options():
    text = repr(build(with_shared=True, shared_combine="average", capacity_factor=1.5))
    assert "shared_combine=average, capacity_factor=1.5, drop_policy=position" in text
    assert "GatedFFN, num_experts=4, backend=grouped" in text


@pytest.mark.parametrize(
    ("dense", "per_token", "want"), [(1408, 2, 704), (704, 2, 384), (64, 8, 64), (10944, 8, 1408)]
)
def test_a_matched_expert_has_its_share_of_the_dense_width(dense, per_token, want):
    assert matched_expert_width(dense, per_token) == want


def test_a_list_of_expert_types_is_taken_apart():
    assert expert_types("swiglu", 8) == [("swiglu", 8)]
    assert expert_types({"name": "swiglu"}, 8) == [({"name": "swiglu"}, 8)]
    mixed = [{"name": "swiglu", "bias": True, "num_experts": 6}, {"name": "zero", "num_experts": 2}]
    assert expert_types(mixed, 8) == [({"name": "swiglu", "bias": True}, 6), ({"name": "zero"}, 2)]
    with pytest.raises(ExpertListError, match=r"8 experts together and num_experts is 9"):
        expert_types(mixed, 9)
    with pytest.raises(ExpertListError, match="'name': 'zero'"):
        expert_types([{"name": "zero"}], 1)


def test_every_option_of_the_constructor_that_is_plain_has_its_field():
    import inspect

    known = {field.name: field.default for field in fields(MoEConfig)}
    parts = {"hidden_size", "experts", "router", "shared", "balance"}
    for name, parameter in inspect.signature(MoE).parameters.items():
        if name not in parts:
            assert known[name] == parameter.default
    assert MoEConfig().balance == {"load": 0.03, "z": 0.001}
    assert (MoEConfig().num_experts, MoEConfig().num_experts_per_tok) == (8, 2)


def test_what_ships_can_be_registered_and_resolved():
    for noun, specs in (("ffn", MOE_FFNS), ("backend", BACKENDS)):
        registry: Registry = Registry(noun)
        registry.add(specs, Provider("mlpkit"))
        for spec in specs:
            target = resolve(registry.get(spec.name).target)
            assert getattr(target, "name", spec.name) == spec.name
    assert sorted(spec.name for spec in BACKENDS) == sorted(WAYS)


def test_the_catalogue_and_the_schema_import_no_torch():
    code = "import sys, mlpkit.catalogue.moe, mlpkit.configs.moe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

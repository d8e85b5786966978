"""Routers: the options of topk, and the whole routers beside it."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mlpkit import routers
from mlpkit.catalogue.routers import ROUTERS
from mlpkit.routers import RouterError, TopKRouter
from mlpkit.routers.base import first_largest
from mlpkit.routing import ReplayError, record_routing
from mlpkit.schema import HOST_GIVEN, option_parameters
from mlpkit.specs import resolve

T, H, E, K = 6, 5, 8, 2
SIZES = {"hidden_size": H, "num_experts": E, "num_experts_per_tok": K}


def topk(seed: int = 0, **options: Any) -> TopKRouter:
    torch.manual_seed(seed)
    router = TopKRouter(**{**SIZES, **options})
    nn.init.normal_(router.weight)
    return router


def tokens(seed: int = 1, count: int = T, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, H, generator=generator, dtype=torch.float64).to(dtype)


def table(routing) -> Tensor:
    return routing.expert.view(-1, routing.num_experts_per_tok)


def weights(routing) -> Tensor:
    return routing.weight.view(-1, routing.num_experts_per_tok)


@pytest.mark.parametrize("spec", ROUTERS, ids=lambda s: s.name)
@pytest.mark.parametrize("count", [0, 1, T])
def test_every_router_keeps_the_contract_of_routing(spec, count):
    router, x = resolve(spec.target)(**SIZES), tokens(count=count)
    before = x.clone()
    routing = router(x)
    n = routing.token.numel()
    assert routing.token.shape == routing.expert.shape == routing.weight.shape == (n,)
    assert routing.token.dtype == routing.expert.dtype == torch.int64
    assert routing.logits.shape == routing.scores.shape == (count, E)
    pairs = set(zip(routing.token.tolist(), routing.expert.tolist(), strict=True))
    assert len(pairs) == n  # a token meets an expert at most once
    assert all(0 <= t < count and 0 <= e < E for t, e in pairs)
    if routing.num_experts_per_tok is not None:
        assert routing.token.tolist() == [t for t in range(count) for _ in range(K)]
    assert torch.equal(x, before)
    assert router.apply_on == "output"


@pytest.mark.parametrize("spec", ROUTERS, ids=lambda s: s.name)
@pytest.mark.parametrize(
    ("dtype", "wide"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2],
)
def test_weights_and_scores_are_at_least_float32_and_never_below_the_input(spec, dtype, wide):
    routing = resolve(spec.target)(**SIZES).to(dtype)(tokens(dtype=dtype))
    assert routing.weight.dtype == routing.scores.dtype == routing.logits.dtype == wide


@pytest.mark.parametrize("spec", ROUTERS, ids=lambda s: s.name)
def test_a_schema_is_the_constructors_signature(spec):
    target = resolve(spec.target)
    hints, schema = get_type_hints(target.__init__), get_type_hints(spec.config)
    fields = {f.name: f for f in dataclasses.fields(spec.config)}
    assert fields.pop("name").default == spec.name
    options = option_parameters("router", target)
    assert list(fields) == list(options)
    for name, parameter in options.items():
        assert fields[name].default == parameter.default
        assert schema[name] in (hints[name], Any)
    host = set(inspect.signature(target).parameters) - set(options)
    assert host == set(HOST_GIVEN["router"])


@pytest.mark.parametrize("spec", ROUTERS, ids=lambda s: s.name)
@pytest.mark.parametrize("wrong", [0, E + 1])
def test_more_experts_per_token_than_experts_or_none_are_refused(spec, wrong):
    with pytest.raises(RouterError, match=f"num_experts_per_tok={wrong}") as error:
        resolve(spec.target)(**{**SIZES, "num_experts_per_tok": wrong})
    assert error.value.exit_code == 2


@pytest.mark.parametrize("spec", ROUTERS, ids=lambda s: s.name)
def test_position_wise_in_a_spec_is_true(spec):
    def row(routing, t):
        chosen = routing.token == t
        order = routing.expert[chosen].argsort()
        return routing.expert[chosen][order].tolist(), routing.weight[chosen][order].tolist()

    def is_alone(seed):
        torch.manual_seed(seed)  # of the router's weights: some leave even expert choice alone
        router, x = resolve(spec.target)(**SIZES), tokens()
        routing, moved = router(x), router(torch.cat([x[1:], 5 * x[:1]]))
        return all(row(routing, t)[0] == row(moved, t - 1)[0] for t in range(1, T))

    assert all(is_alone(seed) for seed in range(10)) == spec.position_wise


def test_softmax_of_all_normalised_is_softmax_of_the_chosen():
    router, x = topk(), tokens()
    routing = router(x)
    z = x @ router.weight.T
    values, expert = z.topk(K)
    assert torch.equal(table(routing), expert)
    torch.testing.assert_close(weights(routing), values.softmax(-1))
    torch.testing.assert_close(routing.logits, z)
    torch.testing.assert_close(routing.scores, z.softmax(-1))


def test_without_normalising_the_weights_keep_their_raw_mass():
    routing = topk(norm_topk_prob=False)(tokens())
    torch.testing.assert_close(weights(routing), routing.scores.gather(1, table(routing)))
    assert (weights(routing).sum(-1) < 1).all()


@pytest.mark.parametrize("k", [1, 2, 3, E])
def test_every_token_has_k_different_experts(k):
    routing = topk(num_experts_per_tok=k)(tokens())
    assert all(len(set(row)) == k for row in table(routing).tolist())
    assert routing.load().sum() == T * k


def test_the_router_gets_a_gradient_at_top_1_only_without_normalising():
    norms = {}
    for norm in (True, False):
        router = topk(num_experts_per_tok=1, norm_topk_prob=norm).double()
        router(tokens(dtype=torch.float64)).weight.square().sum().backward()
        norms[norm] = router.weight.grad.norm().item()
    assert norms[True] < 1e-12
    assert norms[False] > 1e-2


def test_a_selection_bias_selects_and_never_weighs():
    router, x = topk(selection_bias=True, norm_topk_prob=False), tokens()
    router.e_score_correction_bias[3] = 10.0
    routing = router(x)
    assert (table(routing)[:, 0] == 3).all()
    torch.testing.assert_close(weights(routing)[:, 0], routing.scores[:, 3])
    assert "e_score_correction_bias" in router.state_dict()
    assert not any(name == "e_score_correction_bias" for name, _ in router.named_parameters())


def test_a_selection_bias_stays_float32_with_its_exact_value():
    router = topk(selection_bias=True)
    router.e_score_correction_bias += 1.001
    for move in (router.bfloat16, router.half, router.double):
        move()
        assert router.e_score_correction_bias.dtype == torch.float32
        assert router.e_score_correction_bias[0].item() == torch.tensor(1.001).item()
    assert router.weight.dtype == torch.float64


def test_a_router_from_the_meta_device_can_be_materialised():
    with torch.device("meta"):
        router = TopKRouter(**SIZES, selection_bias=True, bias=True)
    router = router.bfloat16().to_empty(device="cpu")
    router.reset_parameters()
    assert router.e_score_correction_bias.tolist() == [0.0] * E
    assert router.e_score_correction_bias.dtype == torch.float32
    assert torch.isfinite(router.weight).all()


def test_a_learned_bias_is_part_of_the_logits():
    router, x = topk(bias=True), tokens()
    nn.init.normal_(router.bias)
    torch.testing.assert_close(router(x).logits, x @ router.weight.T + router.bias)


def test_any_function_can_score():
    router = topk(score=nn.Softplus(), norm_topk_prob=False)
    routing = router(tokens())
    torch.testing.assert_close(routing.scores, routing.logits.exp().add(1).log())


def test_a_name_that_is_not_softmax_is_for_the_builder():
    with pytest.raises(RouterError, match=r"'sigmoid'.*build_router"):
        topk(score="sigmoid")


def test_a_token_that_scores_nothing_weighs_zero_with_finite_gradients():
    router = topk(score=nn.ReLU())
    with torch.no_grad():
        router.weight.fill_(-1.0)
    x = tokens().abs().requires_grad_()
    routing = router(x)
    assert (routing.weight == 0).all()
    routing.weight.sum().backward()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(router.weight.grad).all()


def test_the_norm_has_an_order_an_epsilon_and_a_floor():
    raw = weights(topk(norm_topk_prob=False)(tokens()))
    for options, norm in [
        ({"norm_p": 2.0}, raw.square().sum(-1, keepdim=True).sqrt()),
        ({"norm_eps": 0.5}, raw.sum(-1, keepdim=True) + 0.5),
        ({"norm_min": 0.9}, raw.sum(-1, keepdim=True).clamp(min=0.9)),
    ]:
        torch.testing.assert_close(weights(topk(**options)(tokens())), raw / norm)


def test_the_scale_comes_last():
    plain, scaled = topk()(tokens()), topk(routed_scaling_factor=2.5)(tokens())
    torch.testing.assert_close(scaled.weight, 2.5 * plain.weight)


def test_sigmoid_weights_of_tiny_scores_still_sum_to_one():
    router = topk(score=nn.Sigmoid(), bias=True)
    with torch.no_grad():
        router.weight.zero_()
        router.bias.fill_(-60.0)
    torch.testing.assert_close(weights(router(tokens())).sum(-1), torch.ones(T))


def test_logits_still_order_what_a_saturated_score_cannot():
    router = topk(score=nn.Sigmoid(), choose_by="logits", bias=True, norm_topk_prob=False)
    with torch.no_grad():
        router.weight.zero_()
        router.bias.copy_(torch.arange(E) + 30.0)  # the sigmoid of every one is 1.0
    assert (table(router(tokens())) == torch.tensor([7, 6])).all()
    router.choose_by = "scores"
    assert (table(router(tokens())) == torch.tensor([0, 1])).all()


GROUPED = {"n_group": 4, "topk_group": 1, "norm_topk_prob": False, "bias": True}


def grouped(row: list[float], **options: Any) -> list[int]:
    router = topk(score=nn.Identity(), **{**GROUPED, **options})
    with torch.no_grad():
        router.weight.zero_()
        router.bias.copy_(torch.tensor(row))
    return sorted(table(router(tokens()))[0].tolist())


def test_groups_are_chosen_by_their_best_or_by_their_two_best():
    row = [9.0, 0.0, 5.0, 6.0, 1.0, 1.0, 0.0, 0.0]
    assert grouped(row) == [0, 1]
    assert grouped(row, group_score="top2") == [2, 3]
    assert grouped(row, topk_group=2) == [0, 3]
    assert grouped(row, n_group=1) == [0, 3]


def test_groups_of_one_expert_have_no_second_best():
    row = [9.0, 0.0, 5.0, 6.0, 1.0, 1.0, 0.0, 0.0]
    assert grouped(row, n_group=8, topk_group=4, group_score="top2") == [0, 3]


def test_with_zero_fill_a_rejected_expert_wins_over_a_negative_one():
    row = [-1.0, -2.0, -3.0, -4.0, -9.0, -9.0, -9.0, -9.0]
    assert grouped(row) == [0, 1]
    assert grouped(row, group_fill="zero") == [2, 3]


def test_jitter_moves_only_the_router_only_in_training():
    router, x = topk(jitter=0.5), tokens()
    before = x.clone()
    one, two = router(x).logits, router(x).logits
    assert not torch.equal(one, two)
    assert torch.equal(x, before)
    router.eval()
    assert torch.equal(router(x).logits, router(x).logits)
    torch.testing.assert_close(router(x).logits, x @ router.weight.T)


def test_jitter_stays_within_its_width():
    router = TopKRouter(hidden_size=1, num_experts=2, num_experts_per_tok=1, jitter=0.25)
    with torch.no_grad():
        router.weight.fill_(1.0)
    z = router(torch.ones(2000, 1)).logits[:, 0]
    assert 0.75 <= z.min() < 0.76
    assert 1.24 < z.max() <= 1.25


def test_near_equal_logits_in_bfloat16_keep_their_order():
    router = TopKRouter(hidden_size=2, num_experts=2, num_experts_per_tok=1).bfloat16()
    with torch.no_grad():
        router.weight.copy_(torch.tensor([[8.0, 0.0], [8.0, 1.0]]))
    x = torch.tensor([[1.0, 0.001]], dtype=torch.bfloat16)  # logits 8.000 and 8.001
    assert table(router(x)).item() == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert table(router(x.float())).item() == 1
    router.dtype = "input"
    assert table(router(x)).item() == 0  # both are 8.0, and the lower index wins


def test_float64_stays_float64():
    router, x = topk().double(), tokens(dtype=torch.float64)
    z = x @ router.weight.T
    expected = z.topk(K).values.softmax(-1)
    torch.testing.assert_close(weights(router(x)), expected, rtol=1e-14, atol=0)


def test_float64_can_be_asked_for():
    assert topk(dtype="float64")(tokens()).weight.dtype == torch.float64


def test_ties_go_to_the_lower_expert():
    router = topk()
    nn.init.zeros_(router.weight)
    assert (table(router(tokens())) == torch.tensor([0, 1])).all()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2e-45, 3e38, float("-inf")]), min_size=1),
    st.data(),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_largest_are_those_of_a_stable_sort(values, data, dtype):
    count = data.draw(st.integers(0, len(values)))
    expected = sorted(range(len(values)), key=lambda i: -torch.tensor(values)[i].item())[:count]
    assert first_largest(torch.tensor([values], dtype=dtype), count).tolist() == [expected]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_group": 3}, "n_group=3"),
        ({"n_group": 0}, "n_group=0"),
        ({"n_group": 4, "topk_group": 5}, "topk_group is 5"),
        ({"n_group": 8, "topk_group": 1}, "hold 1 experts"),
        ({"group_score": "mean"}, "group_score is 'mean'"),
        ({"group_fill": "nan"}, "group_fill is 'nan'"),
        ({"choose_by": "luck"}, "choose_by is 'luck'"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"apply_on": "both"}, "apply_on is 'both'"),
        ({"norm_p": 0.5}, "norm_p is 0.5"),
        ({"norm_eps": -1.0}, r"norm_eps is -1\.0"),
        ({"norm_min": -1.0}, r"norm_min is -1\.0"),
        ({"jitter": 1.0}, r"jitter is 1\.0"),
        ({"jitter": float("nan")}, "jitter is nan"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_value(options, message):
    with pytest.raises(RouterError, match=message):
        topk(**options)


def test_every_option_of_topk_changes_something():
    given = {
        "score": nn.Sigmoid(),
        "norm_topk_prob": False,
        "norm_p": 2.0,
        "norm_eps": 0.5,
        "norm_min": 2.0,
        "routed_scaling_factor": 2.0,
        "jitter": 0.3,
        "dtype": "float64",
        "apply_on": "input",
        "bias": True,
        "selection_bias": True,
    }
    tested_above = {"choose_by", "n_group", "topk_group", "group_score", "group_fill"}
    assert given.keys() | tested_above == option_parameters("router", TopKRouter).keys()
    plain = topk()
    for name, value in given.items():
        changed = topk(**{name: value})
        differs = not torch.equal(changed(tokens()).weight, plain(tokens()).weight)
        others = changed.apply_on != "output" or len(changed.state_dict()) > 1
        assert differs or others, name


@pytest.mark.parametrize("spec", [s for s in ROUTERS if s.name in ("topk", "sparsemixer")])
def test_a_router_compiles_into_one_graph_with_the_same_result(spec):
    torch._dynamo.reset()
    torch.manual_seed(0)
    router, x = resolve(spec.target)(**SIZES), tokens()
    compiled = torch.compile(router, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(tuple(compiled(x))[:3], tuple(router(x))[:3])


def test_expert_choice_takes_each_experts_best_tokens():
    router = routers.ExpertChoiceRouter(hidden_size=H, num_experts=3, num_experts_per_tok=2)
    routing = router(tokens())
    p = (tokens() @ router.weight.T).softmax(-1)
    assert routing.load().tolist() == [4, 4, 4]  # 6 tokens · 2 / 3 experts
    for e in range(3):
        mine = routing.expert == e
        best = p[:, e].topk(4)
        assert torch.equal(routing.token[mine], best.indices)
        torch.testing.assert_close(routing.weight[mine], best.values)
    assert routing.num_experts_per_tok is None


def test_expert_choice_rounds_capacity_up():
    router = routers.ExpertChoiceRouter(hidden_size=H, num_experts=4, num_experts_per_tok=1)
    assert router(tokens(count=5)).load().tolist() == [2, 2, 2, 2]


def test_sparsemixer_by_hand():
    router = routers.SparseMixerRouter(
        hidden_size=1, num_experts=4, num_experts_per_tok=2, jitter=0.1
    )
    with torch.no_grad():
        router.weight.copy_(torch.tensor([[10.0], [9.0], [7.5], [1.0]]))
    routing = router(torch.ones(1, 1))
    assert table(routing).tolist() == [[0, 1]]
    # within 20 %: 10 has the rival 9; 9 without 10 has 7.5, by (9 - 7.5) / 9 = 0.17
    expected = [[10.0, 9.0], [9.0, 7.5]]
    first = [torch.tensor(pair).softmax(0)[0].item() for pair in expected]
    assert weights(routing)[0].tolist() == pytest.approx(first)


def test_forced_and_uniform_by_hand():
    forced = routers.ForcedRouter(**SIZES, experts=[5, 2])(tokens())
    assert table(forced).tolist() == [[5, 2]] * T
    uniform = routers.UniformRouter(hidden_size=H, num_experts=3, num_experts_per_tok=2)(tokens())
    assert table(uniform).tolist() == [[0, 1], [2, 0], [1, 2]] * 2
    for routing in (forced, uniform):
        assert routing.weight.tolist() == [0.5] * (T * K)
        torch.testing.assert_close(routing.scores.sum(-1), torch.ones(T))


@pytest.mark.parametrize("experts", [[1, 1], [0], [0, 8], [0, -1]])
def test_forced_experts_must_be_k_different_ones(experts):
    with pytest.raises(RouterError, match="give 2 different numbers from 0 to 7"):
        routers.ForcedRouter(**SIZES, experts=experts)


class Layer(nn.Module):
    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.router, self.taps = router, []

    def forward(self, x: Tensor) -> Tensor:
        routing = self.router(x)
        for tap in self.taps:
            tap(routing)
        out = torch.zeros_like(x)
        scale = routing.weight * (routing.expert + 1)
        return out.index_add(0, routing.token, scale.unsqueeze(-1) * x[routing.token])


def test_replay_gives_the_recorded_routing_back_with_gradient():
    model, x = nn.Sequential(Layer(topk(0)), Layer(topk(1))), tokens()
    with record_routing(model) as record:
        expected = model(x)
    choices = record.replay()
    assert list(choices) == ["0", "1"]
    with routers.replay_routing(model, choices):
        torch.testing.assert_close(model(x), expected)
        with record_routing(model) as again:
            model(x + 3).sum().backward()  # other tokens, the same experts
    assert torch.equal(again.replay()["1"], choices["1"])
    assert model[0].router.weight.grad.norm() > 0
    assert isinstance(model[0].router, TopKRouter)


def test_replay_puts_the_routers_back_when_the_block_fails():
    model = nn.Sequential(Layer(topk()))
    own = model[0].router
    with (
        pytest.raises(ReplayError, match="5 tokens to route, but choices of 6"),
        routers.replay_routing(model, {"0": torch.zeros(T, K, dtype=torch.int64)}),
    ):
        model(tokens(count=5))
    assert model[0].router is own


@pytest.mark.parametrize("name", ["1", "0"])
def test_replay_refuses_unknown_layers_and_other_routers(name):
    model = nn.Sequential(Layer(routers.UniformRouter(**SIZES)))
    with (
        pytest.raises(ReplayError, match=f"layer '{name}'"),
        routers.replay_routing(model, {name: torch.zeros(T, K, dtype=torch.int64)}),
    ):
        pass

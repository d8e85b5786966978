"""Balance terms against closed forms, and the rule that moves the selection bias."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import get_type_hints

import pytest
import torch
from torch import Tensor, nn

from mlpkit import balance as bal
from mlpkit.catalogue.routers import BALANCES
from mlpkit.routers import TopKRouter
from mlpkit.routing import NoRouterGradientError, Routing, concatenate, record_routing
from mlpkit.specs import resolve

E, K, H = 4, 2, 3


def route(logits: Tensor, k: int = K, leading: tuple[int, ...] = ()) -> Routing:
    scores = logits.softmax(-1)
    weight, expert = scores.topk(k)
    token = torch.arange(len(logits)).repeat_interleave(k)
    return Routing(token, expert.flatten(), weight.flatten(), k, logits, scores, leading)


def random_logits(tokens: int = 12, seed: int = 0, **options) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(tokens, E, generator=generator, dtype=torch.float64, **options)


def collapsed(expert: int, tokens: int = 8) -> Tensor:
    """Logits with which every token goes to one expert, surely."""
    logits = torch.zeros(tokens, E, dtype=torch.float64)
    logits[:, expert] = 60.0
    return logits


def load_by_loop(logits: Tensor, k: int, *, divide: bool) -> Tensor:
    """E·Σ f·P, token by token in Python."""
    tokens, experts = logits.shape
    counts, total = [0] * experts, [torch.zeros((), dtype=logits.dtype)] * experts
    for row in logits:
        exp = [z.exp() for z in row - row.max().detach()]
        for e in sorted(range(experts), key=lambda e: -row[e].item())[:k]:
            counts[e] += 1
        total = [t + e / sum(exp) for t, e in zip(total, exp, strict=True)]
    f = [c / (tokens * k if divide else tokens) for c in counts]
    return experts * sum(a * b / tokens for a, b in zip(f, total, strict=True))


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("divide", [True, False])
def test_load_is_its_formula_in_value_and_gradient(k, divide):
    logits = random_logits(requires_grad=True)
    value = bal.LoadBalance(divide_by_k=divide)(route(logits, k))
    expected = load_by_loop(logits, k, divide=divide)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(value, logits),
        torch.autograd.grad(expected, logits),
        rtol=1e-10,
        atol=1e-14,
    )


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_uniform_router_gives_one_or_k(k):
    uniform = route(torch.zeros(8, E, dtype=torch.float64), k)
    turn = (torch.arange(8 * k) % E).view(-1)
    uniform = uniform._replace(expert=turn)
    assert bal.LoadBalance()(uniform).item() == pytest.approx(1.0)
    assert bal.LoadBalance(divide_by_k=False)(uniform).item() == pytest.approx(k)


def test_collapse_onto_one_expert_gives_e():
    assert bal.LoadBalance()(route(collapsed(1), 1)).item() == pytest.approx(E)


def test_layers_that_collapse_differently_score_e_and_only_pooled_they_look_balanced():
    layers = [route(collapsed(e), 1) for e in range(E)]
    term = bal.LoadBalance()
    assert sum(term(layer) for layer in layers).item() / E == pytest.approx(4.0)
    assert term(concatenate(layers)).item() == pytest.approx(1.0)


@pytest.mark.parametrize("k", [1, 2])
def test_hf_scale_is_transformers_value_for_one_layer_and_for_pooled_ones(k):
    hf = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    layers = [random_logits(seed=s).float().requires_grad_() for s in range(3)]
    for chosen in (layers[:1], layers):
        value = bal.load_hf()(concatenate([route(z, k) for z in chosen]))
        expected = hf.load_balancing_loss_func(tuple(chosen), E, k)
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            torch.autograd.grad(value, chosen),
            torch.autograd.grad(expected, chosen),
            rtol=1e-5,
            atol=1e-7,
        )


def test_hf_scale_is_transformers_value_with_padding():
    hf = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    layers = [random_logits(seed=s).float() for s in range(2)]
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    flat = torch.cat([mask.flatten().bool()] * 2)
    value = bal.load_hf()(concatenate([route(z) for z in layers]), flat)
    expected = hf.load_balancing_loss_func(tuple(layers), E, K, attention_mask=mask)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("k", [1, 2])
def test_minimind_scale_is_its_formula(k):
    """coef·E·Σ_{j,e} f_{j,e}·P_e, where f_{j,e} is the share of tokens whose choice j is e."""
    layers = [random_logits(seed=s) for s in range(3)]
    expected = 0.0
    for z in layers:
        p = z.softmax(-1)
        chosen = torch.nn.functional.one_hot(p.topk(k).indices, E).double().mean(0)  # (K, E)
        expected += 5e-4 * E * (chosen * p.mean(0)).sum().item()
    term = bal.load_minimind()
    assert term.over_layers == "sum"
    total = term.coefficient * sum(term(route(z, k)) for z in layers)
    assert total.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("k", [1, 2])
def test_sequence_scope_is_minimind_2025s_formula(k):
    """mean_b Σ_e count_be / (S·k/E) · mean_s p_bse."""
    batch, length = 3, 4
    p = random_logits().softmax(-1).view(batch, length, E)
    expected = 0.0
    for b in range(batch):
        for e in range(E):
            count = sum(e in row.topk(k).indices.tolist() for row in p[b])
            expected += count / (length * k / E) * p[b, :, e].mean().item() / batch
    routing = route(random_logits(), k, leading=(batch, length))
    value = bal.LoadBalance(over_tokens="sequence")(routing)
    assert value.item() == pytest.approx(expected, rel=1e-12)
    assert value.item() != pytest.approx(bal.LoadBalance()(routing).item(), rel=1e-3)


def test_token_scope_is_the_mean_of_single_tokens():
    logits = random_logits()
    single = [bal.LoadBalance()(route(row.unsqueeze(0))).item() for row in logits]
    value = bal.LoadBalance(over_tokens="token")(route(logits))
    assert value.item() == pytest.approx(sum(single) / len(single), rel=1e-12)


TERMS = [
    bal.LoadBalance(),
    bal.LoadBalance(divide_by_k=False, probability="softmax"),
    bal.LoadBalance(over_tokens="token"),
    bal.ZLoss(),
    bal.ImportanceCV(),
    bal.L1(),
    bal.Entropy(),
]


@pytest.mark.parametrize("term", TERMS, ids=lambda t: type(t).__name__)
def test_padding_weighs_nothing(term):
    logits = random_logits()
    mask = torch.tensor([True] * 7 + [False] * 5)
    value = term(route(logits), mask)
    assert value.item() == pytest.approx(term(route(logits[:7])).item(), rel=1e-12)
    moved = torch.where(mask.unsqueeze(-1), logits, -logits.flip(-1))
    assert term(route(moved), mask).item() == pytest.approx(value.item(), rel=1e-12)


def test_a_padded_sequence_counts_by_its_own_real_tokens():
    logits = random_logits()
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    term = bal.LoadBalance(over_tokens="sequence")
    single = bal.LoadBalance()
    expected = (single(route(logits[:4])) + single(route(logits[4:6]))) / 2
    value = term(route(logits, leading=(3, 4)), mask.flatten())
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("term", [*TERMS, bal.LoadBalance(over_tokens="sequence")])
@pytest.mark.parametrize("leading", [(0,), (0, 3), (2, 0)])
def test_no_tokens_give_zero_and_no_nan(term, leading):
    logits = torch.zeros(0, E, requires_grad=True)
    value = term(route(logits, leading=leading))
    assert value.item() == 0.0
    value.backward()
    masked = term(route(random_logits(6)), torch.zeros(6, dtype=torch.bool))
    assert masked.item() == 0.0


@pytest.mark.parametrize("term", TERMS, ids=lambda t: type(t).__name__)
def test_gradients_are_those_of_finite_differences(term):
    logits = random_logits(5, requires_grad=True)
    chosen = route(logits.detach())

    def value(z: Tensor) -> Tensor:
        scores = z.softmax(-1)
        weight = scores[chosen.token, chosen.expert]
        return term(chosen._replace(logits=z, scores=scores, weight=weight))

    assert torch.autograd.gradcheck(value, logits)


@pytest.mark.parametrize("scale", [-60.0, -300.0])
def test_tiny_sigmoid_scores_do_not_lower_the_load_term_below_its_floor(scale):
    logits = torch.full((8, E), scale, requires_grad=True)
    routing = route(logits)._replace(scores=logits.sigmoid())
    value = bal.LoadBalance()(routing)
    value.backward()
    assert value.item() == pytest.approx(1.0)
    assert torch.isfinite(logits.grad).all()


def test_the_load_term_looks_at_probabilities_of_all_experts_and_at_who_was_chosen():
    skewed, turned = random_logits(), random_logits()
    turned = torch.stack([row.roll(i) for i, row in enumerate(turned)])  # the same top scores
    term = bal.LoadBalance()
    assert abs(term(route(skewed)).item() - term(route(turned)).item()) > 1e-3


def test_z_loss_by_hand():
    assert bal.ZLoss()(route(torch.zeros(3, 8))).item() == pytest.approx(4.324077, abs=1e-6)
    huge = torch.tensor([[200.0, 0.0, 0.0, 0.0]])
    assert bal.ZLoss()(route(huge)).item() == pytest.approx(40000.0)


def test_importance_cv_by_hand():
    weight = torch.tensor([3.0, 1.0])
    logits = torch.zeros(2, 2)
    routing = Routing(torch.arange(2), torch.arange(2), weight, 1, logits, logits)
    assert bal.ImportanceCV()(routing).item() == 0.25  # variance 1 over mean 2 squared
    assert bal.ImportanceCV()(route(collapsed(1), 1)).item() == pytest.approx(E - 1)


def test_l1_and_entropy_by_hand():
    scores = torch.tensor([[0.5, 0.5, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]])
    routing = route(scores)._replace(scores=scores)
    assert bal.L1()(routing).item() == 1.5
    assert bal.Entropy()(routing).item() == pytest.approx(math.log(2) / 2)


def test_entropy_of_a_certain_token_has_a_finite_gradient():
    logits = collapsed(0).mul(20).requires_grad_()
    bal.Entropy()(route(logits)).backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (bal.LoadBalance, {"over_layers": "global"}, "over_layers is 'global'"),
        (bal.LoadBalance, {"over_tokens": "word"}, "over_tokens is 'word'"),
        (bal.LoadBalance, {"probability": "sigmoid"}, "probability is 'sigmoid'"),
        (bal.SelectionBias, {"step": "log"}, "step is 'log'"),
        (bal.SelectionBias, {"decay": 1.0}, "decay is 1.0"),
    ],
)
def test_wrong_options_are_refused_by_value(make, options, message):
    with pytest.raises(bal.BalanceError, match=message) as error:
        make(**options)
    assert error.value.exit_code == 2


class Layer(nn.Module):
    def __init__(self, rule: object | None, selection_bias: bool = True) -> None:
        super().__init__()
        self.router = TopKRouter(
            hidden_size=H, num_experts=E, num_experts_per_tok=K, selection_bias=selection_bias
        )
        self.taps: list = []
        self.balance = {} if rule is None else {"selection_bias": rule, "z": bal.ZLoss()}

    def forward(self, x: Tensor) -> Tensor:
        routing = self.router(x)
        for tap in self.taps:
            tap(routing)
        return x + routing.weight.mean()


def model_of(*rules: object | None) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*[Layer(rule) for rule in rules])


def test_the_sign_rule_is_the_papers():
    bias = torch.tensor([0.5, 0.0, -0.25, 0.0])
    bal.SelectionBias(coefficient=0.125).update(bias, torch.tensor([10, 4, 0, 2]))  # mean 4
    assert bias.tolist() == [0.375, 0.0, -0.125, 0.125]


def test_the_zero_mean_rule_does_not_drift():
    bias = torch.zeros(4)
    bal.SelectionBias(coefficient=0.5, zero_mean=True).update(bias, torch.tensor([10, 2, 2, 2]))
    assert bias.tolist() == [-0.75, 0.25, 0.25, 0.25]  # (-1, 1, 1, 1) / 2 less their mean 1/4


def test_the_proportional_rule_with_decay_is_a_moving_average():
    bias, average, rate, decay = torch.zeros(4), torch.zeros(4), 0.01, 0.1
    rule = bal.SelectionBias(coefficient=rate, step="proportional", decay=decay)
    for seed in range(5):
        load = torch.randint(1, 20, (4,), generator=torch.Generator().manual_seed(seed))
        violation = 1 - load / load.float().mean()
        average = (1 - decay) * average + decay * violation
        rule.update(bias, load)
    torch.testing.assert_close(bias, rate / decay * average)


def test_bias_moves_once_per_step_and_accumulation_makes_no_difference():
    batches = torch.randn(4, 5, H, generator=torch.Generator().manual_seed(0))
    biases = []
    for parts in (batches.unbind(0), [batches.view(-1, H)]):
        model = model_of(bal.SelectionBias(), bal.SelectionBias(step="proportional"))
        with record_routing(model) as record:
            for part in parts:
                model(part).sum().backward()
                record.losses()
            bal.update_router_bias(model, record)
            once = [layer.router.e_score_correction_bias.clone() for layer in model]
            bal.update_router_bias(model, record)  # no tokens since: nothing moves
        assert all(
            torch.equal(a, b.router.e_score_correction_bias)
            for a, b in zip(once, model, strict=True)
        )
        biases.append(once)
    assert biases[0][0].abs().max() == pytest.approx(0.001)
    torch.testing.assert_close(biases[0], biases[1], rtol=0, atol=0)


def test_evaluation_tokens_do_not_move_the_bias():
    model = model_of(bal.SelectionBias()).eval()
    with record_routing(model) as record:
        model(torch.randn(5, H))
        bal.update_router_bias(model, record)
    assert model[0].router.e_score_correction_bias.tolist() == [0.0] * E


def test_a_layer_without_a_rule_between_two_with_one_stops_nothing():
    model = model_of(bal.SelectionBias(), None, bal.SelectionBias())
    with record_routing(model) as record:
        model(torch.randn(5, H, generator=torch.Generator().manual_seed(0)))
        bal.update_router_bias(model, record)
    moved = [bool(layer.router.e_score_correction_bias.any()) for layer in model]
    assert moved == [True, False, True]


def test_a_rule_of_coefficient_zero_is_off():
    model = model_of(bal.SelectionBias(coefficient=0.0))
    with record_routing(model) as record:
        model(torch.randn(5, H))
        bal.update_router_bias(model, record)
    assert not model[0].router.e_score_correction_bias.any()


def test_a_rule_without_a_bias_to_move_is_refused_by_layer():
    model = nn.Sequential(Layer(bal.SelectionBias(), selection_bias=False))
    with record_routing(model) as record:
        model(torch.randn(5, H))
    with pytest.raises(bal.BiasUpdateError, match=r"'0'.*selection_bias=true"):
        bal.update_router_bias(model, record)


def test_the_counts_of_all_ranks_decide_together(monkeypatch):
    def all_reduce(load: Tensor) -> None:
        load.add_(torch.tensor([0, 0, 0, 1000]))  # what the other ranks counted

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    model = model_of(bal.SelectionBias(coefficient=0.5), bal.SelectionBias(coefficient=0.5))
    with record_routing(model) as record:
        model[0](torch.randn(5, H))  # the second layer runs on the other ranks alone
        bal.update_router_bias(model, record)
    for layer in model:
        assert layer.router.e_score_correction_bias.tolist() == [0.5, 0.5, 0.5, -0.5]


def test_the_rule_balances_a_lopsided_router():
    model = model_of(bal.SelectionBias(coefficient=0.01))
    x = torch.randn(256, H, generator=torch.Generator().manual_seed(0)).abs()
    worst = []
    for _ in range(60):
        with record_routing(model) as record, torch.no_grad():
            model(x)
            bal.update_router_bias(model, record)
        load = record.load()["0"].double()
        worst.append((load.max() / load.mean()).item())
    assert worst[0] > 1.5
    assert worst[-1] < 1.15


def test_a_bias_rule_is_no_loss():
    model = model_of(bal.SelectionBias())
    with record_routing(model) as record:
        model(torch.randn(5, H))
    assert list(record.losses()) == ["z"]


def test_a_term_that_cannot_reach_its_router_is_refused():
    model = model_of(bal.SelectionBias())
    model[0].router.requires_grad_(False)
    with record_routing(model) as record:
        model(torch.randn(5, H))
    with pytest.raises(NoRouterGradientError, match="'z'"):
        record.losses()


@pytest.mark.parametrize("spec", BALANCES, ids=lambda s: s.name)
def test_a_schema_is_the_constructors_signature(spec):
    target = resolve(spec.target)
    hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
    signature = {
        p.name: (hints[p.name], p.default) for p in inspect.signature(target).parameters.values()
    }
    schema = get_type_hints(spec.config)
    fields = {f.name: (schema[f.name], f.default) for f in dataclasses.fields(spec.config)}
    assert fields.pop("name") == (str, spec.name)
    assert fields == signature


@pytest.mark.parametrize("spec", BALANCES, ids=lambda s: s.name)
def test_every_entry_builds_with_a_coefficient_alone(spec):
    made = resolve(spec.target)(coefficient=0.5)
    assert made.coefficient == 0.5
    assert isinstance(made, bal.BalanceTerm) != hasattr(made, "update")

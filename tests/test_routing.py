"""Routing, the record of it, and its health numbers."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from mlpkit import routing as rt
from mlpkit.routing import Routing, record_routing

E, K, H = 4, 2, 3


def routing_of(logits: Tensor, k: int = K, leading: tuple[int, ...] = ()) -> Routing:
    scores = logits.softmax(-1)
    weight, expert = scores.topk(k)
    token = torch.arange(len(logits)).repeat_interleave(k)
    return Routing(token, expert.flatten(), weight.flatten(), k, logits, scores, leading)


class MeanSquare:
    """A term whose value is known: the mean of the squared logits of real tokens."""

    def __init__(self, coefficient: float = 1.0, over_layers: str = "mean") -> None:
        self.coefficient, self.over_layers = coefficient, over_layers

    def __call__(self, routing: Routing, mask: Tensor | None = None) -> Tensor:
        rows = routing.logits if mask is None else routing.logits[mask]
        return rows.square().mean()


class Rule:
    """A bias rule: has a coefficient, cannot be called, and is no loss."""

    coefficient = 1.0


class Layer(nn.Module):
    """A stand-in for a MoE layer: a router, taps and balance."""

    def __init__(self, balance: dict | None = None) -> None:
        super().__init__()
        self.gate = nn.Linear(H, E)
        self.taps: list = []
        self.balance = {} if balance is None else balance

    def forward(self, x: Tensor) -> Tensor:
        routing = routing_of(self.gate(x.reshape(-1, H)))._replace(leading=x.shape[:-1])
        for tap in self.taps:
            tap(routing)
        return x + routing.scores.sum(-1).view(*x.shape[:-1], 1) + routing.logits.mean()


class Model(nn.Module):
    def __init__(self, *balances: dict | None, recompute: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(balance) for balance in balances)
        self.recompute = recompute
        self.skip: set[int] = set()

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            if i in self.skip:
                continue
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x


def batch(seed: int = 1, shape: tuple[int, ...] = (2, 3)) -> Tensor:
    return torch.randn(*shape, H, generator=torch.Generator().manual_seed(seed))


def logits_of(model: Model, x: Tensor) -> list[Tensor]:
    """Each layer's logits, by the plain formula."""
    found = []
    for layer in model.layers:
        z = layer.gate(x.reshape(-1, H))
        found.append(z)
        x = x + z.softmax(-1).sum(-1).view(*x.shape[:-1], 1) + z.mean()
    return found


def test_load_counts_every_choice_once_and_keeps_idle_experts():
    routing = routing_of(torch.tensor([[3.0, 2.0, 1.0, 0.0], [3.0, 1.0, 2.0, 0.0]]))
    assert routing.load().tolist() == [2, 1, 1, 0]
    assert routing.load().sum() == routing.num_tokens * K
    assert routing.num_experts == E


def test_token_choice_is_token_major():
    routing = routing_of(torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]]))
    assert routing.token.tolist() == [0, 0, 1, 1]
    assert routing.expert.view(2, K).tolist() == [[0, 1], [3, 2]]


def test_dropping_is_a_filter_and_load_follows():
    routing = routing_of(torch.tensor([[3.0, 2.0, 1.0, 0.0], [3.0, 1.0, 2.0, 0.0]]))
    keep = torch.tensor([True, False, True, True])
    kept = routing._replace(
        token=routing.token[keep],
        expert=routing.expert[keep],
        weight=routing.weight[keep],
        num_experts_per_tok=None,
    )
    assert kept.load().tolist() == [2, 0, 1, 0]


def test_concatenated_layers_renumber_their_tokens():
    first, second = (routing_of(torch.randn(6, E), leading=(2, 3)) for _ in range(2))
    both = rt.concatenate([first, second])
    assert both.token.tolist() == [*first.token.tolist(), *(second.token + 6).tolist()]
    assert both.leading == (4, 3)
    assert both.num_experts_per_tok == K
    assert torch.equal(both.load(), first.load() + second.load())


def test_layers_of_different_experts_cannot_be_concatenated():
    with pytest.raises(rt.LayersDifferError, match=r"\[3, 4\]"):
        rt.concatenate([routing_of(torch.randn(2, 4)), routing_of(torch.randn(2, 3))])


def test_sequences_of_different_lengths_cannot_be_concatenated():
    first, second = routing_of(torch.randn(6, E), leading=(2, 3)), routing_of(torch.randn(6, E))
    with pytest.raises(rt.LayersDifferError, match=r"\[3, 6\]"):
        rt.concatenate([first, second])


def test_detached_routing_has_the_same_values_and_no_graph():
    routing = routing_of(torch.randn(2, E, requires_grad=True))
    cut = routing.detach()
    assert not any(t.requires_grad for t in (cut.weight, cut.logits, cut.scores))
    assert torch.equal(cut.weight, routing.weight)


def test_a_record_names_layers_and_takes_itself_out():
    model = Model({}, {})
    with record_routing(model) as record:
        model(batch())
        assert [len(layer.taps) for layer in model.layers] == [1, 1]
    assert [len(layer.taps) for layer in model.layers] == [0, 0]
    assert list(record.routings()) == ["layers.0", "layers.1"]
    assert record.routings()["layers.0"][0].leading == (2, 3)


def test_a_record_takes_itself_out_when_the_block_fails():
    model = Model({})
    with pytest.raises(RuntimeError, match="boom"), record_routing(model):
        raise RuntimeError("boom")
    assert model.layers[0].taps == []


def test_losses_are_coefficient_times_mean_over_layers_and_reach_the_router():
    model = Model({"sq": MeanSquare(0.5), "off": MeanSquare(0.0), "rule": Rule()}, {})
    model.layers[1].balance = {"sq": MeanSquare(0.25)}
    x = batch()
    with record_routing(model) as record:
        model(x)
    z = logits_of(model, x)
    expected = (0.5 * z[0].square().mean() + 0.25 * z[1].square().mean()) / 2
    losses = record.losses()
    assert list(losses) == ["sq"]
    torch.testing.assert_close(losses["sq"], expected)
    grad = torch.autograd.grad(losses["sq"], model.layers[0].gate.weight)[0]
    reference = torch.autograd.grad(expected, model.layers[0].gate.weight)[0]
    torch.testing.assert_close(grad, reference)


def test_terms_are_raw_and_by_layer():
    model, x = Model({"sq": MeanSquare(0.5)}, {"sq": MeanSquare(0.5)}), batch()
    with record_routing(model) as record:
        model(x)
    z = logits_of(model, x)
    terms = record.terms()
    assert list(terms["sq"]) == ["layers.0", "layers.1"]
    torch.testing.assert_close(terms["sq"]["layers.1"], z[1].square().mean())


def test_a_term_can_be_summed_over_layers():
    balance = {"sq": MeanSquare(0.5, "sum")}
    model, x = Model(balance, balance), batch()
    with record_routing(model) as record:
        model(x)
    expected = sum(0.5 * z.square().mean() for z in logits_of(model, x))
    torch.testing.assert_close(record.losses()["sq"], expected)


def test_a_pooled_term_sees_all_layers_at_once():
    class Product(MeanSquare):
        def __call__(self, routing, mask=None):
            return routing.logits.mean(0).square().sum()  # not linear in the layers

    balance = {"p": Product(2.0, "pooled")}
    model, x = Model(balance, balance), batch()
    with record_routing(model) as record:
        model(x)
    expected = torch.cat(logits_of(model, x)).mean(0).square().sum()
    torch.testing.assert_close(record.terms()["p"], {"pooled": expected})
    torch.testing.assert_close(record.losses()["p"], 2 * expected)


def test_a_pooled_term_with_two_coefficients_is_refused():
    model = Model({"sq": MeanSquare(1.0, "pooled")}, {"sq": MeanSquare(2.0, "pooled")})
    with record_routing(model) as record:
        model(batch())
    with pytest.raises(rt.LayersDifferError, match=r"\[1\.0, 2\.0\]"):
        record.losses()


def test_a_mask_takes_padding_out_of_every_layer():
    balance = {"sq": MeanSquare()}
    model, x = Model(balance, balance), batch()
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    with record_routing(model) as record:
        model(x)
    keep = mask.flatten().bool()
    expected = sum(z[keep].square().mean() for z in logits_of(model, x)) / 2
    torch.testing.assert_close(record.losses(mask)["sq"], expected)
    torch.testing.assert_close(record.losses(mask.bool())["sq"], expected)


def test_a_records_mask_takes_padding_out_of_counts_and_terms():
    model, x = Model({"sq": MeanSquare()}), batch()
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    keep = mask.flatten().bool()
    with record_routing(model) as record:
        record.mask = mask
        model(x)
        model(x)
        record.mask = None
        model(x)
        record.mask = mask
    z = logits_of(model, x)[0]
    expected = 2 * routing_of(z[keep]).load() + routing_of(z).load()
    assert torch.equal(record.load()["layers.0"], expected)
    assert torch.equal(record.take_step_load()["layers.0"], expected)
    torch.testing.assert_close(record.losses()["sq"], z[keep].square().mean())


def test_a_records_mask_of_another_shape_is_refused_in_the_forward():
    model = Model({})
    with record_routing(model) as record:
        record.mask = torch.ones(3, 2)
        with pytest.raises(rt.MaskShapeError, match=r"\(3, 2\)"):
            model(batch())


@pytest.mark.parametrize("shape", [(2, 4), (3, 2), (6,)])
def test_a_mask_of_another_shape_is_refused(shape):
    model = Model({"sq": MeanSquare()})
    with record_routing(model) as record:
        model(batch())
    with pytest.raises(rt.MaskShapeError, match=r"\(2, 3\)"):
        record.losses(torch.ones(shape))


def test_asking_twice_gives_the_same_and_the_next_forward_replaces_it():
    model = Model({"sq": MeanSquare()})
    with record_routing(model) as record:
        model(batch(1))
        first = record.losses()["sq"]
        assert torch.equal(record.losses()["sq"], first)
        model(batch(2))
        second = record.losses()["sq"]
    torch.testing.assert_close(second, logits_of(model, batch(2))[0].square().mean())
    assert not torch.equal(first, second)


def test_two_forwards_before_one_loss_both_count():
    model = Model({"sq": MeanSquare(1.0, "sum")})
    with record_routing(model) as record:
        model(batch(1))
        model(batch(2))
        loss = record.losses()["sq"]
    values = [logits_of(model, batch(seed))[0].square().mean() for seed in (1, 2)]
    torch.testing.assert_close(loss, sum(values) / 2)


def test_a_layer_skipped_in_the_next_forward_leaves_nothing_stale():
    model = Model({"sq": MeanSquare()}, {"sq": MeanSquare()})
    with record_routing(model) as record:
        model(batch())
        record.losses()
        model.skip = {1}
        model(batch())
        assert list(record.terms()["sq"]) == ["layers.0"]


def test_evaluation_between_forward_and_loss_changes_nothing():
    model = Model({"sq": MeanSquare()})
    with record_routing(model) as record:
        model(batch(1))
        with torch.no_grad():
            model.eval()
            model(batch(2))
            model.train()
        loss = record.losses()["sq"]
    torch.testing.assert_close(loss, logits_of(model, batch(1))[0].square().mean())


def test_a_long_evaluation_keeps_one_routing_and_every_count():
    model = Model({"sq": MeanSquare()}).eval()
    with record_routing(model) as record, torch.no_grad():
        for seed in range(5):
            model(batch(seed))
    assert len(record.routings()["layers.0"]) == 1
    assert record.load()["layers.0"].sum() == 5 * 6 * K
    assert not record.losses()["sq"].requires_grad


def test_load_adds_up_until_reset_and_tells_training_from_evaluation():
    model = Model({}, {})
    with record_routing(model) as record:
        model(batch(1))
        model(batch(2))
        model.eval()
        model(batch(3))
    counts = [routing_of(logits_of(model, batch(s))[1]).load() for s in (1, 2, 3)]
    assert torch.equal(record.load()["layers.1"], sum(counts))
    assert torch.equal(record.load(training=True)["layers.1"], counts[0] + counts[1])
    assert torch.equal(record.load(training=False)["layers.1"], counts[2])
    record.reset()
    assert record.load() == {}


def test_the_step_window_is_taken_once_and_is_not_reset_with_the_load():
    model = Model({})
    with record_routing(model) as record:
        model(batch(1))
        model.eval()
        model(batch(2))
        record.reset()
    taken = record.take_step_load()["layers.0"]
    assert torch.equal(taken, routing_of(logits_of(model, batch(1))[0]).load())
    assert record.take_step_load() == {}


def test_two_models_in_one_process_each_have_their_own_record():
    one, two = Model({"sq": MeanSquare()}), Model({"sq": MeanSquare()})
    with record_routing(one) as first, record_routing(two) as second:
        one(batch(1))
        two(batch(2))
    torch.testing.assert_close(first.losses()["sq"], logits_of(one, batch(1))[0].square().mean())
    torch.testing.assert_close(second.losses()["sq"], logits_of(two, batch(2))[0].square().mean())


def test_two_records_on_one_model_do_not_disturb_each_other():
    model = Model({})
    with record_routing(model) as outer:
        model(batch(1))
        with record_routing(model) as inner:
            model(batch(2))
    assert outer.load()["layers.0"].sum() == 2 * 6 * K
    assert inner.load()["layers.0"].sum() == 6 * K


def test_a_record_leaves_outputs_and_state_as_they_are():
    model, x = Model({"sq": MeanSquare()}), batch()
    plain, keys = model(x), list(model.state_dict())
    with record_routing(model):
        assert torch.equal(model(x), plain)
        assert list(model.state_dict()) == keys
        copy.deepcopy(model.state_dict())


def test_recomputation_by_a_checkpoint_is_not_recorded_again():
    model, plain = Model({"sq": MeanSquare()}, {}, recompute=True), Model({"sq": MeanSquare()}, {})
    x = batch().requires_grad_()
    grads = []
    for each in (model, plain):
        with record_routing(each) as record:
            y = each(x)
            (y.sum() + sum(record.losses().values())).backward()
            assert {len(r) for r in record.routings().values()} == {1}
            assert record.load()["layers.0"].sum() == 6 * K
        grads.append([p.grad for p in each.parameters()])
    torch.testing.assert_close(grads[0], grads[1])


def test_a_checkpoint_whose_backward_runs_after_the_record_closed_is_exact():
    model = Model({"sq": MeanSquare()}, recompute=True)
    x = batch().requires_grad_()
    with record_routing(model) as record:
        y = model(x)
    (y.sum() + record.losses()["sq"]).backward()
    plain = Model({"sq": MeanSquare()})
    z = logits_of(plain, x)[0]
    (plain(x).sum() + z.square().mean()).backward()
    torch.testing.assert_close(model.layers[0].gate.weight.grad, plain.layers[0].gate.weight.grad)


def test_a_frozen_router_in_training_is_refused_by_name():
    model = Model({"sq": MeanSquare()})
    model.layers[0].gate.requires_grad_(False)
    with record_routing(model) as record:
        model(batch())
    with pytest.raises(rt.NoRouterGradientError, match=r"'sq' of layer 'layers.0'"):
        record.losses()


def test_a_reentrant_checkpoint_is_refused_because_it_loses_the_gradient():
    model = Model({"sq": MeanSquare()})
    x = batch().requires_grad_()
    with record_routing(model) as record:
        checkpoint(model.layers[0], x, use_reentrant=True)
    with pytest.raises(rt.NoRouterGradientError, match="use_reentrant=False"):
        record.losses()


def test_terms_under_no_grad_are_numbers_and_no_error():
    model = Model({"sq": MeanSquare()})
    with record_routing(model) as record, torch.no_grad():
        model(batch())
        assert record.losses()["sq"] > 0


# dynamo looks at .grad of tensors between compiled layers and means to silence torch's warning
dynamo_looks_at_grad = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")


@dynamo_looks_at_grad
@pytest.mark.parametrize(("compiled", "count"), [("model", 2), ("layers", 9)])
@pytest.mark.parametrize("before", [True, False])
def test_a_compiled_model_is_recorded_as_the_plain_one(compiled, count, before):
    torch._dynamo.reset()  # 9 layers are more than dynamo allows recompilations of one code
    model = Model(*[{"sq": MeanSquare()}] * count)
    x = batch()
    run = model

    def compile_it():
        nonlocal run
        if compiled == "model":
            run = torch.compile(model, backend="aot_eager", fullgraph=True)
        for layer in model.layers if compiled == "layers" else []:
            layer.compile(backend="aot_eager", fullgraph=True)

    if before:
        compile_it()
        run(x)
    with record_routing(run if compiled == "model" else model) as record:
        if not before:
            compile_it()
        for _ in range(10):  # the same graph serves every step
            run(x)
            loss = record.losses()["sq"]
    expected = sum(z.square().mean() for z in logits_of(model, x)) / count
    torch.testing.assert_close(loss, expected)
    assert list(record.load()) == [f"layers.{i}" for i in range(count)]
    assert record.load()["layers.1"].sum() == 10 * 6 * K
    weight = model.layers[1].gate.weight
    torch.testing.assert_close(
        torch.autograd.grad(loss, weight), torch.autograd.grad(expected, weight)
    )


@dynamo_looks_at_grad
@pytest.mark.parametrize("early_stop", [True, False])  # stopping early hides the side effects
def test_a_compiled_layer_inside_a_checkpoint_is_counted_once(early_stop):
    torch._dynamo.reset()
    model = Model({"sq": MeanSquare()}, {"sq": MeanSquare()}, recompute=True)
    for layer in model.layers:
        layer.compile(backend="aot_eager", fullgraph=True)
    x = batch().requires_grad_()
    with record_routing(model) as record:
        for step in range(1, 4):
            with set_checkpoint_early_stop(early_stop):
                y = model(x)
            (y.sum() + record.losses()["sq"]).backward()
            assert record.load()["layers.0"].sum() == step * 6 * K
            assert {len(r) for r in record.routings().values()} == {1}


def test_replay_is_the_choice_table_of_the_last_forward():
    model = Model({})
    with record_routing(model) as record:
        model(batch())
    expected = logits_of(model, batch())[0].topk(K).indices
    assert torch.equal(record.replay()["layers.0"], expected)


def test_only_token_choice_can_be_replayed():
    model = Model({})
    with record_routing(model) as record:
        model.layers[0].taps[0](routing_of(torch.randn(2, E))._replace(num_experts_per_tok=None))
    with pytest.raises(rt.ReplayError, match=r"'layers.0'"):
        record.replay()


def test_max_violation_by_hand():
    assert rt.max_violation(torch.tensor([2, 2, 2, 2])) == 0.0
    assert rt.max_violation(torch.tensor([6, 2, 0, 0])) == 2.0  # 6 / 2 - 1
    assert rt.max_violation(torch.tensor([0, 0])) == 0.0


def test_the_share_of_the_ceiling_is_one_at_collapse_for_every_size():
    for experts, per_token in [(4, 1), (8, 2), (64, 8)]:
        load = torch.zeros(experts, dtype=torch.int64)
        load[:per_token] = 100
        assert rt.max_violation(load) == rt.max_violation_ceiling(experts, per_token)
        assert rt.max_violation_share(load, per_token) == 1.0
    assert rt.max_violation_share(torch.tensor([6, 6, 4, 0]), 2) == 0.5  # (6/4 - 1) / (4/2 - 1)
    assert rt.max_violation_share(torch.tensor([3, 3]), 2) == 0.0


def test_load_cv_by_hand():
    assert rt.load_cv(torch.tensor([1, 3])) == 0.5  # deviation 1 over mean 2
    assert rt.load_cv(torch.tensor([4, 0, 0, 0])) == pytest.approx(math.sqrt(3))
    assert rt.load_cv(torch.tensor([0, 0])) == 0.0


def test_load_entropy_by_hand():
    assert rt.load_entropy(torch.tensor([2, 2, 0, 0])) == pytest.approx(0.5)  # log 2 / log 4
    assert rt.load_entropy(torch.tensor([1, 1, 1, 1])) == pytest.approx(1.0)
    assert rt.load_entropy(torch.tensor([7, 0])) == 0.0
    assert rt.load_entropy(torch.tensor([7])) == 1.0


def test_routing_entropy_and_confidence_by_hand():
    scores = torch.tensor([[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    assert rt.routing_entropy(scores) == pytest.approx(math.log(2) / 2)
    assert rt.confidence(scores) == pytest.approx(0.75)
    sigmoid = torch.tensor([[0.9, 0.3], [0.0, 0.0]])  # not normalised, and nothing at all
    assert rt.confidence(sigmoid) == pytest.approx((0.75 + 0.5) / 2)
    assert rt.routing_entropy(torch.zeros(0, 4)) == rt.confidence(torch.zeros(0, 4)) == 0.0


def test_dropped_share_by_hand():
    assert rt.dropped_share(15, num_tokens=10, num_experts_per_tok=2) == 0.25
    assert rt.dropped_share(0, num_tokens=0, num_experts_per_tok=2) == 0.0


def test_dead_experts_are_those_of_the_whole_window():
    window = torch.tensor([[3, 0, 0, 1], [0, 0, 2, 1]])
    assert rt.dead_experts(window) == [1]
    assert rt.dead_experts(window[0]) == [1, 2]


def test_overlap_by_hand():
    first = torch.tensor([[0, 1], [2, 3]])
    assert rt.overlap(first, torch.tensor([[1, 0], [0, 3]])) == 0.75
    assert rt.overlap(first, first) == 1.0
    assert rt.overlap(first[:0], first[:0]) == 1.0


def test_complementary_collapse_by_hand():
    assert rt.complementary_collapse(8 * torch.eye(4)) == 3.0  # each layer 3, together 0
    assert rt.complementary_collapse(torch.tensor([[8, 0, 0, 0], [8, 0, 0, 0]])) == 0.0
    assert rt.complementary_collapse(torch.full((3, 4), 5)) == 0.0
    # a layer that saw fewer tokens weighs the same: 1 and 1 alone, 0 together
    assert rt.complementary_collapse(torch.tensor([[2, 0], [0, 200]])) == 1.0
    assert rt.complementary_collapse(torch.zeros(2, 4)) == 0.0

"""What experts do with validation text, recounted by plain loops, by hand and by differences."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from mlpkit.build import build_data, build_ffn, build_model
from mlpkit.compose import compose
from mlpkit.data.labels import validation_labels
from mlpkit.describe import describe
from mlpkit.report import find_runs
from mlpkit.report.mixtures import mixture_section
from mlpkit.training import load_run, train
from mlpkit.training.loop import Run
from mlpkit.training.mixture_analysis import (
    DEAD_RATIO,
    analyse_mixture,
    co_activation,
    conditional,
    count_by_category,
    explained_share,
    lift_over_load,
    lift_over_uniform,
    router_gradients,
    top_tokens,
)
from mlpkit.training.mixture_analysis.counts import TopToken
from mlpkit.training.precision import choose_precision

MOE = ["ffn=moe", "ffn.num_experts=4", "ffn.expert.intermediate_size=12"]
SIZES = {"batch_size": 4, "sequence_length": 16, "precision": choose_precision("cpu", "float32")}


@pytest.fixture
def moe(tiny: list[str]) -> list[str]:
    return [*MOE, *(o for o in tiny if not o.startswith("ffn"))]


def made(overrides: list[str]) -> tuple[nn.Module, Any]:
    config = compose(overrides)
    dataset = build_data(config)
    return build_model(config, tokenizer=dataset.tokenizer), dataset


def watched(model: nn.Module, dataset: Any, batches: int) -> dict[str, list[list[list[int]]]]:
    """Layer → one list of experts for each token of each batch, by a tap of our own."""
    seen: dict[str, list[list[list[int]]]] = {}
    taps = []
    for name, module in model.named_modules():
        if isinstance(getattr(module, "taps", None), list):

            def tap(routing: Any, name: str = name) -> None:
                rows: list[list[int]] = [[] for _ in range(routing.num_tokens)]
                for token, expert in zip(
                    routing.token.tolist(), routing.expert.tolist(), strict=True
                ):
                    rows[token].append(expert)
                seen.setdefault(name, []).append(rows)

            module.taps.append(tap)
            taps.append(module)
    ids = torch.from_numpy(np.asarray(dataset.val, np.int64))
    windows = [ids[i * 16 : (i + 1) * 16] for i in range((len(ids) - 1) // 16)]
    model.eval()
    with torch.no_grad():
        for first in range(0, min(batches * 4, len(windows)), 4):
            model(torch.stack(windows[first : first + 4]))
    for module in taps:
        module.taps.clear()
    model.train()
    return seen


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["ffn.num_experts_per_tok=3"],
        ["ffn.num_experts_per_tok=1", "ffn.router.norm_topk_prob=false"],
        ["ffn/router=expert_choice", "lint.allow=[non-causal]"],
        ["ffn/router=uniform", "ffn/balance=null", "lint.allow=[non-causal]"],
        ["ffn/router=forced", "ffn/balance=null"],
        ["ffn.router.n_group=2", "ffn.router.topk_group=1"],
        ["ffn.num_experts_per_tok=4"],
    ],
    ids=lambda options: " ".join(options[:1]),
)
def test_the_analysis_is_what_plain_loops_count(moe: list[str], options: list[str]) -> None:
    model, dataset = made([*moe, *options])
    found = json.loads(json.dumps(analyse_mixture(model, dataset, max_tokens=200, **SIZES)))
    seen = watched(model, dataset, batches=3)
    kinds = validation_labels(dataset, num_tokens=192)
    names = found["categories"]
    assert found["tokens"] == 192
    assert list(kinds.categories) == names
    assert set(found["layers"]) == set(seen) == {"layers.0.ffn", "layers.1.ffn"}
    assert sum(found["category_tokens"]) == 192
    for name, layer in found["layers"].items():
        rows = [experts for batch in seen[name] for experts in batch]
        pairs, load, taken = Counter(), Counter(), Counter()
        tokens, totals = Counter(), Counter()
        for token, experts in enumerate(rows):
            byte = int(dataset.val[token])
            for i in experts:
                load[i] += 1
                taken[i, int(kinds.labels[token])] += 1
                tokens[i, byte] += 1
                totals[byte] += 1
                for j in experts:
                    pairs[i, j] += 1
        assert layer["load"] == [load[e] for e in range(4)]
        assert layer["dead_experts"] == [e for e in range(4) if not load[e]]
        assert layer["max_violation"] == pytest.approx(
            max(load.values()) / (sum(load.values()) / 4) - 1
        )
        assert layer["unrouted_share"] == pytest.approx(
            sum(not experts for experts in rows) / len(rows)
        )
        together = layer["co_activation"]
        assert together["counts"] == [[pairs[i, j] for j in range(4)] for i in range(4)]
        counts = layer["categories"]["counts"]
        assert counts == [[taken[e, c] for c in range(len(names))] for e in range(4)]
        choices = sum(load.values())
        for e in range(4):
            for j in range(4):
                expected = pairs[e, j] / pairs[e, e] if load[e] else None
                assert together["conditional"][e][j] == pytest.approx(expected, abs=1e-6)
            for c in range(len(names)):
                column = sum(taken[x, c] for x in range(4))
                uniform = 4 * taken[e, c] / column if column else None
                own = taken[e, c] * choices / (load[e] * column) if column and load[e] else None
                assert layer["categories"]["lift_over_uniform"][e][c] == pytest.approx(
                    uniform, abs=1e-6
                )
                assert layer["categories"]["lift_over_load"][e][c] == pytest.approx(own, abs=1e-6)
            for top in layer["top_tokens"][e]:
                assert (top["choices"], top["of"]) == (tokens[e, top["id"]], totals[top["id"]])
                assert top["lift"] == pytest.approx(4 * top["choices"] / top["of"], abs=1e-6)
                assert top["token"].encode() == bytes([top["id"]])


def test_shares_of_a_layer_come_from_its_scores(moe: list[str]) -> None:
    """Entropies in float64 from the logits, over all tokens at once."""
    model, dataset = made(moe)
    layer = analyse_mixture(model, dataset, max_tokens=128, **SIZES)["layers"]["layers.1.ffn"]
    logits: list[torch.Tensor] = []
    model.layers[1].ffn.taps.append(lambda routing: logits.append(routing.logits))
    watched_ids = torch.from_numpy(np.asarray(dataset.val[:128], np.int64)).view(8, 16)
    with torch.no_grad():
        model.eval()(watched_ids[:4])
        model(watched_ids[4:])
    p = torch.cat(logits).double().softmax(-1)
    mean = p.mean(0)
    assert layer["router_entropy"] == pytest.approx(-(p * p.log()).sum(-1).mean().item(), rel=1e-5)
    assert layer["router_entropy_of_mean"] == pytest.approx(
        -(mean * mean.log()).sum().item(), rel=1e-5
    )
    assert layer["router_confidence"] == pytest.approx(p.max(-1).values.mean().item(), rel=1e-5)
    assert layer["router_entropy"] < layer["router_entropy_of_mean"] <= math.log(4)


def test_a_model_is_left_as_it_was(moe: list[str]) -> None:
    model, dataset = made(moe)
    some = next(iter(model.parameters()))
    some.grad = torch.full_like(some, 3.0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    analyse_mixture(model, dataset, max_tokens=64, **SIZES)
    assert model.training
    assert all(not layer.ffn.taps for layer in model.layers)
    assert torch.equal(some.grad, torch.full_like(some, 3.0))
    assert [p for p in model.parameters() if p.grad is not None] == [some]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_compiled_model_is_analysed_as_it_is_without_compiling(moe: list[str]) -> None:
    model, dataset = made(moe)
    expected = analyse_mixture(model, dataset, max_tokens=64, **SIZES)
    model.compile(backend="eager")
    assert analyse_mixture(model, dataset, max_tokens=64, **SIZES) == expected


def test_text_without_labels_is_analysed_without_them(moe: list[str]) -> None:
    model, dataset = made(moe)
    object.__setattr__(dataset, "source", None)
    found = analyse_mixture(model, dataset, max_tokens=64, **SIZES)
    assert found["categories"] is None
    assert "source is unknown" in found["unlabelled"]
    layer = found["layers"]["layers.0.ffn"]
    assert layer["categories"] is None
    assert sum(layer["load"]) == 128


def test_experts_of_several_kinds_are_numbered_through(moe: list[str]) -> None:
    experts = "ffn.experts=[{name: swiglu, intermediate_size: 8, num_experts: 2}," \
        " {name: zero, num_experts: 1}, {name: copy, num_experts: 1}]"  # fmt: skip
    kept = [o for o in moe if "expert.intermediate" not in o]
    model, dataset = made([*kept, experts])
    layer = analyse_mixture(model, dataset, max_tokens=64, **SIZES)["layers"]["layers.0.ffn"]
    assert len(layer["load"]) == 4
    assert layer["gradient"]["ratio"] > DEAD_RATIO


def test_the_choices_of_three_experts_make_three_pairs() -> None:
    """Not two, as counting neighbours in the order of choice would."""
    token, expert = np.array([0, 0, 0, 1, 1]), np.array([2, 0, 3, 3, 2])
    counts = co_activation(token, expert, 5000, 4)
    assert counts.tolist() == [[1, 0, 1, 1], [0, 0, 0, 0], [1, 0, 2, 2], [1, 0, 2, 2]]
    expected = [[1, 0, 1, 1], [None] * 4, [0.5, 0, 1, 1], [0.5, 0, 1, 1]]
    for row, wanted in zip(conditional(counts).tolist(), expected, strict=True):
        assert [None if math.isnan(v) else v for v in row] == wanted


def test_tokens_of_several_chunks_are_counted_once() -> None:
    rng = np.random.default_rng(0)
    expert = np.array([rng.permutation(5)[:2] for _ in range(9000)]).reshape(-1)
    token = np.repeat(np.arange(9000), 2)
    counts = co_activation(token, expert, 9000, 5)
    assert np.diag(counts).tolist() == np.bincount(expert).tolist()
    assert counts.sum() == 9000 * 4


def test_lifts_are_those_of_a_table_worked_out_by_hand() -> None:
    """8 choices: expert 0 took 3 of 4 comments and 1 of 4 names, expert 2 nothing."""
    expert = np.array([0, 0, 0, 1, 0, 1, 1, 1])
    category = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    counts = count_by_category(expert, category, (3, 3))
    assert counts.tolist() == [[3, 1, 0], [1, 3, 0], [0, 0, 0]]
    uniform, load = lift_over_uniform(counts), lift_over_load(counts)
    assert uniform[:, :2].tolist() == [[2.25, 0.75], [0.75, 2.25], [0, 0]]
    assert load[:2, :2].tolist() == [[1.5, 0.5], [0.5, 1.5]]
    assert np.isnan(uniform[:, 2]).all()
    assert np.isnan(load[2]).all()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[4, 0], [0, 4]], 1.0),
        ([[2, 2], [4, 4]], 0.0),
        ([[4, 4], [0, 0]], 0.0),
        ([[0, 0], [0, 0]], 0.0),
        # Σ p log(p / (a b)) / log 2 with p = 3/8, 1/8: 0.75·log2(1.5) + 0.25·log2(0.5)
        ([[3, 1], [1, 3]], 0.75 * math.log2(1.5) - 0.25),
    ],
)
def test_how_much_of_the_choice_a_category_tells(counts: list[list[int]], expected: float) -> None:
    assert explained_share(np.array(counts)) == pytest.approx(expected, abs=1e-12)


def test_top_tokens_are_frequent_enough_and_in_order_of_lift() -> None:
    expert = np.array([0] * 6 + [1] * 2 + [0] * 4 + [1] * 3)
    ids = np.array([7] * 8 + [9] * 4 + [5] * 3)
    found = top_tokens(expert, ids, 2, at_least=4)
    assert found == [[TopToken(9, 4, 4, 2.0), TopToken(7, 6, 8, 1.5)], []]
    assert top_tokens(expert, ids, 2, at_least=3, most=1)[1] == [TopToken(5, 3, 3, 2.0)]
    assert float(Fraction(6, 8) * 2) == found[0][1].lift


def layer_and_loss(**options: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    layer = build_ffn(
        {
            **{"name": "moe", "num_experts": 4, "backend": "loop"},
            **{"expert": {"name": "swiglu", "intermediate_size": 3}, **options},
        },
        hidden_size=4,
    ).double()
    x, direction = torch.randn(5, 4).double(), torch.randn(5, 4).double()
    return layer, lambda: (layer(x) * direction).sum()


@pytest.mark.parametrize("options", [{"num_experts_per_tok": 2}, {"num_experts_per_tok": 3}])
def test_the_gradients_norm_is_that_of_finite_differences(options: dict[str, Any]) -> None:
    layer, loss = layer_and_loss(**options)
    found = router_gradients(layer, {"ffn": layer}, loss())["ffn"]

    def differences(tensor: torch.Tensor) -> float:
        flat, squares, step = tensor.data.view(-1), 0.0, 1e-6
        for index in range(flat.numel()):
            before = flat[index].item()
            ends = []
            for sign in (1, -1):
                flat[index] = before + sign * step
                ends.append(loss().item())
            flat[index] = before
            squares += ((ends[0] - ends[1]) / (2 * step)) ** 2
        return squares

    assert found["router"] == pytest.approx(math.sqrt(differences(layer.router.weight)), rel=1e-6)
    experts = sum(differences(p) for p in layer.experts.parameters())
    assert found["experts"] == pytest.approx(math.sqrt(experts), rel=1e-6)
    weight = math.sqrt(sum(w * w for w in layer.router.weight.flatten().tolist()))
    assert found["router_weight"] == pytest.approx(weight)
    assert found["relative"] == pytest.approx(found["router"] / weight)
    assert found["ratio"] == pytest.approx(found["router"] / found["experts"])
    assert found["dead"] is False


def test_the_router_of_top_1_with_renormalised_weights_is_dead() -> None:
    """Weight w / w is 1 whatever the router says, so that no difference reaches the loss."""
    layer, loss = layer_and_loss(
        num_experts_per_tok=1, router={"name": "topk", "norm_topk_prob": True}
    )
    before = loss().item()
    found = router_gradients(layer, {"ffn": layer}, loss())["ffn"]
    layer.router.weight.data += 1e-6 * torch.randn_like(layer.router.weight)
    assert loss().item() == pytest.approx(before, abs=1e-13)
    assert found["dead"] is True
    assert found["ratio"] < 1e-12
    assert found["experts"] > 0.1
    layer.float()
    single = router_gradients(layer, {"ffn": layer}, layer(torch.randn(64, 4)).square().sum())
    assert single["ffn"]["dead"] is True  # with float32's rounding errors too


def test_top_1_without_renormalising_is_alive() -> None:
    layer, loss = layer_and_loss(
        num_experts_per_tok=1, router={"name": "topk", "norm_topk_prob": False}
    )
    assert router_gradients(layer, {"ffn": layer}, loss())["ffn"]["ratio"] > 0.01


def test_balance_terms_do_not_hide_a_dead_router(moe: list[str]) -> None:
    """The terms are configured and large, and the gradient is the task's alone."""
    model, dataset = made(
        [
            *moe,
            *("ffn.num_experts_per_tok=1", "ffn.balance.load=0.05", "lint.allow=[top1-normalised]"),
        ]
    )
    layers = analyse_mixture(model, dataset, max_tokens=64, **SIZES)["layers"]
    assert all(layer["gradient"]["dead"] for layer in layers.values())


def test_a_router_with_nothing_to_learn_is_not_called_dead(moe: list[str]) -> None:
    model, dataset = made([*moe, "ffn/router=forced", "ffn/balance=null"])
    layer = analyse_mixture(model, dataset, max_tokens=64, **SIZES)["layers"]["layers.0.ffn"]
    assert set(layer["gradient"].values()) == {None}
    assert layer["dead_experts"] == [2, 3]
    assert layer["max_violation_share"] == 1
    assert layer["top_tokens"][0][0]["lift"] == 2


def training_run(overrides: list[str]) -> Run:
    config = compose(overrides)
    dataset = build_data(config)
    model = build_model(config, tokenizer=dataset.tokenizer)
    console = Console(file=io.StringIO(), width=200)
    return Run(config, model, dataset, SIZES["precision"], describe(config, model), console)


@pytest.mark.parametrize("options", [[], ["ffn.drop_policy=probs"]])
def test_the_dropped_share_in_training_is_what_the_experts_did_not_get(
    moe: list[str], options: list[str]
) -> None:
    capacity = ["ffn.capacity_factor=0.75", "lint.allow=[non-causal,small-capacity]"]
    run = training_run([*moe, *capacity, *options, "training.gradient_accumulation_steps=2"])
    rows: list[int] = []
    for layer in run.model.layers:
        layer.ffn.experts.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    for index in range(2):
        with run.mixture:
            run.loss_and_gradients(index)
    assert len(rows) == 2 * 2 * 2  # layers, steps, parts
    share = 1 - sum(rows) / (2 * 2 * 4 * 16 * 2)
    assert share > 0.2
    health = run.mixture.health()
    assert health["dropped_share"] == pytest.approx(share)
    assert run.mixture.health() == {}
    found = analyse_mixture(run.model, run.dataset, max_tokens=64, **SIZES)
    rows.clear()
    run.model.eval()(torch.from_numpy(np.asarray(run.dataset.val[:64], np.int64)).view(4, 16))
    dropped = [layer["dropped_share"] for layer in found["layers"].values()]
    assert dropped == pytest.approx([1 - number / 128 for number in rows])


def test_without_a_capacity_no_dropped_share_is_logged(moe: list[str]) -> None:
    run = training_run(moe)
    with run.mixture:
        run.loss_and_gradients(0)
    assert "dropped_share" not in run.mixture.health()


def test_one_batch_is_looked_at_however_low_the_limit(moe: list[str]) -> None:
    """At least one batch is looked at, whatever the limit."""
    model, dataset = made(moe)
    assert analyse_mixture(model, dataset, max_tokens=1, **SIZES)["tokens"] == 64


def test_a_run_with_experts_leaves_their_analysis(moe: list[str], tmp_path: Path) -> None:
    """The same as of its weights read again, and one that the report shows."""
    short = ["training.max_steps=2", "training.checkpoint_every=0", "training.sample_tokens=0"]
    console = Console(file=io.StringIO(), width=200)
    train(compose([*moe, *short]), run_dir=tmp_path / "run", console=console)
    found = json.loads((tmp_path / "run" / "mixture.json").read_text())
    model, _, config = load_run(tmp_path / "run")
    again = analyse_mixture(model, build_data(config), **SIZES)
    assert found == json.loads(json.dumps(again))
    section = mixture_section(find_runs([tmp_path / "run"]))
    assert section is not None
    assert not section.warnings

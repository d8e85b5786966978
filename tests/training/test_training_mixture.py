"""Training with a MoE: balance terms in the loss, bias updates, health, decay, no leaks."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from mlpkit.build import build_data, build_model
from mlpkit.cli import main
from mlpkit.compose import compose
from mlpkit.data.batches import train_batch
from mlpkit.describe import describe
from mlpkit.figures.curves import read_metrics
from mlpkit.training import load_run, train
from mlpkit.training.loop import Run
from mlpkit.training.optimizer import parameter_groups
from mlpkit.training.precision import choose_precision
from mlpkit.training.progress import Display
from mlpkit.training.run_directory import RunDirectory

MOE = ["ffn=moe", "ffn.num_experts=4", "ffn.expert.intermediate_size=12"]


@pytest.fixture
def moe(tiny: list[str]) -> list[str]:
    return [*MOE, *(o for o in tiny if not o.startswith("ffn"))]


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def make_run(overrides: list[str]) -> Run:
    config = compose(overrides)
    dataset = build_data(config)
    model = build_model(config, tokenizer=dataset.tokenizer)
    precision = choose_precision("cpu", "float32")
    return Run(config, model, dataset, precision, describe(config, model), quiet())


def test_the_loss_has_the_balance_terms_written_out_by_hand(moe: list[str], tmp_path: Path) -> None:
    """E·Σ f·P per layer with f over T·K, and the mean squared logsumexp, from the logits."""
    run = make_run([*moe, "ffn.balance.load=0.5", "ffn.balance.z=0.25"])
    inputs, targets = train_batch(run.dataset, seed=0, index=0, batch_size=4, sequence_length=16)
    reference = make_run([*moe, "ffn.balance=null"]).model
    logits = []
    for layer in reference.layers:
        layer.ffn.taps.append(lambda routing: logits.append(routing.logits))
    task = F.cross_entropy(reference(inputs).flatten(0, 1), targets.flatten())
    loads, squares = [], []
    for z in logits:
        p = z.softmax(-1)
        chosen = torch.zeros_like(p).scatter(1, z.topk(2, -1).indices, 1.0)
        loads.append(4 * (chosen.mean(0) / 2 * p.mean(0)).sum())
        squares.append(z.logsumexp(-1).square().mean())
    expected = {"load": 0.5 * torch.stack(loads).mean(), "z": 0.25 * torch.stack(squares).mean()}
    (task + sum(expected.values())).backward()

    with run.mixture:
        loss = run.loss_and_gradients(0)
    assert loss == pytest.approx(task.item(), rel=1e-6)
    for name, value in expected.items():
        assert run.mixture.terms[f"balance_{name}"] == pytest.approx(value.item(), rel=1e-5)
    for p, q in zip(run.model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("parts", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_accumulation_keeps_counts_and_bias_updates(
    moe: list[str], parts: int, tmp_path: Path
) -> None:
    bias = [
        "ffn.router.selection_bias=true",
        "ffn/balance=[selection_bias]",
        "ffn.balance.selection_bias=0.1",
    ]
    biases, loads = [], []
    for count in (1, parts):
        run = make_run([*moe, *bias, f"training.gradient_accumulation_steps={count}"])
        directory = RunDirectory.create(tmp_path / str(count))
        for _ in range(3):
            run.take_step(directory, Display(quiet(), run.meter))
        loads.append(run.mixture.health()["load"])
        biases.append([layer.ffn.router.e_score_correction_bias for layer in run.model.layers])
    assert loads[0] == loads[1]
    assert all(sum(load) == 3 * 4 * 16 * 2 for load in loads[0].values())
    for one, many in zip(*biases, strict=True):
        assert one.abs().max() > 0.05
        torch.testing.assert_close(one, many)


def test_validation_and_the_estimate_leave_counts_and_bias_alone(
    moe: list[str], tmp_path: Path
) -> None:
    run = make_run([*moe, "ffn.router.selection_bias=true", "+ffn.balance.selection_bias=0.1"])
    directory = RunDirectory.create(tmp_path / "run")
    run.estimate()
    run.validate(directory, Display(quiet(), run.meter))
    assert run.health == {}
    assert all(not layer.ffn.taps for layer in run.model.layers)
    run.mixture.after_step()
    assert all((layer.ffn.router.e_score_correction_bias == 0).all() for layer in run.model.layers)


def test_a_mixture_trains_and_records_its_health(moe: list[str], tmp_path: Path) -> None:
    console = quiet()
    result = train(compose(moe), run_dir=tmp_path / "run", console=console)
    metrics = result["metrics"]
    assert metrics["num_experts"] == 8
    assert 0 <= metrics["max_violation_share"] <= 1
    assert 0 <= metrics["load_entropy"] <= 1
    assert 0 < metrics["router_entropy"] <= math.log(4) + 1e-9
    assert 0.25 <= metrics["router_confidence"] <= 1
    assert "complementary_collapse" in metrics
    assert set(metrics["load"]) == {"layers.0.ffn", "layers.1.ffn"}
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    steps = [line for line in lines if "loss" in line]
    assert all({"balance_load", "balance_z"} <= line.keys() for line in steps)
    assert "MaxVio" in console.file.getvalue()
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    load_run(tmp_path / "run")


def test_a_dense_run_records_nothing_of_experts(tiny: list[str], tmp_path: Path) -> None:
    result = train(compose(tiny), run_dir=tmp_path / "run", console=quiet())
    assert not {"load", "max_violation"} & result["metrics"].keys()


def test_decay_looks_at_the_expert_not_at_its_stack(moe: list[str]) -> None:
    model = build_model(compose([*moe, "ffn.expert.bias=true"]))
    decayed, plain = parameter_groups(model, 0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    stacked = "layers.0.ffn.experts."
    assert f"{stacked}up_proj.weight" in {names[id(p)] for p in decayed["params"]}
    assert f"{stacked}up_proj.bias" in {names[id(p)] for p in plain["params"]}  # (E, I)
    assert len(decayed["params"]) + len(plain["params"]) == len(names)


def test_a_dense_model_loads_no_moe_code(tmp_path: Path) -> None:
    code = (
        "import sys; from mlpkit.build import build_model; import mlpkit.training\n"
        "build_model(['ffn=swiglu'])\n"
        "loaded = [m for m in sys.modules if m.startswith(('mlpkit.moe', 'mlpkit.experts',"
        " 'mlpkit.routers', 'mlpkit.routing', 'mlpkit.balance'))]\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


@pytest.mark.slow
def test_a_sweep_over_routers_and_experts_trains(
    moe: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = [o for o in moe if o not in MOE]
    routers, experts = "ffn/router=topk,deepseek_v3", "ffn/expert=swiglu,naive"
    short = "training.max_steps=2"
    assert main(["train", "-m", "ffn=moe", routers, experts, *sizes, short]) == 0
    records = [json.loads(p.read_text()) for p in tmp_path.glob("multirun/*/result.json")]
    assert sorted(r["ffn"] for r in records) == [
        "moe[8×naive, top 2]",
        "moe[8×naive, top 2]",
        "moe[8×swiglu, top 2]",
        "moe[8×swiglu, top 2]",
    ]
    assert "4 ok, 0 failed" in capfd.readouterr().out

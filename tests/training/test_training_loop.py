"""The training loop: exact, repeatable, honest in what it records."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from mlpkit.build import build_data, build_model
from mlpkit.compose import ConfigError, compose
from mlpkit.data.batches import train_batch
from mlpkit.describe import describe
from mlpkit.figures.curves import read_metrics
from mlpkit.parallel import OneProcess
from mlpkit.training import NonFiniteLossError, load_run, train
from mlpkit.training.evaluation import evaluate_both
from mlpkit.training.launch import record
from mlpkit.training.loop import Run
from mlpkit.training.precision import choose_precision
from mlpkit.training.progress import Display
from mlpkit.training.run_directory import RunDirectory


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def losses(path: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(path / "metrics.jsonl") if "loss" in line]


def make_run(overrides: list[str]) -> Run:
    config = compose(overrides)
    dataset = build_data(config)
    model = build_model(config, tokenizer=dataset.tokenizer)
    precision = choose_precision("cpu", config.training.precision)
    return Run(config, model, dataset, precision, describe(config, model), quiet())


def test_a_run_writes_everything_and_its_loss_falls(tiny: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = compose([*tiny, "training.max_steps=60", "training.learning_rate=0.02"])
    console = quiet()
    result = train(config, run_dir=out, overrides=tiny, console=console)
    names = {p.name for p in out.iterdir()}
    assert names == {
        "config.yaml",
        "result.json",
        "metrics.jsonl",
        "model.safetensors",
        "loss.svg",
        "sample.txt",
        "checkpoints",
        ".lock",
    }
    assert json.loads((out / "result.json").read_text()) == result
    assert result["status"] == "ok"
    assert result["overrides"] == tiny
    lines = read_metrics(out / "metrics.jsonl")
    scores = [line["val_bpb"] for line in lines if "val_bpb" in line]
    assert scores[-1] < scores[0] - 2
    assert lines[-1]["final_val_bpb"] == result["metrics"]["val_bpb"]
    assert lines[-1]["final_val_loss"] == result["metrics"]["val_loss"]
    assert not any("final_val_bpb" in line for line in lines[:-1])
    assert len(losses(out)) == 60
    shown = console.file.getvalue()
    for word in ("parameters", "epochs", "estimated", "float32", "eta", "bits per byte", "sample"):
        assert word in shown, word


def test_every_validation_line_scores_the_same_text_and_the_metrics_all_of_it(
    tiny: list[str], tmp_path: Path
) -> None:
    train(compose(tiny), run_dir=tmp_path / "run", console=quiet())
    model, _, config = load_run(tmp_path / "run")
    dataset = build_data(config)
    sizes = {
        "batch_size": 4,
        "sequence_length": 16,
        "precision": choose_precision("cpu", "float32"),
        "parallel": OneProcess(),
    }
    # 200 tokens of 64 a batch: three batches
    first, _ = evaluate_both(model, dataset, max_tokens=192, everything=False, **sizes)
    _, everything = evaluate_both(model, dataset, max_tokens=1, everything=True, **sizes)
    *_, last = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert first.tokens == 192 < everything.tokens
    assert last["val_loss"] == pytest.approx(first.loss, rel=1e-6)
    assert last["val_bpb"] == pytest.approx(first.bpb, rel=1e-6)
    assert last["final_val_loss"] == pytest.approx(everything.loss, rel=1e-6)
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert metrics["val_tokens"] == everything.tokens
    assert metrics["val_bpb"] == pytest.approx(everything.bpb, rel=1e-6)


def test_the_same_seed_gives_bit_identical_losses_and_another_seed_does_not(
    tiny: list[str], tmp_path: Path
) -> None:
    overrides = [*tiny, "model.dropout=0.1", "ffn.dropout=0.1"]
    for name, more in (("a", []), ("b", []), ("c", ["seed=1"])):
        torch.manual_seed(hash(name))  # what ran before must not matter
        train(compose([*overrides, *more]), run_dir=tmp_path / name, console=quiet())
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert losses(tmp_path / "a") != losses(tmp_path / "c")
    weights = [load_run(tmp_path / name)[0].state_dict() for name in "ab"]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


@pytest.mark.slow
def test_validation_and_sampling_change_nothing(tiny: list[str], tmp_path: Path) -> None:
    train(compose(tiny), run_dir=tmp_path / "a", console=quiet())
    rare = [*tiny, "training.eval_every=100", "training.sample_tokens=0"]
    train(compose(rare), run_dir=tmp_path / "b", console=quiet())
    assert losses(tmp_path / "a") == losses(tmp_path / "b")


@pytest.mark.parametrize("parts", [3, pytest.param(9, marks=pytest.mark.slow)])
def test_accumulation_gives_the_gradient_of_the_whole_batch(tiny: list[str], parts: int) -> None:
    whole = make_run(tiny)
    split = make_run([*tiny, f"training.gradient_accumulation_steps={parts}"])  # 3: 2 + 1 + 1 rows
    whole.model.double()
    split.model.double()
    first, second = whole.loss_and_gradients(0), split.loss_and_gradients(0)
    # the loss is taken in float32, and rows are added in another order
    assert second == pytest.approx(first, rel=1e-6)
    for p, q in zip(whole.model.parameters(), split.model.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-5, atol=1e-8)


def test_a_step_is_the_one_written_out_by_hand(tiny: list[str], tmp_path: Path) -> None:
    """AdamW's first step from its formula, with clipping, decay on matrices and warm-up."""
    run = make_run([*tiny, "training.max_grad_norm=0.1"])
    reference = make_run(tiny)
    options = run.options
    inputs, targets = train_batch(run.dataset, seed=0, index=0, batch_size=4, sequence_length=16)
    logits = reference.model(inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    grads = [p.grad.double() for p in reference.model.parameters()]
    norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
    rate = options.learning_rate / 2  # the first of two warm-up steps
    before = [p.detach().double().clone() for p in run.model.parameters()]
    directory = RunDirectory.create(tmp_path / "run")
    run.take_step(directory, Display(quiet(), run.meter))
    (line,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert line["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert line["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert line["learning_rate"] == pytest.approx(rate)
    for old, grad, new in zip(before, grads, run.model.parameters(), strict=True):
        clipped = grad * (0.1 / (norm + 1e-6))
        decayed = old * (1 - rate * options.weight_decay) if old.dim() >= 2 else old
        # at the first step both corrected moments are the gradient and its square
        expected = decayed - rate * clipped / (clipped.abs() + 1e-8)
        torch.testing.assert_close(new.double(), expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_nan_stops_before_the_update(
    tiny: list[str], tmp_path: Path, poison: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tiny)
    before = {k: v.clone() for k, v in run.model.state_dict().items()}
    honest = run.loss_and_gradients

    def poisoned(index: int) -> float:
        loss = honest(index)
        if poison == "loss":
            return math.nan
        next(run.model.parameters()).grad[0, 0] = math.inf
        return loss

    monkeypatch.setattr(run, "loss_and_gradients", poisoned)
    with pytest.raises(NonFiniteLossError, match=r"at step 1 the (loss is nan|gradient norm is )"):
        record(run, RunDirectory.create(tmp_path / "run"), [])
    assert NonFiniteLossError.exit_code == 5
    after = run.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert "NonFiniteLossError" in result["error"]


def test_an_exploding_run_ends_with_the_nan_error(tiny: list[str], tmp_path: Path) -> None:
    config = compose([*tiny, "training.learning_rate=1e30", "training.max_steps=20"])
    with pytest.raises(NonFiniteLossError):
        train(config, run_dir=tmp_path / "run", console=quiet())
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_an_interrupt_leaves_a_stopped_record(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(100))

    def interrupted(self: Run, index: int) -> float:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return 1.0

    monkeypatch.setattr(Run, "loss_and_gradients", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(compose(tiny), run_dir=tmp_path / "run", console=quiet())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["step"]) == ("stopped", 3)


def test_compile_and_bf16_train_the_same_model(tiny: list[str], tmp_path: Path) -> None:
    train(compose(tiny), run_dir=tmp_path / "plain", console=quiet())
    bf16 = compose([*tiny, "training.precision=bf16"])
    train(bf16, run_dir=tmp_path / "bf16", console=quiet())
    assert losses(tmp_path / "bf16") == pytest.approx(losses(tmp_path / "plain"), rel=2e-2)
    assert losses(tmp_path / "bf16") != losses(tmp_path / "plain")
    model, _, _ = load_run(tmp_path / "bf16")
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.slow
def test_a_compiled_run_saves_plain_names(tiny: list[str], tmp_path: Path) -> None:
    train(compose(tiny), run_dir=tmp_path / "plain", console=quiet())
    train(compose([*tiny, "training.compile=true"]), run_dir=tmp_path / "fast", console=quiet())
    assert losses(tmp_path / "fast") == pytest.approx(losses(tmp_path / "plain"), rel=1e-4)
    load_run(tmp_path / "fast")


def test_a_run_that_cannot_fit_into_memory_makes_no_directory(
    tiny: list[str], tmp_path: Path
) -> None:
    config = compose([*tiny, "training.batch_size=1000000000"])
    with pytest.raises(ConfigError, match=r"needs about .* and cpu has .* lower model.hidden_size"):
        train(config, run_dir=tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "ffn", ["gated", *(pytest.param(n, marks=pytest.mark.slow) for n in ("naive", "swiglu"))]
)
def test_a_run_directory_rebuilds_its_model(ffn: str, tiny: list[str], tmp_path: Path) -> None:
    config = compose([f"ffn={ffn}", *tiny, "activation=gelu", "model.qk_norm=true"])
    out = tmp_path / "run"
    train(config, run_dir=out, console=quiet())
    model, tokenizer, loaded = load_run(out)
    assert loaded.ffn.name == ffn
    dataset = build_data(loaded)
    run = Run(loaded, model, dataset, choose_precision("cpu", "float32"), describe(loaded), quiet())
    result = json.loads((out / "result.json").read_text())
    score = run.validate(RunDirectory(out), Display(quiet(), run.meter), everything=True)
    assert score.bpb == pytest.approx(result["metrics"]["val_bpb"], rel=1e-6)
    assert tokenizer.vocab_size == model.embed_tokens.num_embeddings

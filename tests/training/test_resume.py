"""Going on: a run that was stopped anywhere is, to the bit, the run that was not."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from mlpkit.build import build_data
from mlpkit.compose import ConfigError, compose
from mlpkit.training import (
    CheckpointError,
    NonFiniteLossError,
    ResumeError,
    RunDirectory,
    RunDirectoryError,
    StoppedError,
    train,
)
from mlpkit.training.checkpoints import open_checkpoint
from mlpkit.training.checkpoints.reading import forms, read_tensors
from mlpkit.training.loop import Run
from mlpkit.training.run_directory import load_config, read_lines, read_result

STEPS = 9
TIMED = {"seconds", "tokens_per_second"}
MEASURED = {"tokens_per_second", "training_seconds", "peak_memory_bytes"}
DENSE = ["ffn.dropout=0.1", "model.dropout=0.1"]
MOE = [
    *("ffn=moe", "ffn.num_experts=4", "ffn.expert.intermediate_size=12", "model.dropout=0.1"),
    *("ffn.router.selection_bias=true", "+ffn.balance.selection_bias=0.05"),
    "training.gradient_accumulation_steps=3",
]


@pytest.fixture(scope="module")
def short_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So little text that a run of nine steps sees more than two epochs."""
    folder = tmp_path_factory.mktemp("short")
    for number in range(8):
        (folder / f"{number}.txt").write_text(f"{number}: a short text of the number {number}.\n")
    return folder


def configuration(text: Path, *overrides: str) -> DictConfig:
    ffn = [] if "ffn=moe" in overrides else ["ffn.intermediate_size=24"]
    return compose(
        [
            *overrides,
            *ffn,
            *("data=text", f"data.path={text}", "data.val_fraction=0.2"),
            *("model.hidden_size=16", "model.num_layers=2", "model.num_attention_heads=2"),
            *("model.num_key_value_heads=1", f"training.max_steps={STEPS}"),
            *("training.batch_size=4", "training.sequence_length=16", "training.eval_every=3"),
            *("training.eval_tokens=200", "training.warmup_steps=2", "training.log_every=1"),
            *("training.sample_tokens=8", "training.precision=float32"),
            "training.checkpoint_every=1",
        ]
    )


def with_keys(config: DictConfig, **changes: Any) -> DictConfig:
    config = config.copy()
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    return config


def quiet() -> Console:
    return Console(file=io.StringIO(), width=300)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def state_of(run: Path) -> dict[str, Any]:
    """All that must not depend on whether a run was interrupted."""
    checkpoint = open_checkpoint(run / "checkpoints" / f"step_{STEPS}")
    tensors = {n: torch.zeros(f.shape, dtype=f.dtype) for n, f in forms(checkpoint.path).items()}
    read_tensors(checkpoint.path, tensors)
    lines = read_lines(run / "metrics.jsonl")
    metrics = read_result(run)["metrics"]
    return {
        "tensors": {name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
        "weights": (run / "model.safetensors").read_bytes(),
        "lines": [{k: v for k, v in line.items() if k not in TIMED} for line in lines],
        "metrics": {k: v for k, v in metrics.items() if k not in MEASURED},
        "sample": (run / "sample.txt").read_text(),
        "mixture": checkpoint.state["mixture"],
    }


class Whole:
    """An uninterrupted run that keeps a checkpoint of every step."""

    def __init__(self, config: DictConfig, path: Path) -> None:
        self.config, self.path = config, path
        train(with_keys(config, training__keep_last=STEPS), run_dir=path, console=quiet())
        self.state = state_of(path)

    def as_killed_after(self, step: int, path: Path) -> Path:
        """The directory as a kill leaves it some steps after the checkpoint of a step."""
        shutil.copytree(self.path, path)
        for later in range(step + 1, STEPS + 1):
            shutil.rmtree(path / "checkpoints" / f"step_{later}")
        for name in ("model.safetensors", "sample.txt", "loss.svg"):
            (path / name).unlink()
        result = json.loads((path / "result.json").read_text())
        del result["metrics"]
        (path / "result.json").write_text(json.dumps({**result, "status": "running", "pid": 1}))
        return path


@pytest.fixture(scope="module")
def dense(short_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(configuration(short_text, *DENSE), tmp_path_factory.mktemp("dense") / "run")


@pytest.fixture(scope="module")
def moe(short_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(configuration(short_text, *MOE), tmp_path_factory.mktemp("moe") / "run")


def test_the_runs_of_these_tests_see_several_epochs_and_move_what_they_should(
    dense: Whole, moe: Whole
) -> None:
    for whole in (dense, moe):
        lines = whole.state["lines"]
        assert [line["step"] for line in lines if "loss" in line] == [*range(1, STEPS + 1)]
        assert whole.state["metrics"]["tokens"] == STEPS * 4 * 16
    tokens = build_data(dense.config).train
    assert 2 * len(tokens) < STEPS * 4 * 16
    names = [n for n in moe.state["tensors"] if n.endswith("e_score_correction_bias")]
    assert len(names) == 2
    assert all(any(moe.state["tensors"][name]) for name in names)


@pytest.mark.parametrize(
    ("model", "step"),
    [
        pytest.param("moe", 1, marks=pytest.mark.slow),
        ("moe", 3),  # between epochs, right before a validation
        pytest.param("moe", STEPS, marks=pytest.mark.slow),
        ("dense", 4),
        pytest.param("dense", 6, marks=pytest.mark.slow),
    ],
)
def test_going_on_from_any_step_ends_as_if_never_interrupted(
    request: pytest.FixtureRequest, model: str, step: int, tmp_path: Path
) -> None:
    whole: Whole = request.getfixturevalue(model)
    run = whole.as_killed_after(step, tmp_path / "run")
    console = quiet()
    result = train(with_keys(whole.config, resume="auto"), run_dir=run, console=console)
    assert state_of(run) == whole.state
    assert f"going on after step {step}" in shown(console)
    assert result["resumed"] == [step]
    assert result["status"] == "ok"
    assert result["started"] == read_result(whole.path)["started"]
    assert result["seconds"] > read_result(whole.path)["seconds"] * step / STEPS / 2


def test_a_named_checkpoint_goes_on_in_a_new_directory(moe: Whole, tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in moe.path.rglob("*") if p.is_file()}
    named = moe.path / "checkpoints" / "step_4"
    result = train(
        with_keys(moe.config, resume=str(named)), run_dir=tmp_path / "new", console=quiet()
    )
    assert state_of(tmp_path / "new") == moe.state
    assert result["resumed"] == [4]
    assert {p: p.read_bytes() for p in moe.path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(("call", "step"), [(10, 4), pytest.param(27, 9, marks=pytest.mark.slow)])
def test_a_signal_between_accumulation_steps_finishes_the_step_and_loses_nothing(
    moe: Whole,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: int,
    step: int,
) -> None:
    count = [-2 * 3]  # the estimate takes two steps first
    honest = Run.summed_loss

    def summed_loss(self: Run, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        count[0] += 1
        if count[0] == call:
            os.kill(os.getpid(), signal.SIGUSR1)
        return honest(self, inputs, targets)

    monkeypatch.setattr(Run, "summed_loss", summed_loss)
    config, run = with_keys(moe.config, training__checkpoint_every=100), tmp_path / "run"
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(StoppedError, match=rf"stopped by SIGUSR1 after step {step} of 9, step_"):
        train(config, run_dir=run, console=quiet())
    assert signal.getsignal(signal.SIGUSR1) is before
    result = read_result(run)
    assert (result["status"], result["step"]) == ("stopped", step)
    assert "metrics" not in result
    train(with_keys(config, resume="auto"), run_dir=run, console=quiet())
    assert state_of(run) == moe.state


def test_checkpoints_written_beside_training_hold_the_same(moe: Whole, tmp_path: Path) -> None:
    config = with_keys(moe.config, training__checkpoint_async=True)
    train(config, run_dir=tmp_path / "run", console=quiet())
    assert state_of(tmp_path / "run") == moe.state


def test_a_damaged_newest_checkpoint_is_skipped_and_said(dense: Whole, tmp_path: Path) -> None:
    run = dense.as_killed_after(5, tmp_path / "run")
    os.truncate(run / "checkpoints" / "step_5" / "__0_0.distcp", 1000)
    leftover = run / "checkpoints" / ".tmp-step_6"
    leftover.mkdir()
    console, auto = quiet(), with_keys(dense.config, resume="auto")
    train(auto, run_dir=run, console=console)
    assert state_of(run) == dense.state
    text = shown(console)
    assert "step_5/__0_0.distcp is damaged: it has 1,000 bytes" in text
    assert "going on after step 4" in text
    assert f"removed    {leftover}" in text
    assert not leftover.exists()


def test_a_named_checkpoint_that_is_damaged_ends_with_4_and_no_other_is_taken(
    dense: Whole, tmp_path: Path
) -> None:
    run = dense.as_killed_after(5, tmp_path / "run")
    (run / "checkpoints" / "step_5" / "state.json").write_text("{}")
    named = with_keys(dense.config, resume=str(run / "checkpoints" / "step_5"))
    with pytest.raises(CheckpointError, match=r"step_5/state\.json is damaged") as caught:
        train(named, run_dir=tmp_path / "new", console=quiet())
    assert caught.value.exit_code == 4
    with pytest.raises(CheckpointError, match="is no folder"):
        train(with_keys(dense.config, resume="elsewhere"), run_dir=tmp_path / "b", console=quiet())


def test_when_every_checkpoint_is_damaged_nothing_starts_anew(dense: Whole, tmp_path: Path) -> None:
    run = dense.as_killed_after(2, tmp_path / "run")
    for step in (1, 2):
        (run / "checkpoints" / f"step_{step}" / ".metadata").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints .*step_2.*step_1"):
        train(with_keys(dense.config, resume="auto"), run_dir=run, console=quiet())


def test_a_finished_run_says_so_and_a_longer_one_goes_on(dense: Whole, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(dense.path, run)
    auto, console = with_keys(dense.config, resume="auto"), quiet()
    before = (run / "result.json").read_bytes()
    assert train(auto, run_dir=run, console=console)["metrics"] == read_result(run)["metrics"]
    assert "finished before, after 9 steps" in shown(console)
    assert (run / "result.json").read_bytes() == before
    console = quiet()
    longer = with_keys(auto, training__max_steps=11)
    assert train(longer, run_dir=run, console=console)["step"] == 11
    assert "changed training.max_steps: 9 → 11" in shown(console)
    shorter = with_keys(auto, training__max_steps=3)
    assert train(shorter, run_dir=run, console=quiet())["step"] == 11
    steps = [line["step"] for line in read_lines(run / "metrics.jsonl") if "loss" in line]
    assert steps == [*range(1, 12)]


def test_a_shorter_run_than_its_checkpoint_is_refused(dense: Whole, tmp_path: Path) -> None:
    run = dense.as_killed_after(5, tmp_path / "run")
    short = with_keys(dense.config, resume="auto", training__max_steps=4)
    with pytest.raises(ResumeError, match=r"max_steps=4, and .*step_5 is past it"):
        train(short, run_dir=run, console=quiet())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training__learning_rate": 0.5}, r"training\.learning_rate: 0\.003 → 0\.5"),
        ({"seed": 7, "training__batch_size": 2}, r"seed: 0 → 7, training\.batch_size: 4 → 2"),
        ({"ffn__intermediate_size": 48}, r"ffn\.intermediate_size: 24 → 48"),
        ({"activation": "relu"}, r"activation: None → relu"),
    ],
)
def test_another_run_is_refused_by_name(
    dense: Whole, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    run = dense.as_killed_after(2, tmp_path / "run")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(ResumeError, match=rf"is another run \({said}\)") as caught:
        train(with_keys(dense.config, resume="auto", **changes), run_dir=run, console=quiet())
    assert caught.value.exit_code == 2
    assert all(p.read_bytes() == content for p, content in before.items())


def test_another_text_is_refused_and_a_moved_one_is_not(
    dense: Whole, short_text: Path, tmp_path: Path
) -> None:
    run = dense.as_killed_after(8, tmp_path / "run")
    shutil.copytree(short_text, tmp_path / "text")
    moved = with_keys(dense.config, resume="auto", data__path=str(tmp_path / "text"))
    (tmp_path / "text" / "9.txt").write_text("one more document\n")
    with pytest.raises(ResumeError, match="the text or its tokenizer is not the one"):
        train(moved, run_dir=run, console=quiet())
    (tmp_path / "text" / "9.txt").unlink()
    train(moved, run_dir=run, console=quiet())
    assert state_of(run) == dense.state


def test_auto_starts_at_step_0_where_there_is_nothing_yet(dense: Whole, tmp_path: Path) -> None:
    auto, console = with_keys(dense.config, resume="auto"), quiet()
    train(auto, run_dir=tmp_path / "new", console=console)
    assert state_of(tmp_path / "new") == dense.state
    assert "starting at step 0" in shown(console)
    run = dense.as_killed_after(0, tmp_path / "killed")
    console = quiet()
    train(auto, run_dir=run, console=console)
    assert state_of(run) == dense.state
    assert "no checkpoint yet: starting at step 0" in shown(console)
    with pytest.raises(ResumeError, match="say which: run_dir=PATH"):
        train(auto, console=quiet())


def test_without_resume_checkpoints_are_not_thrown_away(dense: Whole, tmp_path: Path) -> None:
    run = dense.as_killed_after(2, tmp_path / "run")
    with pytest.raises(RunDirectoryError, match=r"holds checkpoints .*'lost'; resume=auto goes on"):
        train(dense.config, run_dir=run, console=quiet())
    own = with_keys(dense.config, resume=str(run / "checkpoints" / "step_2"))
    with pytest.raises(ResumeError, match="lies in run_dir"):
        train(own, run_dir=run, console=quiet())


def test_no_checkpoints_are_written_where_none_are_wanted(dense: Whole, tmp_path: Path) -> None:
    none = with_keys(dense.config, training__checkpoint_every=0)
    train(none, run_dir=tmp_path / "run", console=quiet())
    assert not (tmp_path / "run" / "checkpoints").exists()
    longer = with_keys(none, resume="auto", training__max_steps=20)
    with pytest.raises(ResumeError, match="finished after 9 steps and has no checkpoint"):
        train(longer, run_dir=tmp_path / "run", console=quiet())


def test_a_nan_leaves_the_last_checkpoint_and_its_trace(
    dense: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Run.loss_and_gradients

    def poisoned(self: Run, index: int) -> float:
        return float("nan") if index == 5 else honest(self, index)

    monkeypatch.setattr(Run, "loss_and_gradients", poisoned)
    with pytest.raises(NonFiniteLossError, match="at step 6"):
        train(dense.config, run_dir=tmp_path / "run", console=quiet())
    open_checkpoint(tmp_path / "run" / "checkpoints" / "step_5")
    result = read_result(tmp_path / "run")
    assert result["error"].startswith("NonFiniteLossError: at step 6 the loss is nan")
    assert result["log_tail"][-1].startswith("mlpkit.training.loop.NonFiniteLossError")
    assert len(result["log_tail"]) <= 30
    monkeypatch.undo()
    train(with_keys(dense.config, resume="auto"), run_dir=tmp_path / "run", console=quiet())
    assert state_of(tmp_path / "run") == dense.state


def test_a_second_process_is_refused_with_the_first_ones_number(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from mlpkit.training import RunDirectory\n"
        "directory = RunDirectory.create(pathlib.Path(sys.argv[1]))\n"
        "directory.write_result({'status': 'running', 'pid': 1})\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    run = tmp_path / "run"
    command = [sys.executable, "-c", code, str(run)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        for resume in (False, True):
            with pytest.raises(RunDirectoryError, match=rf"in use by process {process.pid} on "):
                RunDirectory.create(run, resume=resume)
        assert read_result(run)["status"] == "running"  # by the lock: process 1 is another one
        process.kill()
    assert read_result(run)["status"] == "lost"
    RunDirectory.create(run).close()


def test_links_in_a_run_directory_are_refused(dense: Whole, tmp_path: Path) -> None:
    run = dense.as_killed_after(2, tmp_path / "run")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (".lock", "metrics.jsonl", "checkpoints"):
        copy = tmp_path / name
        shutil.move(run / name, copy)
        (run / name).symlink_to(victim)
        with pytest.raises(RunDirectoryError, match=rf"holds a link \({name} → .*victim\)"):
            train(with_keys(dense.config, resume="auto"), run_dir=run, console=quiet())
        (run / name).unlink()
        shutil.move(copy, run / name)
    assert victim.read_text() == "precious"


def test_a_saved_configuration_keeps_the_environment_out(
    short_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORPUS", str(short_text.parent))
    config = configuration(short_text, "activation=relu")
    config.data.path = "${oc.env:CORPUS}/" + short_text.name
    config.model.layers = ["${oc.env:WHICH,main}", "main"]
    config.training.max_steps = 1
    result = train(config, run_dir=tmp_path / "run", console=quiet())
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert f"path: ${{oc.env:CORPUS}}/{short_text.name}" in text
    assert "${oc.env:WHICH,main}" in text
    assert str(short_text.parent) not in text + json.dumps(result)
    assert load_config(tmp_path / "run").data.path == str(short_text)
    monkeypatch.delenv("CORPUS")
    with pytest.raises((ConfigError, RunDirectoryError), match=r"config\.yaml.*CORPUS"):
        load_config(tmp_path / "run")


def test_a_value_that_takes_from_the_environment_through_another_is_refused(
    short_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    config = configuration(short_text)
    config.data.path, config.run_dir = "${run_dir}", "${oc.env:SECRET}"
    with pytest.raises(ConfigError, match=r"data\.path=\$\{run_dir\} reads the environment"):
        RunDirectory(tmp_path).write_config(config)
    assert list(tmp_path.iterdir()) == []


BOMBS = {
    "alias": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{c}: &{c} [{', '.join(['*' + p] * 9)}]\n"
        for p, c in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "self": "ffn: &x [*x]\n",
    "depth": f"ffn: {'[' * 5000}{']' * 5000}\n",
    "references": "a: xxxxxxxxxx\n"
    + "".join(
        f"{c}: {('${' + p + '}') * 9}\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "loop": "seed: ${model}\nmodel: ${seed}\n",
    "size": "# " + "x" * 2_000_000,
    "tag": "ffn: !!python/object/apply:os.system ['touch flag']\n",
    "list": "- 1\n",
    "binary": "\x00\x01",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_hostile_configuration_ends_at_once_with_one_message(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(BOMBS[name])
    with pytest.raises((RunDirectoryError, ConfigError), match=r"config\.yaml") as caught:
        load_config(tmp_path)
    assert caught.value.exit_code == 2
    assert not Path("flag").exists()

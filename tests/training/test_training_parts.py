"""The parts of a run: optimizer, validation, precision, progress, run directory."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import nn

from mlpkit.build import build_data, build_model
from mlpkit.compose import ConfigError, compose
from mlpkit.configs.run import TrainingConfig
from mlpkit.data import build_tokenizer
from mlpkit.describe import describe
from mlpkit.parallel import OneProcess
from mlpkit.registry import printable
from mlpkit.training.evaluation import Validation, evaluate_both
from mlpkit.training.hardware import cores, hardware
from mlpkit.training.measures import failure, peak_memory_bytes, start_peak
from mlpkit.training.optimizer import learning_rate, parameter_groups
from mlpkit.training.preamble import git_state, provenance
from mlpkit.training.precision import DeviceError, choose_precision
from mlpkit.training.progress import Meter, clock
from mlpkit.training.run_directory import (
    RunDirectory,
    RunDirectoryError,
    files,
    load_config,
    load_run,
    read_result,
    write_atomically,
)


def test_learning_rate_warms_up_linearly_and_ends_at_its_ratio() -> None:
    options = TrainingConfig(
        max_steps=101, warmup_steps=10, learning_rate=2.0, min_learning_rate_ratio=0.1
    )
    assert [learning_rate(s, options) for s in (0, 4, 9)] == pytest.approx([0.2, 1.0, 2.0])
    assert learning_rate(10, options) == pytest.approx(2.0)
    assert learning_rate(55, options) == pytest.approx(0.2 + 1.8 * 0.5)  # half way down
    assert learning_rate(100, options) == pytest.approx(0.2)
    rates = [learning_rate(s, options) for s in range(10, 101)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_learning_rate_of_a_run_shorter_than_its_warmup_is_positive(steps: int) -> None:
    options = TrainingConfig(max_steps=steps, warmup_steps=5)
    assert all(0 < learning_rate(s, options) <= 3e-3 for s in range(steps))


def test_decay_is_for_matrices_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.PReLU(4), nn.Embedding(5, 2))
    model[0].weight.requires_grad_(False)
    decayed, plain = parameter_groups(model, 0.3)
    assert [tuple(p.shape) for p in decayed["params"]] == [(5, 2)]
    assert len(plain["params"]) == 4
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)


def test_validation_equals_a_loop_over_single_tokens(tiny: list[str]) -> None:
    config = compose(tiny)
    dataset = build_data(config)
    model = build_model(config, tokenizer=dataset.tokenizer).double().train()
    _, score = evaluate_both(
        model,
        dataset,
        precision=choose_precision("cpu", "float32"),
        batch_size=3,
        sequence_length=16,
        max_tokens=1,
        everything=True,
        parallel=OneProcess(),
    )
    assert model.training
    tokens = torch.from_numpy(dataset.val.astype("int64"))
    nats, num_bytes, count = 0.0, 0, 0
    with torch.no_grad():
        for start in range(0, len(tokens) - 16, 16):
            window = tokens[start : start + 17]
            logits = model.eval()(window[None, :-1])[0]
            for position in range(16):
                target = int(window[position + 1])
                nats -= float(F.log_softmax(logits[position], -1)[target])
                num_bytes += target != dataset.tokenizer.eos  # a byte token is a byte
                count += 1
    assert score.tokens == count
    assert score.loss == pytest.approx(nats / count, rel=1e-6)
    assert score.bpb == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-6)


def test_a_uniform_model_needs_the_bits_of_its_vocabulary() -> None:
    loss = math.log(257)
    assert Validation(loss=loss, bpb=loss / math.log(2), tokens=1).perplexity == pytest.approx(257)
    assert math.isfinite(Validation(loss=1e4, bpb=1.0, tokens=1).perplexity)


@pytest.mark.parametrize("name", ["float32", "bf16"])
def test_precision_follows_what_is_asked(name: str) -> None:
    chosen = choose_precision("cpu", name)
    with chosen.autocast():
        out = nn.Linear(2, 2)(torch.ones(1, 2))
    assert out.dtype == chosen.dtype == (torch.bfloat16 if name == "bf16" else torch.float32)
    assert name in str(chosen)


def test_hardware_is_processor_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    said = hardware(torch.device("cpu"))
    assert f", {cores()} core" in said
    if Path("/proc/meminfo").exists():
        (total,) = re.findall(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())
        # the page count of the system's call is the same memory
        assert said.endswith(f", {int(total) / 2**20:.1f} GiB")
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
        assert ", 1 core, " in hardware(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    assert hardware(torch.device("cuda")).endswith("GiB, Some GPU")


def test_auto_precision_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for capabilities, dtype in (({"amx_bf16": True}, torch.bfloat16), ({}, torch.float32)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda c=capabilities: c)
        chosen = choose_precision("cpu", "auto")
        assert chosen.dtype == dtype
        assert "bf16 in hardware" in chosen.reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_refused() -> None:
    with pytest.raises(DeviceError, match="cuda"):
        choose_precision("cuda", "auto")


def test_meter_counts_speed_over_training_time_alone() -> None:
    meter = Meter(max_steps=10, eval_every=5)
    for _ in range(4):
        meter.add_step(0.5, 100)
    meter.add_validation(3.0)
    assert meter.tokens_per_second == pytest.approx(200)
    assert meter.eta == pytest.approx(6 * 0.5 + 2 * 3.0)  # validations at 5 and 10 are left
    assert Meter(max_steps=1, eval_every=1).tokens_per_second == 0


def test_clock_and_printable() -> None:
    assert [clock(s) for s in (0, 59.6, 61, 3600)] == ["0:00", "1:00", "1:01", "1:00:00"]
    assert printable("a\x1b[2J\tb\n") == "a\ufffd[2J\tb\n"


def test_write_atomically_leaves_the_old_file_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_what_a_kill_left_half_written_goes_when_the_run_is_opened_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    RunDirectory.create(run).write_result({"status": "failed", "pid": 1})
    (run / ".notes.of_mine").write_text("kept")
    kills = (
        "import os, runpy, signal, sys; from pathlib import Path\n"
        "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)\n"
        "runpy.run_path(sys.argv[1])['write_atomically'](Path(sys.argv[2]), b'{')"
    )
    for name in ("result.json", "model.safetensors"):
        line = [sys.executable, "-c", kills, files.__file__, str(run / name)]
        assert subprocess.run(line).returncode == -signal.SIGKILL
    names = {".lock", ".notes.of_mine", "result.json"}
    left = {p.name for p in run.iterdir()} - names
    assert sorted(name[:8] for name in left) == [".model.s", ".result."]
    assert read_result(run)["status"] == "failed"
    RunDirectory.create(run)
    assert {p.name for p in run.iterdir()} == names


@pytest.mark.parametrize("resume", [False, True])
def test_a_refused_directory_is_left_as_it_was(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "notes.txt").write_text("of somebody")
    (tmp_path / ".a.abcdefgh.tmp").write_text("of somebody else")
    for _ in range(2):
        with pytest.raises(RunDirectoryError, match="holds other files"):
            RunDirectory.create(tmp_path, resume=resume)
    assert {p.name for p in tmp_path.iterdir()} == {"notes.txt", ".a.abcdefgh.tmp"}


def test_default_directories_of_one_second_do_not_collide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = {RunDirectory.create(None).path for _ in range(5)}
    assert len(paths) == 5
    assert all(p.parent.parent == Path("outputs") for p in paths)


def test_a_directory_with_a_finished_run_or_other_files_is_refused(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "done").write_result({"status": "ok"})
    with pytest.raises(RunDirectoryError, match="holds a run with status 'ok'"):
        RunDirectory.create(tmp_path / "done")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(RunDirectoryError, match=r"thesis\.tex"):
        RunDirectory.create(tmp_path / "other")
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="cannot be made"):
        RunDirectory.create(tmp_path / "file")


def test_a_failed_run_may_be_repeated_in_its_directory(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    directory.write_result({"status": "failed"})
    directory.close()
    assert RunDirectory.create(tmp_path / "run").path == tmp_path / "run"


def test_a_running_record_of_a_dead_process_reads_as_lost(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    directory = RunDirectory(tmp_path)
    directory.write_result({"status": "running", "pid": int(ended.stdout)})
    assert read_result(tmp_path)["status"] == "lost"
    directory.write_result({"status": "running", "pid": os.getpid()})
    assert read_result(tmp_path)["status"] == "running"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"status": "running"}', "\x00"])
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(RunDirectoryError, match=r"result\.json is damaged"):
        read_result(tmp_path)


def test_a_saved_configuration_is_checked_when_it_is_read(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        load_config(tmp_path)
    config = compose(["ffn=gated", "activation=gelu"])
    directory.write_config(config)
    assert load_config(tmp_path) == config
    for foreign in ({"ffn": {"_target_": "os.system"}}, {"ffn": {"name": "nothing"}}, {"x": 1}):
        broken = OmegaConf.merge(OmegaConf.create(OmegaConf.to_container(config)), foreign)
        (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(broken))
        with pytest.raises((ConfigError, RunDirectoryError), match=r"config\.yaml"):
            load_config(tmp_path)
    (tmp_path / "config.yaml").write_text("ffn: [")
    with pytest.raises(RunDirectoryError, match="damaged"):
        load_config(tmp_path)


def test_weights_that_do_not_fit_or_are_missing_are_named(tiny: list[str], tmp_path: Path) -> None:
    config = compose(tiny)
    directory = RunDirectory(tmp_path)
    directory.write_config(config)
    directory.write_result({"status": "failed"})
    with pytest.raises(RunDirectoryError, match=r"no weights .*'failed'"):
        load_run(tmp_path)
    directory.write_weights(build_model(config).state_dict())
    load_run(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    os.truncate(tmp_path / "model.safetensors", size // 2)
    with pytest.raises(RunDirectoryError, match=r"model\.safetensors"):
        load_run(tmp_path)
    directory.write_weights(build_model(compose([*tiny, "model.hidden_size=32"])).state_dict())
    with pytest.raises(RunDirectoryError, match=r"does not fit config\.yaml: size mismatch for"):
        load_run(tmp_path)


def test_a_run_keeps_its_tokenizer_and_end_token_when_their_folder_is_gone(
    tiny: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0, "<end>": 1, "cat": 2}))
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    config = compose([*tiny, f"data.tokenizer={folder}"])
    (tmp_path / "run").mkdir()
    directory = RunDirectory(tmp_path / "run")
    directory.write_config(config)
    directory.write_tokenizer(build_tokenizer(config.data.tokenizer))
    directory.write_weights(
        build_model(config, tokenizer=build_tokenizer(str(folder))).state_dict()
    )
    shutil.rmtree(folder)
    _, tokenizer, _ = load_run(directory.path)
    assert (tokenizer.vocab_size, tokenizer.eos) == (3, 1)


def test_a_directory_used_again_does_not_keep_the_tokenizer_of_the_failed_run(
    tiny: list[str], tmp_path: Path
) -> None:
    config = compose(tiny)
    directory = RunDirectory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    directory.write_config(config)
    directory.write_tokenizer(build_tokenizer(config.data.tokenizer))
    directory.write_weights(build_model(config).state_dict())
    assert load_run(tmp_path)[1].name == "bytes"


def test_weights_survive_bit_for_bit(tiny: list[str], tmp_path: Path) -> None:
    config = compose(tiny)
    model = build_model(config)
    with torch.no_grad():
        model.norm.weight[:3] = torch.tensor([1e-8, 1e5, -0.0])
    directory = RunDirectory(tmp_path)
    directory.write_config(config)
    directory.write_weights(model.state_dict())
    loaded, _, _ = load_run(tmp_path)
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key].view(torch.int32), value.view(torch.int32))


def test_metrics_with_a_torn_last_line_are_read(tmp_path: Path) -> None:
    from mlpkit.figures.curves import read_metrics

    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"step": 1, "loss": 2.0}) + '\n{"step": 2, "lo')
    assert read_metrics(path) == [{"step": 1, "loss": 2.0}]


def test_the_peak_of_memory_is_that_of_this_run_and_not_of_an_earlier_one() -> None:
    device = torch.device("cpu")
    start_peak(device)
    before = peak_memory_bytes(device)
    if before is None or not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system does not say")
    block = torch.ones(50_000_000)
    with_block = peak_memory_bytes(device)
    del block
    start_peak(device)
    after = peak_memory_bytes(device)
    assert with_block - before == pytest.approx(200_000_000, rel=0.2)
    assert after < with_block - 150_000_000


def test_a_failure_is_one_line_and_the_end_of_its_trace() -> None:
    lines = [f"line {n}" for n in range(40)]
    said = failure(ValueError("\n".join(lines)))
    assert said["error"] == f"ValueError: {' '.join(lines)}"
    assert said["log_tail"] == lines[10:]


def test_the_state_of_git_is_commit_and_dirt_and_null_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state() is None
    (tmp_path / "file").write_text("a")
    who = ["-c", "user.name=x", "-c", "user.email=x@y"]
    for command in (["init", "-q"], ["add", "file"], [*who, "commit", "-q", "-m", "m"]):
        subprocess.run(["git", *command], check=True)
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()
    assert git_state() == {"commit": commit, "dirty": False}
    (tmp_path / "untracked").touch()
    assert git_state() == {"commit": commit, "dirty": False}
    (tmp_path / "file").write_text("b")
    assert git_state() == {"commit": commit, "dirty": True}


def test_a_repository_cannot_have_its_program_run_for_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\ntouch flag\n")
    program.chmod(0o755)
    subprocess.run(["git", "config", "core.fsmonitor", str(program)], check=True)
    git_state()
    assert not (tmp_path / "flag").exists()


def test_the_numbers_of_a_record_are_those_of_the_built_model(tiny: list[str]) -> None:
    config = compose(tiny)
    dataset, model = build_data(config), build_model(config)
    description = describe(config, model)
    found = provenance(config, dataset, choose_precision("cpu", "float32"), description, model)
    hidden, width, layers = 16, 24, 2
    assert found["model"] == {
        "parameters": sum(p.numel() for p in model.parameters()),
        "active_parameters": sum(p.numel() for p in model.parameters()),
        "ffn_parameters": layers * 3 * hidden * width,
        "flops_per_token": description.flops_per_token,
        "training_flops_per_token": 3 * description.flops_per_token,
    }


def test_the_meter_goes_on_where_it_was() -> None:
    meter, other = Meter(max_steps=10, eval_every=5), Meter(max_steps=20, eval_every=5)
    meter.add_step(0.5, 100)
    meter.add_validation(3.0)
    other.restore(json.loads(json.dumps(meter.state())))
    assert (other.max_steps, other.steps, other.tokens) == (20, 1, 100)
    assert other.tokens_per_second == 200

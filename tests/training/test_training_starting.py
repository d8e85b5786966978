"""init_from: a run that starts from another's weights, model and tokenizer."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mlpkit.cli import main
from mlpkit.compose import compose
from mlpkit.convert import WeightsError
from mlpkit.sweep import checked_jobs
from mlpkit.sweep.source import from_source, initial_weights
from mlpkit.training import load_run, train
from mlpkit.training.run_directory import RunDirectoryError
from mlpkit.training.starting import InitialWeightsError, inherit, override_key


@pytest.fixture(scope="module")
def source(tmp_path_factory, tiny_text):
    """A run with a model of its own sizes and a BPE of its own."""
    path = tmp_path_factory.mktemp("source") / "run"
    overrides = [
        *("data=text", f"data.path={tiny_text}", "data.val_fraction=0.1"),
        *("model.hidden_size=16", "model.num_layers=2", "model.num_attention_heads=2"),
        *("model.num_key_value_heads=1", "ffn=gated", "activation=gelu"),
        *("ffn.intermediate_size=24", "training.max_steps=20", "training.batch_size=4"),
        *("training.sequence_length=16", "training.eval_tokens=100000", "training.sample_tokens=0"),
        *("training.learning_rate=0.01", "training.precision=float32", "training.warmup_steps=2"),
    ]
    if pytest.importorskip("tokenizers"):
        overrides.append("data.tokenizer=bpe-280")
    train(compose([*overrides, f"run_dir={path}"]), overrides=overrides)
    return path


@pytest.fixture
def further(source, tiny_text):
    """Overrides of a run that says nothing of its model."""
    return [
        f"init_from={source}",
        *("data=text", f"data.path={tiny_text}", "data.val_fraction=0.1"),
        *("training.max_steps=4", "training.batch_size=4", "training.sequence_length=16"),
        *("training.eval_tokens=100000", "training.sample_tokens=0", "training.precision=float32"),
        *("training.log_every=1", "training.warmup_steps=0"),
    ]


def inherited(overrides):
    return from_source(compose(overrides), overrides)


def test_the_model_and_the_tokenizer_are_the_sources(source, further):
    config = inherited(further)
    ffn = config.ffn
    assert (ffn.name, ffn.intermediate_size, config.activation.name) == ("gated", 24, "gelu")
    assert (config.model.hidden_size, config.model.num_layers) == (16, 2)
    assert config.data.tokenizer == str(source / "tokenizer.json")
    assert config.training.max_steps == 4
    assert config.init_from == str(source)


def test_what_the_user_overrides_is_the_users(further):
    config = inherited([*further, "activation=silu", "model.dropout=0.1", "ffn=naive"])
    assert (config.ffn.name, config.activation.name) == ("naive", "silu")
    assert config.model.dropout == 0.1
    assert config.model.hidden_size == 16
    assert inherited([*further, "model=small"]).model.hidden_size == 256
    assert inherited([*further, "data.tokenizer=bytes"]).data.tokenizer == "bytes"


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("ffn/router=topk", "ffn.router"),
        ("+ffn@ffns.dense=swiglu", "ffns.dense"),
        ("~data.path", "data.path"),
        ("model.layers={a: b=c}", "model.layers"),
    ],
)
def test_an_override_says_what_it_sets(override, key):
    assert override_key(override) == key


def test_a_run_starts_with_the_loss_that_the_source_ended_with(source, further, tmp_path):
    config = inherited([*further, f"run_dir={tmp_path / 'run'}"])
    result = train(config, overrides=further)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    ended = json.loads((source / "result.json").read_text())["metrics"]["val_loss"]
    assert lines[0]["val_loss"] == pytest.approx(ended, rel=1e-5)
    weights = (source / "model.safetensors").read_bytes()
    digest = hashlib.sha256(weights).hexdigest()
    assert result["init_from"] == {"path": str(source), "sha256": digest}
    before, after = load_run(source)[0], load_run(tmp_path / "run")[0]
    assert not torch.equal(before.embed_tokens.weight, after.embed_tokens.weight)
    assert (tmp_path / "run/tokenizer.json").read_bytes() == (
        source / "tokenizer.json"
    ).read_bytes()


def test_the_command_line_goes_on_from_an_exported_folder(
    source, further, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(source), "hf", "--no-verify"]) == 0
    arguments = [o for o in further if not o.startswith("init_from")]
    assert main(["train", "init_from=hf", "run_dir=fine", *arguments]) == 0
    first = json.loads(Path("fine/metrics.jsonl").read_text().splitlines()[0])
    ended = json.loads((source / "result.json").read_text())["metrics"]["val_loss"]
    assert first["val_loss"] == pytest.approx(ended, rel=1e-5)
    result = json.loads(Path("fine/result.json").read_text())
    assert result["init_from"]["path"] == "hf"
    assert load_run(Path("fine"))[1].decode([65]) == load_run(source)[1].decode([65])


def test_the_command_line_goes_on_from_an_upcycled_run(
    source, further, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["upcycle", str(source), "moe", "ffn.num_experts=4"]) == 0
    arguments = [o for o in further if not o.startswith("init_from")]
    assert main(["train", "init_from=moe", "run_dir=fine", *arguments]) == 0
    lines = [json.loads(line) for line in Path("fine/metrics.jsonl").read_text().splitlines()]
    ended = json.loads((source / "result.json").read_text())["metrics"]["val_loss"]
    assert lines[0]["val_loss"] == pytest.approx(ended, rel=1e-5)
    result = json.loads(Path("fine/result.json").read_text())
    assert result["ffn"] == "moe[4×gated[gelu], top 2]"
    assert "moe[4×gated[gelu], top 2]" in capsys.readouterr().out


def test_a_run_goes_on_when_what_it_started_from_is_gone(
    source, further, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(source, "gone")
    rest = [o for o in further if not o.startswith(("init_from", "training.max_steps"))]
    command = ["train", "init_from=gone", *rest, "training.checkpoint_every=2", "run_dir=run"]
    assert main([*command, "training.max_steps=4"]) == 0
    before = json.loads(Path("run/result.json").read_text())["init_from"]
    shutil.rmtree("gone")
    assert main([*command, "training.max_steps=6", "resume=auto"]) == 0
    assert "going on after step 4" in capsys.readouterr().out
    result = json.loads(Path("run/result.json").read_text())
    assert (result["status"], result["step"], result["init_from"]) == ("ok", 6, before)
    assert before["sha256"] == initial_weights(str(source))
    further = ["resume=run/checkpoints/step_4", "training.max_steps=6", "run_dir=other"]
    named = [o for o in command if not o.startswith("run_dir")]
    assert main([*named, *further]) == 0
    assert json.loads(Path("other/result.json").read_text())["init_from"] == before
    assert main([*[o for o in named if "resume" not in o], "run_dir=new"]) == 2


def test_weights_of_another_model_are_refused_by_tensor(further, tmp_path):
    for override, message in (
        ("ffn.intermediate_size=32", r"gate_proj.weight \(24, 16\) for \(32, 16\)"),
        ("model.num_layers=3", r"layers.2.\S+ is missing for"),
        ("model.num_layers=1", r"layers.1.\S+ \(\d+.*\) for no such tensor.* and \d+ more"),
        ("data.tokenizer=bytes", r"knows 280 tokens and tokenizer 'bytes' needs 257; leave data"),
    ):
        chosen = [*further, override]
        if override.startswith("ffn."):
            chosen += ["ffn=gated"]
        config = inherited([*chosen, f"run_dir={tmp_path / 'run'}"])
        with pytest.raises(InitialWeightsError, match=message) as caught:
            train(config)
        assert caught.value.exit_code == 4
        assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run_says_what_to_do(further, tmp_path, source):
    rest = further[1:]
    with pytest.raises(RunDirectoryError, match="is not a run directory"):
        inherited([f"init_from={tmp_path}", *rest])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"has no model\.safetensors"):
        inherited([f"init_from={tmp_path}", *rest])
    broken = tmp_path / "broken"
    shutil.copytree(source, broken)
    (broken / "model.safetensors").write_bytes(b"\x80\x04no weights")
    with pytest.raises(InitialWeightsError, match=r"model.safetensors cannot be read"):
        train(inherited([f"init_from={broken}", *rest, f"run_dir={tmp_path / 'run'}"]))
    (broken / "model.safetensors").unlink()
    with pytest.raises(InitialWeightsError, match="give the directory of a run that has ended"):
        train(inherited([f"init_from={broken}", *rest, f"run_dir={tmp_path / 'run'}"]))


def test_a_job_is_named_by_the_weights_and_not_by_where_they_lie(source, further, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(source, moved)
    assert initial_weights(str(moved)) == initial_weights(str(source))
    (moved / "model-00002-of-00002.safetensors").write_bytes(b"more")  # as a large folder has them
    assert initial_weights(str(moved)) != initial_weights(str(source))
    first = checked_jobs(further, sweeps=False)[0]
    assert first.config.ffn.name == "gated"
    weights = load_file(moved / "model.safetensors")
    save_file({k: v + 1 for k, v in weights.items()}, moved / "model.safetensors")
    same = [o for o in further if not o.startswith("init_from")]
    tokenizer = f"data.tokenizer={source / 'tokenizer.json'}"
    ids = {
        checked_jobs([f"init_from={path}", *same, tokenizer], sweeps=False)[0].id
        for path in (source, moved)
    }
    assert len(ids) == 2


def test_without_init_from_nothing_changes():
    config = compose([])
    assert from_source(config, []) is config
    assert inherit(config, []) is config

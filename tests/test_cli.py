"""The program as a user meets it: verbs, messages, exit codes, what is left on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlpkit.cli import VERBS, main
from mlpkit.sweep.summary import budget_note

BAD = {
    "ffn=swigul": ("swigul", "swiglu"),
    "ffn.intermediate_sise=3": ("ffn.intermediate_sise", "ffn.intermediate_size"),
    "+ffn.anything=1": ("ffn.anything", "intermediate_size"),
    "+ffn._target_=os.system": ("ffn._target_", "intermediate_size"),
    "ffn.name=moe": ("ffn.name", "ffn=moe"),
    "seed=1 -m ffn=naive,swigul": ("job 2 of 2", "swiglu"),
    "ffn=swigul --cfg job": ("swigul", "swiglu"),
    "--cfg job ffn=swigul": ("swigul", "swiglu"),
    "--config-name nonsense": ("'nonsense'", "--config-name"),
    "-m seed=1,2 --cfg job": ("--cfg job", "-m"),
    "-p ./mine.py ffn=mine": ("-p", "before the verb"),
    "ffn.name=gated": ("ffn.name", "ffn=gated"),
    "model.hidden_size=abc": ("model.hidden_size", "abc"),
    "model.hidden_size=129": ("model.hidden_size 129", "128"),
    "ffn.intermediate_size=-5": ("ffn.intermediate_size", "-5"),
    "data=text data.path=/nowhere": ("data.path=/nowhere", "no such file"),
    "data=text": ("data.path", "FILE"),
    "ffn.dropout=2": ("ffn.dropout", "2.0"),
    "model.dropout=1.5": ("model.dropout", "1.5"),
    "activation=gelo": ("gelo", "gelu"),
    "ffn.activation=gelo": ("ffn.activation", "gelu"),
    "training=quik": ("quik", "quick"),
    "training.precision=fp8": ("training.precision", "bf16"),
    "training.learning_rate=nan": ("training.learning_rate", "nan"),
    "data.tokenizer=bites": ("bites", "bytes"),
    "training.sequence_length=99999999": ("99999999", "tokens"),
    "nonsense": ("nonsense", "EQUAL"),
    "-m ffn=naive,swigul": ("job 2 of 2", "swiglu"),
    "-m seed=1,2 run_dir=x": ("run_dir", "multirun"),
    "ffn=naive,gated": ("ffn=naive,gated", "add -m"),
    "model=null": ("model is null", "small", "tiny"),
    "training=3": ("training is 3", "quick"),
    "seed=null": ("seed cannot be null",),
    "--cfg job ffn.intermediate_size=-5": ("ffn.intermediate_size", "-5"),
    "-cjob ffn.dropout=2": ("ffn.dropout", "2.0"),
    "match=params match_to=swigul": ("match_to", "did you mean 'swiglu'"),
    "model.hidden_size=1000000000": ("memory", "1000000000"),
    "training.batch_size=100000000": ("needs about", "100000000"),
    "ffn=moe ffn/router=forced": ("'forced'", "ffn.balance=null"),
    "-m hydra/launcher=nonsense": ("hydra/launcher 'nonsense'", "mlpkit[launchers]"),
}


def run(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlpkit", *arguments],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("line", BAD)
def test_bad_input_ends_with_one_message_and_leaves_nothing(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(["train", *line.split()])
    captured = capfd.readouterr()
    assert code == 2
    assert captured.err.count("mlpkit:") == 1, captured.err
    for word in BAD[line]:
        assert word in captured.err
    assert "Traceback" not in captured.err + captured.out
    assert "Error executing job" not in captured.err
    assert list(tmp_path.iterdir()) == []


def test_bad_input_in_a_process_of_its_own(tmp_path: Path) -> None:
    ended = run("train", "ffn=swigul", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("mlpkit: unknown ffn 'swigul'; did you mean 'swiglu'?")
    assert run("train", "--debug", "ffn=swigul", cwd=tmp_path).returncode == 2
    debug = run("--debug", "train", "ffn=swigul", cwd=tmp_path)
    assert debug.returncode == 2
    assert "Traceback" in debug.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lst"], "unknown verb 'lst'; did you mean 'list'? (there are: train"),
        (["list", "ffns"], "did you mean 'ffn'"),
        (["check", "ffns", "swiglu"], "did you mean 'ffn'"),
        (["check", "ffn", "swiglu", "dropuot=0.1"], "did you mean 'dropout'"),
        (["check", "backend", "loop", "speed=3"], "'loop' has no option 'speed'"),
        (["show", "ffn", "swigul"], "did you mean 'swiglu'"),
        (["describe", "ffn=swigul"], "did you mean 'swiglu'"),
        (["generate", "nowhere"], "not a run directory"),
    ],
)
def test_every_verb_answers_bad_input_with_exit_code_2(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("mlpkit:") == 1


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)
    for verb in VERBS:
        if verb != "train":
            with pytest.raises(SystemExit) as ended:
                main([verb, "--help"])
            assert ended.value.code == 0


def test_the_help_of_train_has_its_sections_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("mlpkit train: ")
    assert shown.count("== ") == shown.count("\n\n== ") > 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["list"],
        ["list", "ffn", "swi*"],
        ["show", "ffn", "swiglu"],
        ["train", "--help"],
        ["train", "--cfg", "job"],
        ["train", "--info", "searchpath"],
        ["completion", "bash"],
    ],
)
def test_what_only_shows_imports_no_torch(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; from mlpkit.cli import main\n"
        "try:\n    status = main(sys.argv[1:])\n"
        "except SystemExit as ended:\n    status = ended.code\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
        "sys.exit(status)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_list_and_show_name_the_provider(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "ffn", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"naive", "gated", "swiglu"} <= {row["name"] for row in rows}
    assert main(["show", "ffn", "glu", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["name"] == "gated"
    assert facts["provider"].startswith("mlpkit ")
    assert facts["options"]["intermediate_size"] == ["int | str | None", "null"]
    assert main(["show", "activation", "silu"]) == 0
    assert "sigmoid" in capsys.readouterr().out  # its formula


def test_the_default_configuration_holds_no_mixture(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--cfg", "job"]) == 0
    shown, parallel, devices = capfd.readouterr().out.partition("parallel:\n")
    assert parallel
    assert "expert: 1" in devices  # how devices are used is asked of no model
    assert "name: swiglu" in shown
    for word in ("moe", "router", "balance", "expert"):
        assert word not in shown


def test_a_shown_configuration_says_what_is_settled_after_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--cfg", "job", "match=params", "ffn=naive"]) == 0
    shown = capfd.readouterr()
    assert "match: params" in shown.out
    assert "the widths of match come after it" in shown.err
    assert main(["train", "--cfg", "job"]) == 0
    assert not capfd.readouterr().err


def test_a_single_run_then_generate(
    tiny: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *tiny]) == 0
    (result,) = tmp_path.glob("outputs/*/*/result.json")
    assert json.loads(result.read_text())["overrides"] == tiny
    capfd.readouterr()
    texts = []
    for seed in ("0", "0", "1"):
        arguments = ["generate", str(result.parent), "--prompt", "line ", "--tokens", "12"]
        assert main([*arguments, "--seed", seed]) == 0
        texts.append(capfd.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("line ")
    assert main(["generate", str(result.parent), "--temperature", "-1"]) == 2
    assert main(["generate", str(result.parent), "--prompt", "", "--tokens", "0"]) in (0, 2)
    assert main(["generate", str(result.parent), "--prompt", "a\udcff", "--tokens", "1"]) == 0
    for option in ("--tokens=-1", "--seed=-1", f"--seed={2**63}"):
        with pytest.raises(SystemExit) as ended:
            main(["generate", str(result.parent), option])
        assert ended.value.code == 2


def test_a_sweep_runs_every_job_once(
    tiny: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["train", "-m", "ffn=naive,gated,swiglu", "activation=null,relu", *tiny]
    assert main(line) == 0
    results = sorted(tmp_path.glob("multirun/*/result.json"))
    records = [json.loads(path.read_text()) for path in results]
    assert sorted(r["ffn"] for r in records) == sorted(
        ["naive", "naive", "gated", "gated[relu]", "swiglu", "gated[relu]"]
    )
    assert "6 ok, 0 failed" in capfd.readouterr().out
    times = [path.stat().st_mtime_ns for path in results]
    assert main(["train", "-m", *reversed(line[2:])]) == 0  # again, in another order
    assert [path.stat().st_mtime_ns for path in results] == times
    assert capfd.readouterr().out.count("done before, val_bpb") == 6


def test_a_failing_job_does_not_stop_the_others(
    tiny: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["train", "-m", *tiny, "training.learning_rate=1e-3,1e30,2e-3", "training.max_steps=12"]
    assert main(line) == 1
    captured = capfd.readouterr()
    assert "mlpkit: job 2 of 3 failed: at step" in captured.err
    assert "2 ok, 1 failed" in captured.out
    states = [json.loads(p.read_text())["status"] for p in tmp_path.glob("multirun/*/result.json")]
    assert sorted(states) == ["failed", "ok", "ok"]


def test_nan_exits_with_5(
    tiny: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["train", *tiny, "training.learning_rate=1e30", "training.max_steps=12"]
    assert main(line) == 5
    assert "the weights were not updated" in capfd.readouterr().err


def test_a_finished_run_directory_is_not_overwritten(
    tiny: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *tiny, "run_dir=here"]) == 0
    before = (tmp_path / "here" / "model.safetensors").read_bytes()
    assert main(["train", *tiny, "run_dir=here"]) == 2
    assert "holds a run with status 'ok'" in capfd.readouterr().err
    assert (tmp_path / "here" / "model.safetensors").read_bytes() == before
    assert json.loads((tmp_path / "here" / "result.json").read_text())["status"] == "ok"


def test_describe_prints_the_same_numbers_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "ffn=naive"]) == 0
    text = capsys.readouterr().out
    assert main(["describe", "ffn=naive", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert f"{facts['parameters']:,}" in text
    assert f"{facts['flops_per_token']:,}" in text


@pytest.mark.parametrize(
    ("parameters", "said"),
    [([], False), ([100], False), ([100, 102], False), ([1000, 1200, 1100], True)],
)
def test_models_of_different_size_in_a_sweep_are_noted(parameters: list[int], said: bool) -> None:
    note = budget_note(parameters)
    assert bool(note) == said
    assert not said or "1,000 to 1,200" in note

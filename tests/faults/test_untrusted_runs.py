"""Run directories that somebody else made: nothing outside is read, written, removed or run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlpkit.cli import main
from mlpkit.compose import ConfigError, compose
from mlpkit.compose.untrusted import require_plain_file
from mlpkit.report.runs import find_runs, read_run
from mlpkit.sweep import checked_jobs
from mlpkit.training import RunDirectoryError, load_config, load_run
from mlpkit.training.run_directory import hide_environment, read_result

SECRET = "precious-words-of-somebody-else"
FILES = ("config.yaml", "result.json", "metrics.jsonl", "sample.txt", "log.txt", "mixture.json")
# nine to the eighth strings from a few bytes
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_text: Path) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    line = [
        *("data=text", f"data.path={tiny_text}", "model.hidden_size=16", "model.num_layers=1"),
        *("model.num_attention_heads=2", "training.max_steps=1", "training.batch_size=2"),
        *("training.sequence_length=16", "training.eval_tokens=64", "training.warmup_steps=0"),
        *("training.checkpoint_every=0", "training.sample_tokens=4"),
    ]
    assert main(["train", *line, f"run_dir={run}"]) == 0
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "file").write_text(f"{SECRET}\n")
    return folder


def kept(victim: Path) -> bool:
    """Whether nothing was added, removed or changed there."""
    return [(p.name, p.read_text()) for p in victim.iterdir()] == [("file", f"{SECRET}\n")]


@pytest.mark.parametrize("name", [*FILES, "model.safetensors", "tokenizer.json"])
def test_a_link_is_read_by_no_verb(run: Path, victim: Path, name: str, capfd: Any) -> None:
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "status": "failed"}))  # its log is shown
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim / "file")
    for reader in (load_run, load_config):
        with pytest.raises(RunDirectoryError, match=rf"holds a link \({name} → .*victim/file\)"):
            reader(run)
    found = read_run(run)
    assert SECRET not in repr(found)
    assert (name in FILES) == any(
        f"{name} cannot be read: it is a link" in p for p in found.problems
    )
    assert main(["export", str(run), str(run.parent / "out")]) == 2
    shown = capfd.readouterr()
    assert SECRET not in shown.out + shown.err
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["config.yaml", "result.json", "sample.txt", ".lock"])
def test_a_pipe_ends_in_a_message_and_not_in_waiting(run: Path, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with pytest.raises(RunDirectoryError, match=f"holds {name}, which is no plain file"):
        load_config(run)
    assert (
        name == ".lock" or f"{name} cannot be read: it is no plain file" in read_run(run).problems
    )
    if name == "result.json":
        with pytest.raises(RunDirectoryError, match="it is no plain file"):
            read_result(run)


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    with file.open("wb") as stream:
        stream.truncate(2_000_000_000)
    with pytest.raises(ValueError, match="it has 2,000,000,000 bytes, and at most 256,000,000"):
        require_plain_file(file)
    assert any("at most 256,000,000 are read" in said for said in read_run(tmp_path).problems)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "it has the alias *a; a saved configuration has none"),
        ("? " * 1000 + "a", "nested deeper than 40 levels"),
        ("a: " + "x" * 1_000_000, "at most 1,000,000 are read"),
        ("!!python/object/apply:os.system ['touch ran']", "could not determine a constructor"),
    ],
)
def test_yaml_that_grows_or_runs_is_refused_by_every_reader(
    run: Path, text: str, said: str
) -> None:
    (run / "config.yaml").write_text(text)
    with pytest.raises(RunDirectoryError) as caught:
        load_config(run)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    (problem,) = read_run(run).problems
    assert said in problem
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_layers", 10**9, "num_layers is 1000000000; it must be at most 10000"),
        ("hidden_size", 10**30, "it must be at most 2147483647"),
        ("hidden_size", 2**31 - 1, "config.yaml"),
        ("hidden_size", 100_000, "parameters that are described there"),
        ("vocab_size", 10**9, "parameters that are described there"),
    ],
)
def test_sizes_that_no_weights_go_with_take_no_memory(
    run: Path, key: str, value: int, said: str
) -> None:
    content = yaml.safe_load((run / "config.yaml").read_text())
    content["model"][key] = value
    (run / "config.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises((RunDirectoryError, ConfigError)) as caught:
        load_run(run)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that is tried makes numbers of the experts' size: gigabytes, for these."""

    def tried(*_: Any) -> str:
        raise AssertionError("a backend was tried for a model that has no weights")

    monkeypatch.setattr("mlpkit.experts.stack.verify", tried)


EXPERT = {"name": "swiglu", "intermediate_size": 2**31 - 1}


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("ffn", "said"),
    [
        ({"name": "naive", "intermediate_size": 2**31 - 1}, "model.safetensors"),
        ({"name": "naive", "intermediate_size": 10**20}, "it must be at most 2147483647"),
        ({"name": "naive", "intermediate_size": "llama:999999999999999"}, "at most 2147483647"),
        ({"name": "low_rank", "rank": 10**12}, "it must be at most 2147483647"),
        ({"name": "moe", "expert": EXPERT}, "model.safetensors"),
        ({"name": "moe", "shared": {"name": "moe", "expert": EXPERT}}, "model.safetensors"),
        ({"name": "moe", "num_experts": 10**9}, "it must be at most 10000"),
        ({"name": "moe", "router": {"name": "topk", "n_group": 10**9}}, "at most 10000"),
    ],
    ids=["wide", "wider", "rule", "rank", "expert", "inner", "experts", "groups"],
)
def test_a_wide_ffn_is_refused_before_it_takes_memory(
    run: Path, ffn: dict[str, Any], said: str, capfd: Any
) -> None:
    content = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**content, "ffn": ffn}))
    with pytest.raises((RunDirectoryError, ConfigError)) as caught:
        load_run(run)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert main(["export", str(run), str(run.parent / "out")]) in (2, 4)  # 4: other weights
    shown = capfd.readouterr().err
    assert said in shown or "and the configuration of the run says" in shown
    assert len(shown.splitlines()) == 1
    assert not (run.parent / "out").exists()


@pytest.mark.parametrize("name", ["..", ".", "", "a\0b", "x" * 5000, "\x1b[2J", "a b"])
def test_a_sweep_names_jobs_and_no_places(trained: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(trained, tmp_path / "above")
    sweep = tmp_path / "above" / "multirun" / "sweeps" / "s" / "sweep.json"
    sweep.parent.mkdir(parents=True)
    sweep.write_text(json.dumps({"jobs": [{"id": name, "overrides": []}]}))
    (found,) = find_runs(sweep)
    assert found.status == "broken"
    assert "which is no id of a job" in found.problems[0]


@pytest.mark.parametrize("name", [".", ".lock", "log.txt", "metrics.jsonl"])
def test_a_sweep_empties_and_writes_nothing_behind_a_link(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlpkit.sweep.conducting.report", lambda *_: None)
    (job,) = checked_jobs(["seed=3"], sweeps=True)
    if name == ".":
        job.path.parent.mkdir()
        job.path.symlink_to(victim)
    else:
        (job.path / "checkpoints" / "step_1").mkdir(parents=True)
        (job.path / "result.json").write_text('{"status": "stopped", "pid": 1}')
        (job.path / name).symlink_to(victim / "file")
    assert main(["train", "-m", "seed=3"]) == 1  # though a record says stopped, and stays
    assert kept(victim)
    shown = capfd.readouterr()
    assert "a link" in shown.err
    assert "0 ok, 1 failed" in shown.out


def test_a_secret_of_the_environment_gets_into_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN_OF_MINE", SECRET)
    line = [o for o in tiny if not o.startswith(("data.path", "ffn."))]
    line += ["data.path=${oc.env:TOKEN_OF_MINE}"]
    assert main(["train", "-m", "ffn=naive,swiglu", *line]) == 1
    Path(SECRET).mkdir()
    (Path(SECRET) / "text.txt").write_text("the cat sat on the mat\n" * 400)
    assert main(["train", *line, "training.max_steps=1", "run_dir=single"]) == 0
    result = json.loads(Path("single/result.json").read_text())
    assert "data.path=${oc.env:TOKEN_OF_MINE}" in result["overrides"]
    written = [p for p in tmp_path.rglob("*") if p.is_file() and SECRET not in p.parts]
    assert len(written) > 10
    assert [p for p in written if SECRET.encode() in p.read_bytes()] == []


def test_what_is_hidden_is_what_the_configuration_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONG", "abcdef")
    monkeypatch.setenv("LONGER", "abcdefgh")
    monkeypatch.setenv("SHORT", "1")
    config = compose(["data=text", "data.path=${oc.env:LONG}/${oc.env:LONGER}/${oc.env:SHORT}"])
    content = {"error": "no abcdefgh, no abcdef", "list": ["abcdef", 1, None], "text": "1"}
    assert hide_environment(content, config) == {
        "error": "no ${oc.env:LONGER}, no ${oc.env:LONG}",
        "list": ["${oc.env:LONG}", 1, None],
        "text": "1",
    }


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def quick(examples: int) -> Any:
    """Settings of a fuzz of a second or two."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


def refusal(run: Path) -> str:
    """What is said of a configuration that is not taken; empty of one that is."""
    try:
        load_config(run)
    except (RunDirectoryError, ConfigError) as error:
        return str(error)
    return ""


@quick(60)
@given(st.sampled_from(FILES), st.binary(max_size=40), st.floats(0, 1, exclude_max=True))
def test_any_bytes_in_a_run_are_read_or_named(
    run: Path, trained: Path, name: str, new: bytes, where: float
) -> None:
    content = (trained / name).read_bytes() if (trained / name).exists() else b""
    place = int(where * len(content))
    (run / name).write_bytes(content[:place] + new + content[place + len(new) :])
    assert all("\n" not in problem for problem in read_run(run).problems)
    (run / name).write_bytes(content)


@quick(30)
@given(
    st.binary(max_size=12) | st.text(max_size=12).map(str.encode), st.floats(0, 1, exclude_max=True)
)
def test_any_bytes_in_a_saved_configuration_are_taken_or_refused(
    run: Path, trained: Path, new: bytes, where: float
) -> None:
    content = (trained / "config.yaml").read_bytes()
    place = int(where * len(content))
    (run / "config.yaml").write_bytes(content[:place] + new + content[place + len(new) :])
    said = refusal(run)
    assert not said or ("config.yaml" in said and "\n" not in said)


@quick(30)
@given(st.sampled_from(["ffn", "data", "model", "training", "seed", "lint", "ffns"]), ODD)
def test_any_value_in_a_saved_configuration_is_taken_or_refused(
    run: Path, trained: Path, key: str, value: Any
) -> None:
    content = yaml.safe_load((trained / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**content, key: value}))
    said = refusal(run)
    assert not said or ("config.yaml" in said and "\n" not in said)


@quick(60)
@given(st.sampled_from(["metrics", "overrides", "seed", "model", "pid", "status", "match"]), ODD)
def test_any_value_in_a_result_is_read_or_named(
    run: Path, trained: Path, key: str, value: Any
) -> None:
    result = json.loads((trained / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, key: value}))
    assert read_run(run).status in ("ok", "failed", "running", "lost", "stopped", "broken")

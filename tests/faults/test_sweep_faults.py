"""Sweeps in which jobs fail, exit, are killed or stopped, or run twice at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

from mlpkit.cli import main
from mlpkit.sweep.records import read_state
from mlpkit.sweep.running import take
from mlpkit.training import RunDirectoryError
from mlpkit.training.run_directory.lock import hold

PLUGIN = Path(__file__).with_name("sweep_faults.py")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # the report has tests of its own, and takes longer than these sweeps
    monkeypatch.setattr("mlpkit.sweep.conducting.report", lambda *_: None)
    return tmp_path


@pytest.fixture
def line(tiny: list[str]) -> list[str]:
    """A run of eight steps, at a checkpoint after every second one, for any FFN."""
    left_out = ("ffn.", "training.max_steps")
    kept = [o for o in tiny if not o.startswith(left_out)]
    return [*kept, "training.max_steps=8", "training.checkpoint_every=2"]


def records() -> dict[str, dict[str, Any]]:
    """The result records below multirun, by the FFN that was asked for, and the seed."""
    found = [json.loads(path.read_text()) for path in Path("multirun").glob("*/result.json")]
    return {" ".join(r["overrides"][:2]): r for r in found}


def written(name: str) -> dict[str, bytes]:
    """The files of that name in all jobs, by job."""
    return {path.parent.name: path.read_bytes() for path in Path("multirun").glob(f"*/{name}")}


def start(*arguments: str, plugin: Path | None = PLUGIN) -> subprocess.Popen[str]:
    """The program in a process of its own, without the report."""
    code = (
        "import sys; from mlpkit.sweep import conducting; conducting.report = lambda *_: None;"
        "from mlpkit.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    plugins = ["-p", str(plugin)] if plugin else []
    return subprocess.Popen(
        [sys.executable, "-c", code, *plugins, "train", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err


def test_jobs_that_raise_or_exit_end_alone_and_are_rerun_alone(
    here: Path, line: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["-m", "ffn=raises,exits,nans,naive", "seed=0", *line]
    assert main(["-p", str(PLUGIN), "train", *asked]) == 1
    shown = capfd.readouterr()
    assert "1 ok, 3 failed" in shown.out
    assert (
        "mlpkit: job 1 of 4 failed: RuntimeError: a fault in the plugin in two lines" in shown.err
    )
    assert "mlpkit: job 2 of 4 failed: sys.exit(3) was called" in shown.err
    assert "mlpkit: job 3 of 4 failed: at step" in shown.err
    found = records()
    assert {key: r["status"] for key, r in found.items()} == {
        "ffn=raises seed=0": "failed",
        "ffn=exits seed=0": "failed",
        "ffn=nans seed=0": "failed",
        "ffn=naive seed=0": "ok",
    }
    assert "a fault in the plugin" in found["ffn=raises seed=0"]["error"]
    assert any("a fault in the plugin" in text for text in found["ffn=raises seed=0"]["log_tail"])
    assert all(r.get("log_tail") for r in found.values() if r["status"] == "failed")
    before, logs = written("result.json"), written("log.txt")
    assert set(logs) == set(before)
    # again, in another order: only what failed runs, in an empty directory
    failed = next(
        path for path in Path("multirun").glob("*/") if b"failed" in before.get(path.name, b"")
    )
    (failed / "left-over.txt").write_text("of the first attempt")
    assert main(["-p", str(PLUGIN), "train", *reversed(line), "seed=0", asked[1], "-m"]) == 1
    after = written("result.json")
    done = [key for key in before if before[key] == after[key]]
    assert len(done) == 1
    assert json.loads(after[done[0]])["status"] == "ok"
    assert not (failed / "left-over.txt").exists()
    assert written("log.txt")[failed.name].count(b"step 0 ") == 1


def test_a_sweep_that_shall_not_go_on_says_how_much_is_left(
    here: Path, line: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["-m", "ffn=naive,raises,swiglu,geglu", "keep_going=false", *line]
    assert main(["-p", str(PLUGIN), "train", *asked]) == 1
    shown = capfd.readouterr()
    assert "the sweep was stopped: job 2 of 4 failed and keep_going is off; 3 of 4 jobs left" in (
        shown.err
    )
    assert "1 ok, 1 failed, 2 not run" in shown.out
    assert sorted(r["status"] for r in records().values()) == ["failed", "ok"]


def test_a_job_that_fails_before_its_first_step_has_a_record(here: Path, line: list[str]) -> None:
    wrong = [o for o in line if not o.startswith("data.path")]
    assert main(["train", "-m", "data.path=/nowhere,/nothing", "seed=0", *wrong]) == 1
    found = list(records().values())
    assert [r["status"] for r in found] == ["failed", "failed"]
    assert all("/no" in r["error"] for r in found)
    assert all("/no" in r["log_tail"][-1] for r in found)


def test_progress_tells_jobs_time_and_the_best(
    here: Path,
    line: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    composed, load = list[Any](), ConfigLoaderImpl.load_configuration
    monkeypatch.setattr(
        ConfigLoaderImpl,
        "load_configuration",
        lambda *given, **named: composed.append(named) or load(*given, **named),
    )
    assert main(["train", "-m", "ffn=naive,swiglu", "seed=0", *line]) == 0
    # each job twice, to be checked and to be run; and Hydra's own: the sweep, and its launch
    assert len(composed) == 2 * 2 + 2
    out = capfd.readouterr().out
    assert "── job 1 of 2: ffn=naive\n" in out
    scores = {key: r["metrics"]["val_bpb"] for key, r in records().items()}
    first, best = scores["ffn=naive seed=0"], min(scores, key=lambda key: scores[key])
    assert "── 1 of 2 jobs: 1 ok · 0:0" in out
    assert f"left · best val_bpb {first:.4f}: ffn=naive\n" in out
    assert f"best val_bpb {scores[best]:.4f}: {best.split()[0]}\n" in out.split("── 2 of 2")[1]
    assert sorted(path.name for path in Path("multirun/sweeps").glob("*/*")) == ["sweep.json"]
    # an earlier job counts as done and gives no time; rerun=true counts it out
    assert main(["train", "-m", "ffn=naive,swiglu,geglu", "seed=0", *line]) == 0
    out = capfd.readouterr().out
    assert "sweep of 3 jobs, 2 done before" in out
    before = written("result.json")
    assert main(["train", "-m", "ffn=naive", "seed=0", "rerun=true", *line]) == 0
    changed = [key for key, text in written("result.json").items() if text != before[key]]
    assert len(changed) == 1


def test_a_directory_that_another_process_holds_is_left_alone(here: Path) -> None:
    path = here / "multirun" / "job"
    path.mkdir(parents=True)
    (path / "result.json").write_text('{"status": "failed"}')
    lock = hold(path)
    try:
        assert read_state(path).status == "failed"
        with pytest.raises(RunDirectoryError, match="in use by process"):
            take(path, rerun=True)
        assert (path / "result.json").exists()
    finally:
        lock.release()
    assert take(path, rerun=False) == "fresh"
    assert [child.name for child in path.iterdir()] == [".lock"]


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(here: Path, line: list[str], tmp_path: Path) -> None:
    """Exactly: the job that was killed at step 4 ends with the weights of one that was not."""
    asked = ["ffn=naive,killed_once,swiglu", "seed=0", *line]
    Path("kill").touch()
    code, _, _ = ended(start("-m", *asked))
    assert code == -signal.SIGKILL
    killed = records()["ffn=killed_once seed=0"]
    assert killed["status"] == "running"
    assert "about to be killed" in "".join(t.decode() for t in written("log.txt").values())
    states = {path.name: read_state(path).status for path in Path("multirun").glob("[0-9a-f]*")}
    assert sorted(states.values()) == ["lost", "ok"]
    finished = written("model.safetensors")

    code, out, err = ended(start(*reversed(asked), "-m"))
    assert (code, err) == (0, "")
    assert out.count("done before") == 2  # in the heading, and at the job
    assert "3 ok, 0 failed" in out
    again = written("model.safetensors")
    assert len(again) == 3
    assert all(again[job] == finished[job] for job in finished)

    Path("whole").mkdir()
    os.chdir("whole")
    assert main(["-p", str(PLUGIN), "train", "-m", *asked]) == 0
    assert written("model.safetensors") == again
    steps = [
        json.loads(text)["step"]
        for text in written("metrics.jsonl")[
            next(job for job in again if job not in finished and states.get(job) == "lost")
        ].splitlines()
    ]
    assert steps == sorted(steps)


@pytest.mark.slow
def test_a_signal_stops_the_sweep_and_the_same_line_resumes_it(here: Path, line: list[str]) -> None:
    asked = ["-m", "ffn=slow_once,naive", "seed=0", *line]
    Path("slow").touch()
    process = start(*asked)
    wait_for(lambda: b'"step": 1' in b"".join(written("metrics.jsonl").values()))
    process.send_signal(signal.SIGTERM)
    code, out, err = ended(process)
    assert code == 75, err
    assert "the sweep was stopped" in err
    assert "2 of 2 jobs left" in err
    assert "1 stopped, 1 not run" in out
    assert [r["status"] for r in records().values()] == ["stopped"]
    Path("slow").unlink()
    code, out, err = ended(start(*asked))
    assert (code, err) == (0, "")
    assert "2 ok, 0 failed" in out


@pytest.mark.slow
def test_two_equal_sweeps_at_once_share_the_work(here: Path, line: list[str]) -> None:
    asked = ["-m", "ffn=slow_once", "seed=0,1,2", *line]
    Path("slow").touch()
    processes = [start(*asked) for _ in range(2)]
    results = [ended(process) for process in processes]
    outs = "".join(out for _, out, _ in results)
    assert [code for code, _, _ in results] == [0, 0], results
    assert outs.count("3 ok, 0 failed") == 2
    assert "failed:" not in outs + "".join(err for _, _, err in results)
    assert outs.count("done in") == 3  # each job was trained once
    assert "running elsewhere (process " in outs
    assert len(written("result.json")) == 3


def wait_for(condition: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


class Optimizer(Sweeper):
    """Stands for an optimizer: a sweeper of its own kind, which looks at what jobs return."""

    found: ClassVar[list[Any]] = []

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        """Takes what a sweeper is given."""
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Tries two seeds, one after the other, and keeps their values."""
        for number in (0, 1):
            (job,) = self.launcher.launch([[*arguments, f"seed={number}"]], number)
            self.found.append(job.return_value)


def test_an_optimizer_gets_the_score_and_the_error(
    here: Path, line: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    Plugins.instance().class_name_to_class["hydra_plugins.test.Optimizer"] = Optimizer
    node = {"_target_": "hydra_plugins.test.Optimizer"}
    ConfigStore.instance().store(group="hydra/sweeper", name="test_optimizer", node=node)
    asked = ["train", "-m", "hydra/sweeper=test_optimizer", *line]
    assert main([*asked, "ffn=naive"]) == 0
    found = [json.loads(path.read_text()) for path in Path("multirun").glob("*/result.json")]
    found.sort(key=lambda result: result["seed"])
    assert Optimizer.found == [result["metrics"]["val_bpb"] for result in found]
    assert len(set(Optimizer.found)) == 2
    assert not Path("multirun/sweeps").exists()
    capfd.readouterr()
    assert main(["-p", str(PLUGIN), *asked, "ffn=raises"]) == 1
    assert "a fault in the plugin" in capfd.readouterr().err

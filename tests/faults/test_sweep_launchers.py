"""Sweeps with a process for each job: joblib, submitit_local, and Slurm by a stub."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hydra import compose as hydra_compose

from mlpkit.cli.train import install_launchers
from mlpkit.compose import install, own_hydra
from mlpkit.sweep.launchers import saving_first

PLUGIN = Path(__file__).with_name("sweep_faults.py")


@pytest.fixture
def line(tiny: list[str]) -> list[str]:
    return [*(o for o in tiny if not o.startswith("ffn.")), "training.max_steps=8"]


def sweep(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlpkit", "-p", str(PLUGIN), "train", "-m", *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def statuses(folder: Path) -> dict[str, str]:
    found = [json.loads(path.read_text()) for path in folder.glob("multirun/*/result.json")]
    return {result["overrides"][0].removeprefix("ffn="): result["status"] for result in found}


def launcher(*overrides: str) -> dict[str, object]:
    """The launcher's options as they are composed."""
    install()
    install_launchers()
    with own_hydra():
        config = hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
    return dict(config.hydra.launcher)


def test_slurm_is_composed_with_its_parameters() -> None:
    options = launcher(
        "hydra/launcher=submitit_slurm",
        "hydra.launcher.partition=gpu",
        "hydra.launcher.gpus_per_node=2",
        "hydra.launcher.array_parallelism=4",
        "+hydra.launcher.additional_parameters={mail-type: END}",
    )
    assert (options["partition"], options["gpus_per_node"]) == ("gpu", 2)
    assert options["array_parallelism"] == 4
    assert options["additional_parameters"] == {"mail-type": "END"}
    # time enough, and a queue again with time to save before
    assert (options["timeout_min"], options["max_num_timeout"]) == (1440, 3)
    assert options["signal_delay_s"] == 120


def test_local_jobs_have_time_and_run_one_after_the_other() -> None:
    options = launcher("hydra/launcher=submitit_local")
    assert options["n_jobs"] == 1
    assert options["timeout_min"] == 100_000
    assert options["setup"] == ["trap '' INT"]


@pytest.mark.slow
def test_submitit_local_survives_all_four_faults(tmp_path: Path, line: list[str]) -> None:
    asked = ["ffn=raises,killed,exits,naive,nans,swiglu", "hydra/launcher=submitit_local", *line]
    ended = sweep(*asked, cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert "2 ok, 3 failed, 1 lost" in ended.stdout
    expected = {"naive": "ok", "swiglu": "ok", "killed": "running"}
    expected |= dict.fromkeys(("raises", "exits", "nans"), "failed")
    assert statuses(tmp_path) == expected
    for name in ("raises", "exits", "nans"):
        assert f"mlpkit: failed: ffn={name}: " in ended.stderr
    (lost,) = (
        json.loads(path.read_text())
        for path in tmp_path.glob("multirun/*/result.json")
        if b"killed" in path.read_bytes()
    )
    assert "killed, out of memory" in lost["error"]
    assert "about to be killed" in lost["log_tail"][-1]
    (report,) = tmp_path.glob("multirun/sweeps/*/report.html")
    text = report.read_text()
    for name in ("raises", "killed", "exits", "nans"):
        assert name in text


@pytest.mark.slow
def test_a_failure_that_ends_the_sweep_stops_what_runs_beside_it(
    tmp_path: Path, line: list[str]
) -> None:
    (tmp_path / "slow").touch()
    ended = sweep(
        "ffn=slow_once,raises,naive",
        *("keep_going=false", "hydra/launcher=submitit_local", "hydra.launcher.n_jobs=2"),
        *(*line, "training.max_steps=500", "training.warmup_steps=2"),
        cwd=tmp_path,
    )
    assert ended.returncode == 1, ended.stderr
    assert statuses(tmp_path) == {"slow_once": "stopped", "raises": "failed"}
    assert "0 ok, 1 failed, 1 stopped, 1 not run" in ended.stdout
    assert "keep_going is off; 3 of 3 jobs left" in ended.stderr


@pytest.mark.slow
def test_joblib_keeps_going_unless_a_worker_is_killed(tmp_path: Path, line: list[str]) -> None:
    options = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", *line]
    ended = sweep("ffn=raises,exits,naive,nans,swiglu", *options, cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert "2 ok, 3 failed" in ended.stdout
    assert "mlpkit: failed: ffn=exits: " in ended.stderr
    # joblib gives up as a whole, which is said; what it did not come to is not called failed
    ended = sweep("ffn=killed,geglu,reglu", *options, cwd=tmp_path)
    assert ended.returncode == 1
    assert "the launcher ended early: TerminatedWorkerError" in ended.stderr
    assert "lost: the process ended without a word" in ended.stdout
    assert "the same line again, in any order, runs what is missing" in ended.stdout
    assert "failed: " not in ended.stdout.split("in all jobs")[1].split("0 failed")[0]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads Linux's /proc")
def test_workers_of_joblib_finish_their_job_and_end_when_the_sweep_is_killed(
    tmp_path: Path, line: list[str]
) -> None:
    asked = ["ffn=naive,swiglu,geglu,reglu,bilinear,gated", "seed=0,1", *line]
    options = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "training.max_steps=30"]
    sweeping = subprocess.Popen(
        [sys.executable, "-m", "mlpkit", "train", "-m", *asked, *options],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    deadline = time.monotonic() + 200
    while not list(tmp_path.glob("multirun/*/metrics.jsonl")):
        assert sweeping.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    sweeping.kill()
    sweeping.wait()
    while in_session(sweeping.pid):
        assert time.monotonic() < deadline  # joblib's own workers wait for ever
        time.sleep(0.5)
    records = [json.loads(p.read_text()) for p in tmp_path.glob("multirun/*/result.json")]
    assert 1 <= len(records) <= 4  # and take up no other
    assert {record["status"] for record in records} == {"ok"}


def in_session(session: int) -> list[int]:
    """The processes of a session that live, from Linux's /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, _, _, sid = path.read_text().rpartition(") ")[2].split()[:4]
            found += [int(path.parent.name)] if int(sid) == session and state != "Z" else []
    return found


def test_a_warning_of_slurm_is_passed_on_when_training_has_saved() -> None:
    seen: list[str] = []
    before = {n: signal.getsignal(n) for n in (signal.SIGUSR1, signal.SIGUSR2)}
    signal.signal(signal.SIGUSR2, lambda *_: seen.append("queued again"))
    try:
        with saving_first():
            signal.raise_signal(signal.SIGUSR2)  # nothing to save before training
            assert seen == ["queued again"]
            signal.signal(signal.SIGUSR1, lambda *_: seen.append("saving"))
            signal.raise_signal(signal.SIGUSR2)
            assert seen == ["queued again", "saving"]
        assert seen == ["queued again", "saving", "queued again"]
        with saving_first():
            pass
        assert len(seen) == 3
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# sbatch that runs the script in the background, srun that runs its command, sacct that says what
# became of it: as much of Slurm as submitit asks for.
STUBS = {
    "sbatch": """#!/usr/bin/env python3
import os, re, subprocess, sys
script = sys.argv[-1]
text = open(script).read()
number = str(1000 + len(os.listdir(os.environ["STUB_JOBS"])))
folder = os.path.join(os.environ["STUB_JOBS"], number)
os.makedirs(folder)
open(os.path.join(folder, "script"), "w").write(text)
env = {**os.environ, "SLURM_JOB_ID": number, "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1",
       "SLURM_JOB_NODELIST": "here", "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
# a copy: submitit moves the script into the job's folder
command = f"bash {folder}/script; touch {folder}/done"
with open(os.path.join(folder, "out"), "w") as out:
    subprocess.Popen(command, shell=True, env=env, stdout=out, stderr=out)
print("Submitted batch job", number)
""",
    "srun": """#!/usr/bin/env python3
import os, sys
words = sys.argv[1:]
while words[0].startswith("-"):
    words = words[2 if words[0] == "--output" else 1:]
os.execvp(words[0], words)
""",
    "sacct": """#!/usr/bin/env python3
import os
print("JobID|State|NodeList")
for number in sorted(os.listdir(os.environ["STUB_JOBS"])):
    done = os.path.exists(os.path.join(os.environ["STUB_JOBS"], number, "done"))
    print(f"{number}|{'COMPLETED' if done else 'RUNNING'}|here")
""",
    "scancel": "#!/bin/sh\n",
}


@pytest.mark.slow
def test_slurm_jobs_are_submitted_one_by_one_with_their_parameters(
    tmp_path: Path, line: list[str]
) -> None:
    stubs, jobs = tmp_path / "bin", tmp_path / "jobs"
    stubs.mkdir()
    jobs.mkdir()
    for name, text in STUBS.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    ended = sweep(
        "ffn=naive,raises",
        "hydra/launcher=submitit_slurm",
        "hydra.launcher.partition=gpu",
        "hydra.launcher.cpus_per_task=2",
        "hydra.launcher.array_parallelism=1",
        *line,
        cwd=tmp_path,
        PATH=f"{stubs}:{os.environ['PATH']}",
        STUB_JOBS=str(jobs),
    )
    assert ended.returncode == 1, ended.stderr
    assert statuses(tmp_path) == {"naive": "ok", "raises": "failed"}, ended.stderr
    scripts = [path.read_text() for path in jobs.glob("*/script")]
    assert len(scripts) == 2
    for script in scripts:
        assert "#SBATCH --partition=gpu" in script
        assert "#SBATCH --cpus-per-task=2" in script
        assert "#SBATCH --time=1440" in script
        assert "#SBATCH --signal=USR2@120" in script

"""The main job as a newcomer runs it: an empty cache, no network, the shipped configurations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# what a closed network does to whoever tries
OFFLINE = """
import socket
def refuse(*args, **kwargs):
    raise OSError("the network is off in this test")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
"""


@pytest.fixture
def offline(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(OFFLINE)
    return {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "site"),
        "MLPKIT_CACHE": str(tmp_path / "cache"),
    }


def mlpkit(*arguments: str, cwd: Path, env: dict[str, str]) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "mlpkit", *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.slow
def test_the_quick_run_learns_and_repeats_bit_for_bit(
    tmp_path: Path, offline: dict[str, str]
) -> None:
    for name in ("one", "two"):
        shown = mlpkit("train", "training=quick", f"run_dir={name}", cwd=tmp_path, env=offline)
        assert "sample:" in shown
    metrics = json.loads((tmp_path / "one" / "result.json").read_text())["metrics"]
    assert metrics["val_bpb"] < 2.6
    assert losses(tmp_path / "one") == losses(tmp_path / "two")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_the_default_run_reaches_its_mark_and_can_be_continued(
    tmp_path: Path, offline: dict[str, str]
) -> None:
    """The default run on half batches: 1.64 bits per byte, in half the time."""
    shown = mlpkit("train", "training.batch_size=16", "run_dir=run", cwd=tmp_path, env=offline)
    assert "swiglu" in shown
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert metrics["val_bpb"] < 1.9
    arguments = ("generate", "run", "--prompt", "def main(", "--tokens", "100")
    first = mlpkit(*arguments, cwd=tmp_path, env=offline)
    assert first == mlpkit(*arguments, cwd=tmp_path, env=offline)
    assert first.startswith("def main(")
    assert len(first.encode()) > 60


@pytest.mark.slow
def test_the_default_mixture_keeps_every_expert_alive(
    tmp_path: Path, offline: dict[str, str]
) -> None:
    """Top-2 of 8 at the default number of steps, on smaller batches than the default's."""
    mlpkit(
        "train",
        "ffn=moe",
        "training.batch_size=8",
        "run_dir=run",
        cwd=tmp_path,
        # products this small are faster on one thread: 0.11 against 0.18 s, forward and backward
        env={**offline, "OMP_NUM_THREADS": "1"},
    )
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert metrics["dead_experts"] == 0
    assert metrics["max_violation"] < 1
    assert metrics["val_bpb"] < 2.3

"""A process that raises, dies, leaves or hangs ends the others, and the first error is shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launching import clean_environment, free_port, launch

MEMBER = Path(__file__).parent / "member.py"
IMPORTS = 60  # seconds that starting may take on a busy machine


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    options = ["--nproc-per-node", "2", "--master-port", str(free_port())]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, *arguments],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.slow
def test_groups_are_made_and_closed_again_and_again() -> None:
    ended = torchrun(str(MEMBER), "again")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("done 2") == 2


@pytest.mark.slow
def test_torchrun_shows_the_first_error() -> None:
    ended = torchrun(str(MEMBER), "raise")
    assert ended.returncode == 1
    root = ended.stderr[ended.stderr.index("Root Cause") :]
    assert "ValueError: the text ran out on rank 1" in root
    assert "rank      : 1" in root


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raise", "die", "leave", "hang"])
def test_the_others_end_within_the_timeout(how: str) -> None:
    first, second = launch(MEMBER, [how], world=2, limit=IMPORTS + 15)
    assert first.code not in (0, None), first
    assert "done" not in first.out
    assert "gloo" in first.err or "Connection" in first.err, first.err
    if how != "hang":
        assert first.seconds - second.seconds < 8  # the timeout is 5 seconds


@pytest.mark.soak
def test_two_hundred_launches_end_in_order() -> None:
    for number in range(200):
        ended = launch(MEMBER, ["well"], world=2, limit=IMPORTS)
        assert [process.code for process in ended] == [0, 0], (number, ended)

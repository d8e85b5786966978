"""Keeping freed memory: blocks that are used again cost no page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from mlpkit.cli import allocator

CODE = """
import resource, sys
from mlpkit.cli.allocator import keep_freed_memory
assert sys.argv[1] == "no" or keep_freed_memory()
import torch
def use():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(1 << 24) for _ in range(2)]  # 64 MB each, above glibc's own ceiling
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print([use() for _ in range(12)][-1])  # the first ones still find their places
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another libc")
def test_blocks_used_again_cost_no_page_faults():
    faults = {}
    for choice in ("no", "yes"):
        command = [sys.executable, "-c", CODE, choice]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        faults[choice] = int(ended.stdout)
    assert faults["no"] > 10_000
    assert faults["yes"] < 1_000


def test_elsewhere_nothing_is_done(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not allocator.keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: object())  # a libc without mallopt
    assert not allocator.keep_freed_memory()

"""The page on sweeps: its blocks run, and its table of budgets is the configuration's."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from docs_reader import SERVER, Reader, page, table

from mlpkit.configs.run import RunConfig

PAGE = "docs/sweeps.md"


@pytest.mark.slow
def test_every_block_of_the_page_runs(tmp_path: Path) -> None:
    command, pipe = [sys.executable, "-c", SERVER], subprocess.PIPE
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as server:
        Reader(tmp_path, server).follow(PAGE)
        assert server.stdin is not None
        server.stdin.close()
    assert len(list(tmp_path.glob("multirun/*/result.json"))) == 9
    assert len(list(tmp_path.glob("multirun/sweeps/*/report.html"))) == 1


def test_the_table_has_every_budget() -> None:
    (field,) = (field for field in dataclasses.fields(RunConfig) if field.name == "match")
    found = [cell.split("`")[0] for cell in table(PAGE, "At the same budget")]
    assert found == list(field.metadata["choices"])


def test_every_option_of_a_sweep_is_named() -> None:
    for key in ("match", "match_to", "keep_going", "rerun", "dry_run"):
        assert f"`{key}" in page(PAGE)

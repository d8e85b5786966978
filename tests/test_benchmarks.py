"""The benchmarks run, at tiny sizes; their figures are for people, not for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "ffn.py"


def test_every_contender_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--json", str(out)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(out.read_text())
    assert {(row["dtype"], row["backward"]) for row in rows} == {
        (dtype, backward) for dtype in ("float32", "bfloat16") for backward in (False, True)
    }
    for row in rows:
        assert {"transformers LlamaMLP", "mlpkit swiglu", "mlpkit moe auto"} <= row["ratio"].keys()
        assert all(value > 0 for value in row["milliseconds"].values())
        assert row["ratio"]["transformers LlamaMLP"] == 1

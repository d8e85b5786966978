"""Tables and JSON of the program: whole rows for a pipe, and text that stays text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlpkit.cli.printing import print_json, print_table

SENTENCE = "a sentence that is longer than eighty columns, " * 3


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_table(("name", "what it is"), [("swiglu", SENTENCE)], whole=("name",))
    return capsys.readouterr().out.splitlines()


def test_a_row_is_one_line_for_a_pipe_unless_columns_says_otherwise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert [line.split()[0] for line in printed(capsys)] == ["name", "swiglu"]
    monkeypatch.setenv("COLUMNS", "60")
    lines = printed(capsys)
    assert len(lines) > 3
    assert max(map(len, lines)) <= 60
    assert sum("swiglu" in line for line in lines) == 1


def test_json_keeps_letters_and_tells_the_rest_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"formula": "x · σ(x)", "path": Path("a/b")})
    shown = capsys.readouterr().out
    assert "σ" in shown
    assert json.loads(shown) == {"formula": "x · σ(x)", "path": "a/b"}

"""Tables: exact where they are read by programs, rounded and escaped where they are printed."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from synthetic import FAILING, MOE, NAIVE, SWIGLU, Look, write_sweep

from mlpkit.report.comparison import compare
from mlpkit.report.runs import find_runs
from mlpkit.report.tables import (
    decimals,
    escape_latex,
    runs_to_csv,
    tables,
    to_csv,
    to_json,
    to_latex,
    to_markdown,
)

EQUAL = tuple(replace(look, parameters=820480) for look in (SWIGLU, NAIVE, MOE, FAILING))
HOSTILE = "<b>&100%_{x}$~^\\#|\"'*`"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return compare(find_runs(write_sweep(tmp_path_factory.mktemp("sweep"), EQUAL)))


def test_the_csv_has_every_number_in_full(comparison):
    rows = {row["variant"]: row for row in csv.DictReader(io.StringIO(to_csv(comparison)))}
    assert list(rows) == [row.variant.name for row in comparison.rows]
    for row in comparison.rows:
        written = rows[row.variant.name]
        if row.val_bpb:
            assert float(written["val_bpb"]) == row.val_bpb.mean
            assert float(written["val_bpb_sd"]) == row.val_bpb.sd
        if row.difference:
            assert float(written["difference_low"]) == row.difference.low
            assert float(written["difference_p_holm"]) == row.difference.p_holm
        assert written["verdict"] == row.verdict
        assert int(written["n_ok"]) == row.n_ok
    assert rows["moe · learning_rate=0.3"]["val_bpb"] == ""
    assert rows["moe · learning_rate=0.3"]["reasons"] == "no_score"
    assert float(rows["naive"]["tokens_per_second"]) == comparison.row("naive").tokens_per_second


def test_the_runs_csv_has_a_row_per_run(comparison):
    rows = list(csv.DictReader(io.StringIO(runs_to_csv(comparison))))
    assert len(rows) == 12
    for row, run in zip(rows, comparison.runs, strict=True):
        assert (row["run"], row["status"], row["seed"]) == (run.id, run.status, str(run.seed))
        assert row["val_bpb"] == str(run.metrics.get("val_bpb", ""))


def test_json_round_trips(comparison):
    content = json.loads(to_json(comparison))
    assert [row["variant"] for row in content["rows"]] == [r.variant.name for r in comparison.rows]
    for written, row in zip(content["rows"], comparison.rows, strict=True):
        if row.difference:
            assert written["difference"]["mean"] == row.difference.mean
            assert written["difference"]["high"] == row.difference.high
        assert written["parameters"] == row.parameters
        assert written["runs"] == {run.id: run.status for run in row.variant.runs}
        assert [said["key"] for said in written["notes"]] == [said.key for said in row.notes]
    assert content["groups"][0]["noise"]["sd"] == comparison.groups[0].noise.sd
    assert [said["key"] for said in content["verdict"]] == [s.key for s in comparison.verdict]
    assert json.loads(json.dumps(content)) == content


def test_json_has_no_nan(tmp_path):
    look = replace(NAIVE, extra={"match": {"kind": "params", "residual": float("nan")}})
    text = to_json(compare(find_runs(write_sweep(tmp_path, (SWIGLU, look)))))
    json.loads(text, parse_constant=lambda name: pytest.fail(name))


def unescaped(text: str) -> str:
    return re.sub(r"\\[%&_#${}]", "", text)


def latex_rows(text: str) -> list[list[str]]:
    """The cells of a tabular's rows; the structure is checked on the way."""
    lines = text.splitlines()
    assert lines[0].startswith("%")
    (columns,) = re.fullmatch(r"\\begin\{tabular\}\{(l[lr]+)\}", lines[1]).groups()
    assert (lines[2], lines[-2:]) == (r"\toprule", [r"\bottomrule", r"\end{tabular}"])
    rows = [line for line in lines[3:-2] if line != r"\midrule"]
    for row in rows:
        assert row.endswith(r" \\")
        assert row.isascii(), row  # what pdflatex knows without further packages
        plain = unescaped(row.removesuffix(r" \\"))
        assert plain.count("&") == len(columns) - 1
        assert plain.count("{") == plain.count("}")
        assert plain.count("$") % 2 == 0
        assert not set("%#~^_") & set(plain)
    return [re.split(r"(?<!\\)&", row.removesuffix(r" \\")) for row in rows]


def test_latex_has_the_structure_of_booktabs(comparison):
    text = to_latex(comparison)
    head, *body = latex_rows(text)
    assert len(body) == len(comparison.rows)
    bold = [cells[0].strip() for cells in body if r"\textbf" in cells[0]]
    assert bold == [r"{}\textbf{moe}"]  # better beyond the interval, and it alone
    noise = comparison.groups[0].noise.sd
    mean = comparison.row("moe").metric.mean
    assert f"{mean:.{decimals(noise)}f}" in body[0][1]
    assert body[0][2].strip().startswith("$-$0.0")
    assert "bits/byte" in head[1]


def test_hostile_names_are_escaped(tmp_path):
    looks = (SWIGLU, Look(overrides=(f"ffn=[{HOSTILE}]",)))
    found = compare(find_runs(write_sweep(tmp_path, looks)))
    name = next(r.variant.name for r in found.rows if r.variant.name != "swiglu")
    written = tables(found)
    rows = latex_rows(written["comparison.tex"])
    assert any(escape_latex(name) in cells[0] for cells in rows)
    assert all(cells[0].startswith("{}") for cells in rows)  # "[" would be an option of "\\"
    for line in written["comparison.md"].splitlines():
        assert len(re.findall(r"(?<!\\)\|", line)) == 10
        assert "<b>" not in line
    names = [row["variant"] for row in csv.DictReader(io.StringIO(written["comparison.csv"]))]
    assert name in names
    assert any(row["variant"] == name for row in json.loads(written["comparison.json"])["rows"])


def test_escaping_by_hand():
    assert escape_latex("a_b & 5% {x} #1 $2") == r"a\_b \& 5\% \{x\} \#1 \$2"
    assert escape_latex("\\~^") == r"\textbackslash{}\textasciitilde{}\textasciicircum{}"
    assert escape_latex("moe · k=2\n ±1") == r"moe $\cdot$ k=2 $\pm$1"


def test_markdown_has_a_row_per_variant(comparison):
    lines = to_markdown(comparison).splitlines()
    assert len(lines) == 2 + len(comparison.rows)
    assert lines[2].startswith("| **moe** | **1.4")
    assert lines[1].count("|") == lines[0].count("|") == 10
    assert "| 0/3 |" in lines[-1]
    assert lines[-1].count("—") == 2


@pytest.mark.parametrize(
    ("uncertainty", "places"),
    [(0.0027, 4), (0.027, 3), (0.00099, 5), (0.1, 2), (3.0, 1), (140.0, 1), (1e-9, 6)],
)
def test_two_digits_of_the_uncertainty_are_written(uncertainty, places):
    assert decimals(uncertainty) == places


def test_without_uncertainty_there_are_four_decimals():
    assert decimals(None) == decimals(0.0) == decimals(float("nan")) == 4

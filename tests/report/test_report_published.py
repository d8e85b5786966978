"""What papers report beside what was measured: for runs of an experiment that says it alone."""

import json
import re

import pytest
import yaml
from synthetic import NAIVE, SWIGLU, write_sweep

from mlpkit.report import find_runs, write_report
from mlpkit.report.comparison import compare
from mlpkit.report.published import published

SOURCE = {
    "source": "Someone 2020, table 1",
    "measure": "perplexity <of something>",
    "values": {"swiglu": 1.5, "naive": 2.0, "an FFN that was not run": 3.0},
    "note": "",
}


@pytest.fixture
def sweep(tmp_path):
    path = write_sweep(tmp_path, looks=(SWIGLU, NAIVE))
    for file in path.parents[2].glob("*/config.yaml"):
        config = yaml.safe_load(file.read_text())
        config["experiment"] = {"name": "x", "published": [SOURCE]}
        file.write_text(yaml.safe_dump(config))
    return path


def test_what_was_published_stands_beside_what_was_measured(sweep):
    comparison = compare(find_runs([sweep]), baseline="swiglu")
    (table,) = published(comparison)
    assert (table.source, table.measure) == (SOURCE["source"], SOURCE["measure"])
    lines = {line.variant: line for line in table.lines}
    assert lines.keys() == {"swiglu", "naive"}  # what was not run has no line
    naive, swiglu = lines["naive"], lines["swiglu"]
    assert (naive.value, naive.difference) == (2.0, 0.5)
    assert (swiglu.difference, swiglu.measured_difference) == (0.0, None)
    scores = {}
    for file in sweep.parents[2].glob("*/result.json"):
        result = json.loads(file.read_text())
        scores.setdefault(result["ffn"], []).append(result["metrics"]["val_bpb"])
    means = {ffn: sum(found) / len(found) for ffn, found in scores.items()}
    assert naive.measured == pytest.approx(means["naive"])
    assert naive.measured_difference == pytest.approx(means["naive"] - means["swiglu"])


def test_the_page_has_a_table_for_each_source(sweep, tmp_path):
    page = write_report([sweep], out=tmp_path / "out").read_text()
    section = page.partition('<section id="published">')[2].partition("</section>")[0]
    assert "perplexity &lt;of something&gt;" in section
    assert re.findall(r'data-column="published" data-v="([^"]*)"', section) in (
        ["1.5", "2.0"],
        ["2.0", "1.5"],
    )


def test_a_sweep_without_an_experiment_has_none(tmp_path):
    sweep = write_sweep(tmp_path, looks=(SWIGLU, NAIVE))
    assert published(compare(find_runs([sweep]))) == []
    page = write_report([sweep], out=tmp_path / "out").read_text()
    assert 'id="published"' not in page

"""Every page is followed, block by block, in an empty folder, as its reader does."""

import json
import re

import pytest
from docs_reader import ORIGINALS, Reader, fences, prose

# Their blocks train several models, or import transformers.
LONG = ("surgery", "sweeps", "experts", "experiments", "weights", "index")
SLOW = {f"docs/{name}.md" for name in LONG}
SLOW |= {name for name in ORIGINALS if name.startswith("docs/tutorial/")}
FOLLOWED = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in ORIGINALS
    if name != "docs/plugins.md" and fences(name, "bash", "console", "python")
]


def results(folder):
    """The records of all runs below a folder."""
    return [json.loads(path.read_text()) for path in folder.rglob("result.json")]


def check_data(folder):
    assert {result["data"]["name"] for result in results(folder)} == {"jsonl", "pystdlib", "text"}
    assert [r["init_from"]["path"] for r in results(folder) if r["init_from"]] == ["base"]


def check_surgery(folder):
    made = [json.loads((folder / n / "result.json").read_text()) for n in ("copies", "parts")]
    assert [result["upcycled"]["receipt"]["preserved"] for result in made] == [True, True]


def check_sweeps(folder):
    assert len(list(folder.glob("multirun/*/result.json"))) == 9
    assert len(list(folder.glob("multirun/sweeps/*/report.html"))) == 1


def check_figures(folder):
    assert {"leaky.png", "moe.pdf"} <= {path.name for path in folder.iterdir()}


CHECKS = {
    "docs/data.md": check_data,
    "docs/surgery.md": check_surgery,
    "docs/sweeps.md": check_sweeps,
    "docs/figures.md": check_figures,
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_every_block_of_a_page_runs(name, tmp_path, server):
    Reader(tmp_path, server).follow(name)
    assert {result["status"] for result in results(tmp_path)} <= {"ok"}
    CHECKS.get(name, lambda folder: None)(tmp_path)
    shown = re.findall(r"!\[[^]]*\]\((?:\.\./)?images/(\S+)\)", prose(name))
    assert set(shown) <= {path.name for path in tmp_path.iterdir()}  # its own commands draw them


def test_every_check_is_of_a_page_that_is_followed():
    followed = {name for param in FOLLOWED for name in param.values}
    assert {*SLOW, *CHECKS} <= followed


def test_every_block_of_the_plugin_page_runs(tmp_path, server):
    site = tmp_path / "site"
    reader = Reader(tmp_path, server, path=[site])
    reader.install("docs/plugins.md", "mlpkit_foo", site)
    reader.follow("docs/plugins.md")
    assert "mlpkit-foo 0.1.0" in reader.line("mlpkit list data")
    labels = {result["ffn"] for result in results(tmp_path)}
    assert labels == {"swiglu", "normed", "square", "foo_ffn"}
    assert {result["data"]["name"] for result in results(tmp_path)} == {"pystdlib", "sums"}

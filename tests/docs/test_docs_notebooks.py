"""The notebook: it is stored without outputs, and it runs from its first to its last cell."""

import re

import pytest
from docs_reader import ROOT, page

nbformat = pytest.importorskip("nbformat")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TINY = [
    *("model=nano", "model.hidden_size=16", "model.num_attention_heads=1", "training=lesson"),
    *("training.max_steps=4", "training.batch_size=2", "training.sequence_length=32"),
    *("training.eval_tokens=500", "training.sample_tokens=0", "data.val_fraction=0.0005"),
]
SETUP = 'setup = ["model=nano", "training=lesson"]'


@pytest.fixture(params=NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def printed(notebook):
    """What the cells wrote to standard output."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def shown(notebook, kind):
    """The last values of cells in one form of theirs, such as image/svg+xml."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output.data[kind] for output in outputs if kind in output.get("data", ())]


def test_there_is_the_notebook_that_the_home_page_names():
    assert f"(../notebooks/{NOTEBOOKS[0].name})" in page("docs/index.md")


def test_a_notebook_is_valid_and_stored_without_outputs(notebook):
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


def test_links_of_a_notebook_resolve(notebook):
    text = "".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links
    assert all((ROOT / "notebooks" / link).is_file() for link in links)


def test_the_widths_that_the_notebook_tells_are_those_of_equal_parameters(notebook):
    text = "".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    two, three = (
        int(n) for n in re.search(r"parameters of SwiGLU: (\d+) .*and (\d+)", text).groups()
    )
    assert 2 * 64 * two == 3 * 64 * three
    assert three == 192  # 8/3 · 64, up to a multiple of 64


@pytest.mark.slow
def test_a_notebook_runs_from_its_first_to_its_last_cell(notebook, tmp_path):
    from nbclient import NotebookClient

    (setup,) = (cell for cell in notebook.cells if SETUP in cell.source)
    setup.source = setup.source.replace(SETUP, f"setup = {TINY}")
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    out = printed(notebook)
    assert "0 failed" in out  # in the verdict's sentence on runs
    assert not re.search(r"^(failed|expected): ", out, re.MULTILINE)
    assert len(re.findall(r"^ok: ", out, re.MULTILINE)) >= 15
    assert [int(width) for width in re.findall(r"width (\d+)", out)] == [64, 96] * 3
    assert re.search(r"^swiglu +\d\.\d{4} bits per byte: baseline$", out, re.MULTILINE)
    assert "difference" in out
    assert any("<polyline" in picture for picture in shown(notebook, "image/svg+xml"))
    assert "self_gated" in shown(notebook, "text/html")[0]
    assert (tmp_path / "report" / "report.html").is_file()

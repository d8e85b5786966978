"""Parquet files and Hugging Face datasets: columns of texts, and what to do where there is none."""

import os
import subprocess
import sys

import pytest

from mlpkit.data import DataError, HubDataset, Parquet, columns

ROWS = ["one", None, "", "三 🙂", "five"]
FOUND = ["one", "三 🙂", "five"]


@pytest.fixture
def table(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def write(name="a.parquet", **columns):
        path = tmp_path / name
        parquet.write_table(arrow.table(columns or {"id": [*range(5)], "text": ROWS}), path)
        return path

    return write


def texts(source):
    return {name: text.decode() for name, text in source.documents()}


def test_each_row_with_text_is_a_document_named_by_file_and_row(table, tmp_path):
    table()
    table("b.parquet", text=["b"])
    (tmp_path / "readme.md").write_text("not looked at")
    source = Parquet(path=str(tmp_path))
    named = ["a.parquet:0", "a.parquet:3", "a.parquet:4", "b.parquet:0"]
    assert texts(source) == dict(zip(named, [*FOUND, "b"], strict=True))
    assert texts(source) == texts(source)


def test_rows_are_read_a_few_at_a_time(table, monkeypatch):
    monkeypatch.setattr(columns, "ROWS_AT_A_TIME", 2)
    assert list(texts(Parquet(path=str(table()))).values()) == FOUND


def test_the_column_is_an_option_and_a_missing_one_is_told(table):
    path = str(table("c.parquet", body=["x"], size=[1]))
    assert texts(Parquet(path=path, column="body")) == {"c.parquet:0": "x"}
    with pytest.raises(
        DataError, match=r"c.parquet has no column 'text' \(its columns: body, size\)"
    ):
        texts(Parquet(path=path))
    with pytest.raises(DataError, match=r"row 0 is a int, not text; .*data.column=NAME"):
        texts(Parquet(path=path, column="size"))


def test_the_fingerprint_changes_with_a_row_and_with_the_column(table):
    path = str(table())
    first = Parquet(path=path).fingerprint()
    assert first == Parquet(path=path).fingerprint()
    assert first != Parquet(path=path, column="id").fingerprint()
    table(id=[*range(5)], text=[*ROWS[:4], "5"])
    assert first != Parquet(path=path).fingerprint()


def test_what_is_no_parquet_and_what_has_no_text_is_refused(table, tmp_path):
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 this is none PAR1")
    with pytest.raises(DataError, match=r"broken.parquet: .*"):
        texts(Parquet(path=str(broken)))
    with pytest.raises(DataError, match="no row has text"):
        texts(Parquet(path=str(table(text=[None, ""]))))
    with pytest.raises(DataError, match=r"data=parquet needs data.path=FILE"):
        Parquet()


def test_without_the_library_the_message_says_what_to_install(table, monkeypatch):
    path = str(table())
    for name in ("pyarrow", "pyarrow.parquet", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    for source in (Parquet(path=path), HubDataset(path=path)):
        with pytest.raises(DataError, match=r"pip install 'mlpkit\[hf\]', or .*data=jsonl"):
            texts(source)


HUB = """
import sys, warnings
import datasets
from mlpkit.data import DataError, HubDataset

def texts(source):
    return {name: text.decode() for name, text in source.documents()}

folder, rows, found = sys.argv[1], ["one", None, "", "drei 🙂", "five"], ["one", "drei 🙂", "five"]
data = datasets.Dataset.from_dict({"text": rows, "id": list(range(5))})
data.save_to_disk(f"{folder}/one")
datasets.DatasetDict(train=data, test=data.select([4])).save_to_disk(f"{folder}/two")
data.to_parquet(f"{folder}/files/train.parquet")

one, two = HubDataset(path=f"{folder}/one"), HubDataset(path=f"{folder}/two")
assert texts(one) == texts(two) == dict(zip(["train:0", "train:3", "train:4"], found))
assert texts(HubDataset(path=f"{folder}/two", split="test")) == {"test:0": "five"}
assert list(texts(HubDataset(path=f"{folder}/files")).values()) == found
test = HubDataset(path=f"{folder}/two", split="test")
assert one.fingerprint() == two.fingerprint() != test.fingerprint()

for options, words in (
    ({"path": f"{folder}/one", "column": "body"}, ["no column 'body'", "text, id"]),
    ({"path": f"{folder}/one", "column": "id"}, ["row 0 is a int", "data.column"]),
    ({"path": f"{folder}/two", "split": "val"}, ["cannot be loaded", "data.split"]),
    ({"path": "nobody/nothing-of-this-name"}, ["cannot be loaded", "Without a network"]),
):
    try:
        texts(HubDataset(**options))
    except DataError as error:
        assert all(word in str(error) for word in words) and "\\n" not in str(error), error
    else:
        raise AssertionError(options)
"""


def test_a_dataset_is_read_from_disk_and_without_a_network_the_message_says_the_way_out(tmp_path):
    pytest.importorskip("pyarrow")
    # in a process of its own: the library reads its settings when it is imported
    settings = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", HUB, str(tmp_path)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    if "No module named 'datasets'" in done.stderr:
        pytest.skip("the library datasets is not installed")
    assert done.returncode == 0, done.stderr


def test_a_dataset_needs_a_name():
    with pytest.raises(DataError, match=r"data=hf needs data.path=NAME"):
        HubDataset()

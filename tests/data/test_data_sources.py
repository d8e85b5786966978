"""Sources of documents by known files, and the split into training and validation text."""

import ast
import hashlib
import inspect
import subprocess
import sys
import sysconfig
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from mlpkit.catalogue.data import DATA
from mlpkit.configs.data import DataConfig
from mlpkit.data import DataError, Document, PyStdlib, TextFiles
from mlpkit.data.sources import NamedFile, hash_files
from mlpkit.data.split import choose_split, divide, in_validation, tail_start
from mlpkit.specs import resolve


class Listed:
    """A source of the given documents."""

    def __init__(self, documents):
        self.listed = [Document(*document) for document in documents]

    def documents(self):
        yield from self.listed

    def fingerprint(self):
        return hashlib.sha256(repr(self.listed).encode()).hexdigest()


@pytest.mark.parametrize("spec", DATA, ids=lambda spec: spec.name)
def test_a_schema_is_the_constructors_signature_plus_what_every_source_takes(spec):
    common = {field.name for field in fields(DataConfig)}
    schema = {
        field.name: (field.type, field.default)
        for field in fields(spec.config)
        if field.name not in common
    }
    parameters = inspect.signature(resolve(spec.target)).parameters.values()
    assert schema == {p.name: (p.annotation, p.default) for p in parameters}
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters)
    assert MISSING not in [default for _, default in schema.values()]


@pytest.mark.parametrize("spec", DATA, ids=lambda spec: spec.name)
def test_a_schema_is_a_hydra_node_that_carries_its_name(spec):
    node = OmegaConf.structured(spec.config)
    assert (node.name, node.tokenizer, node.val_fraction) == (spec.name, "bytes", 0.05)
    node.val_fraction = 0.1


def test_the_catalogue_the_sources_and_the_cache_import_no_torch():
    code = "import sys, mlpkit.catalogue.data, mlpkit.data; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pystdlib_is_the_library_of_this_python_without_its_tests():
    documents = {name: text for name, text in PyStdlib().documents()}
    assert (
        documents["textwrap.py"] == Path(inspect.getfile(ast)).with_name("textwrap.py").read_bytes()
    )
    assert list(documents) == sorted(documents)
    assert {"json/decoder.py", "asyncio/events.py"} < documents.keys()
    folders = {part for name in documents for part in name.split("/")[:-1]}
    assert not folders & {"test", "tests", "idle_test", "site-packages", "__pycache__"}
    assert 9e6 < sum(map(len, documents.values())) < 13e6


def test_pystdlib_keeps_about_half_a_megabyte_for_validation_by_whole_files():
    source = PyStdlib()
    assert choose_split(source, 0.05) == "file"
    val = [d for d in source.documents() if in_validation(d.name, 0.05)]
    assert 0.4e6 < sum(len(text) for _, text in val) < 0.7e6
    assert max(len(text) for _, text in val) < 0.15e6, "one file is most of validation"


def test_pystdlibs_fingerprint_says_the_python_and_stays():
    fingerprint = PyStdlib().fingerprint()
    assert fingerprint.startswith(f"python-{sysconfig.get_python_version()}.")
    assert fingerprint == PyStdlib().fingerprint()


def test_a_python_without_library_files_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match=r"no \.py files in .*data\.path=FILE"):
        PyStdlib().fingerprint()


@pytest.fixture
def folder(tmp_path):
    for name, content in {
        "b.txt": b"bee\n",
        "a.md": "ä\n".encode(),
        "deep/c.py": b"c = 1\n",
        "deep/empty.txt": b"",
        ".git/config": b"hidden",
        "picture": b"\x89PNG\0\xff",
    }.items():
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "texts" / "broken").symlink_to(tmp_path / "gone")
    return tmp_path / "texts"


def test_a_folder_gives_its_text_files_by_name_without_hidden_binary_and_empty_ones(folder):
    documents = list(TextFiles(path=str(folder)).documents())
    assert documents == [("a.md", "ä\n".encode()), ("b.txt", b"bee\n"), ("deep/c.py", b"c = 1\n")]


def test_a_glob_names_files_from_its_fixed_part_and_a_file_by_itself(folder):
    def names(path):
        return [name for name, _ in TextFiles(path=str(path)).documents()]

    assert names(folder / "**" / "*.[pt]*") == ["b.txt", "deep/c.py"]
    assert names(folder / "deep" / "*.py") == ["c.py"]
    assert names(folder / "b.txt") == ["b.txt"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(folder):
    (folder / "x[1].txt").write_bytes(b"one")
    assert list(TextFiles(path=str(folder / "x[1].txt")).documents()) == [("x[1].txt", b"one")]


def test_a_relative_path_and_the_home_folder_are_understood(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder))
    found = [list(TextFiles(path=path).documents()) for path in ("texts/*.txt", "~/b.txt")]
    assert found == [[("b.txt", b"bee\n")]] * 2


def test_a_fingerprint_follows_names_and_contents_but_not_the_place(folder):
    before = TextFiles(path=str(folder)).fingerprint()
    moved = folder.rename(folder.with_name("moved"))
    assert TextFiles(path=str(moved)).fingerprint() == before
    (moved / "b.txt").write_bytes(b"bea\n")
    changed = TextFiles(path=str(moved)).fingerprint()
    (moved / "b.txt").rename(moved / "d.txt")
    assert len({before, changed, TextFiles(path=str(moved)).fingerprint()}) == 3


def test_hash_files_is_the_sha256_of_names_sizes_and_content_hashes(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    content = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    expected = hashlib.sha256(f"n\0{3}\0{content}\n".encode()).hexdigest()
    assert hash_files([("n", tmp_path / "f")], "data.path=f") == expected


def test_a_file_that_goes_away_is_an_error_that_names_it(folder, monkeypatch):
    source = TextFiles(path=str(folder))
    (folder / "b.txt").unlink()
    monkeypatch.setattr(source, "files", lambda: [NamedFile("b.txt", folder / "b.txt")])
    for read in (source.fingerprint, lambda: list(source.documents())):
        with pytest.raises(DataError, match=r"b\.txt cannot be read \(No such file.*check"):
            read()


@pytest.mark.parametrize(
    ("make", "path", "message"),
    [
        (lambda p: None, "gone.txt", r"data\.path=.*gone\.txt: no such file or folder"),
        (lambda p: None, "*.nothing", r"\*\.nothing: the glob matches no file"),
        (lambda p: p.mkdir(), "bare", r"bare: no text files in this folder \(0 binary"),
        (lambda p: p.write_bytes(b""), "e.txt", r"e\.txt: empty \(0 bytes"),
        (lambda p: p.write_bytes(b"caf\xe9!"), "l.txt", r"l\.txt is not UTF-8 at byte 3 \(0xe9\)"),
    ],
)
def test_what_cannot_be_read_is_one_error_that_names_it(tmp_path, make, path, message):
    make(tmp_path / path)
    with pytest.raises(DataError, match=message) as caught:
        list(TextFiles(path=str(tmp_path / path)).documents())
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("path", [None, ""])
def test_text_without_a_path_says_what_it_needs(path):
    with pytest.raises(DataError, match=r"data=text needs data\.path=FILE"):
        TextFiles(path=path)


def test_a_folder_of_binary_files_and_a_device_are_refused(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"\0\1")
    with pytest.raises(DataError, match=r"no text files in this folder \(1 binary"):
        TextFiles(path=str(tmp_path)).fingerprint()
    with pytest.raises(DataError, match="neither a file nor a folder"):
        TextFiles(path="/dev/null").fingerprint()


def test_a_name_is_in_validation_by_the_first_eight_bytes_of_its_sha256():
    share = int(hashlib.sha256(b"a.txt").hexdigest()[:16], 16) / 16**16
    assert in_validation("a.txt", share + 1e-9)
    assert not in_validation("a.txt", share - 1e-9)
    names = [f"file-{i}" for i in range(20_000)]
    assert sum(in_validation(name, 0.05) for name in names) / 20_000 == pytest.approx(
        0.05, abs=0.005
    )


def test_many_documents_are_split_by_file_and_a_handful_by_tail():
    many = Listed((f"{i}.txt", b"x" * 100) for i in range(400))
    assert choose_split(many, 0.05) == "file"
    for document in many.documents():
        train, val = divide(document, "file", 0.05)
        assert sorted([train, val]) == [b"", document.text]
        assert bool(val) == in_validation(document.name, 0.05)
    assert choose_split(Listed([("one.txt", b"x" * 100)]), 0.05) == "tail"
    with pytest.raises(DataError, match=r"Listed gave no text \(0 bytes\)"):
        choose_split(Listed([]), 0.05)


def test_a_tail_starts_at_a_line_near_its_share_and_never_inside_a_character():
    lines = b"".join(b"line %02d\n" % i for i in range(100))  # 800 bytes, the 95th line at 760
    assert tail_start(lines, 0.05) == 760
    assert tail_start(lines, 0.0481) == 760, "the nearest line, not the next"
    assert divide(Document("f", lines), "tail", 0.05) == (lines[:760], lines[760:])
    unbroken = "中".encode() * 100  # 300 bytes, 95 % lies at 285
    assert tail_start(unbroken, 0.05) == 285
    assert tail_start(unbroken, 0.06) == 282
    assert tail_start(unbroken, 0.0533) == 282, "284 is inside a character"
    assert tail_start(b"title\n" + b"x" * 994, 0.05) == 950, "a far line is no place to cut"

"""Lines of JSON: what is read, what is passed over, and that a bad line is found by its number."""

import gzip
import json
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlpkit.data import ByteTokenizer, DataError, JsonLines, load_data, records


def write(path, *lines):
    path.write_bytes(
        b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    )
    return path


def texts(path, **options):
    return {name: text.decode() for name, text in JsonLines(path=str(path), **options).documents()}


def test_each_line_is_a_document_named_by_file_and_line(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        b'\xef\xbb\xbf{"text": "one"}',
        '{"text": "zwei\\nmit \\ud83d\\ude42", "meta": [1, {"x": null}]}',
        "",
        '   \t {"other": 1, "text": "三"} \r',
        '{"text": ""}',
        '{"text": "last, without a line break"}',
    )
    assert texts(path) == {
        "a.jsonl:1": "one",
        "a.jsonl:2": "zwei\nmit 🙂",
        "a.jsonl:4": "三",
        "a.jsonl:6": "last, without a line break",
    }


def test_a_folder_gives_json_lines_by_name_also_compressed_ones_and_nothing_else(tmp_path):
    write(tmp_path / "b.jsonl", '{"text": "b"}')
    (tmp_path / "sub").mkdir()
    with gzip.open(tmp_path / "sub" / "c.JSONL.gz", "wb") as file:
        file.write(b'{"text": "c"}\n{"text": "c2"}\n')
    write(tmp_path / "a.ndjson", '{"text": "a"}')
    write(tmp_path / ".hidden.jsonl", "not looked at")
    write(tmp_path / "notes.txt", "not looked at")
    assert list(texts(tmp_path)) == [
        "a.ndjson:1",
        "b.jsonl:1",
        "sub/c.JSONL.gz:1",
        "sub/c.JSONL.gz:2",
    ]
    assert list(texts(f"{tmp_path}/*.jsonl")) == ["b.jsonl:1"]


def test_the_field_is_an_option(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"content": "x", "text": "y"}')
    assert texts(path, field="content") == {"a.jsonl:1": "x"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"is not JSON \(Expecting property name"),
        ('{"text": "cut', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("9" * 5000, "is not JSON"),
        ('["a"]', r'is a list; a line is an object such as {"text": "…"}'),
        ("null", "is a NoneType"),
        (
            '{"conversations": [], "id": 3}',
            r"no field 'text' \(its fields: 'conversations', 'id'\)",
        ),
        ("{}", r"no field 'text' \(its fields: none\); .* data.field=NAME"),
        ('{"text": 3}', "has int in the field 'text'"),
        ('{"text": null}', "has NoneType in the field 'text'"),
        ('{"text": "\\ud83d"}', r"half a character \(U\+D83D\)"),
        (b'{"text": "\xff"}', r"is not UTF-8 at byte 10 \(0xff\)"),
        (b"\x00\x01\x02", "is not JSON"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_by_file_and_number(tmp_path, line, message):
    path = write(tmp_path / "bad.jsonl", '{"text": "fine"}', "", line, '{"text": "never reached"}')
    with pytest.raises(DataError, match=rf"{re.escape(str(path))}:3 {message}|:3 has {message}"):
        texts(path)


def test_a_file_without_line_breaks_ends_at_the_longest_line(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST_LINE", 2**20)
    path = tmp_path / "binary.jsonl"
    path.write_bytes(b"x" * 2**20 + b"x" * 2**23)
    with pytest.raises(DataError, match=r"binary.jsonl:1 is longer than 1 MiB"):
        texts(path)


def test_a_damaged_archive_says_after_which_line(tmp_path):
    path = tmp_path / "cut.jsonl.gz"
    whole = gzip.compress(b"".join(b'{"text": "%d"}\n' % i for i in range(20000)))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut.jsonl.gz cannot be read after line \d+: .*ended"):
        texts(path)
    path.write_bytes(b"no archive at all")
    with pytest.raises(DataError, match="cannot be read after line 0: Not a gzipped file"):
        texts(path)


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (lambda p: None, "gone.jsonl", "no such file or folder"),
        (lambda p: p.mkdir(), "bare", "no JSON lines files in this folder"),
        (lambda p: p.write_bytes(b"\n\n"), "blank.jsonl", "no line has text"),
        (lambda p: None, "*.jsonl", "the glob matches no file"),
    ],
)
def test_a_path_without_text_is_refused(tmp_path, make, name, message):
    make(tmp_path / name)
    with pytest.raises(DataError, match=message):
        texts(tmp_path / name)
    with pytest.raises(DataError, match=r"data=jsonl needs data.path=FILE"):
        JsonLines()


def test_the_fingerprint_changes_with_a_byte_and_with_the_field(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "one"}')
    first = JsonLines(path=str(path)).fingerprint()
    assert first == JsonLines(path=str(path)).fingerprint()
    assert first != JsonLines(path=str(path), field="other").fingerprint()
    write(path, '{"text": "two"}')
    assert first != JsonLines(path=str(path)).fingerprint()


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "long.jsonl"
    line = json.dumps({"text": "x" * 100_000}) + "\n"
    path.write_text(line * 200)  # 20 MB
    tracemalloc.start()
    total = sum(len(text) for _, text in JsonLines(path=str(path)).documents())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 200 * 100_000
    assert peak < 2_000_000


def test_documents_become_tokens_of_whole_documents_in_one_split(tmp_path):
    path = write(tmp_path / "a.jsonl", *(json.dumps({"text": f"record {i}"}) for i in range(300)))
    data = load_data(
        JsonLines(path=str(path)), ByteTokenizer(), val_fraction=0.2, cache_dir=tmp_path / "cache"
    )
    assert data.meta.split == "file"
    assert data.meta.train.documents + data.meta.val.documents == 300
    assert data.tokenizer.decode(data.val.tolist()).startswith(b"record ")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(values=st.lists(st.text(), min_size=1, max_size=8), extra=ANYTHING, ascii=st.booleans())
def test_whatever_text_json_can_hold_comes_out_as_it_went_in(
    tmp_path_factory, values, extra, ascii
):
    path = tmp_path_factory.mktemp("fuzz") / "a.jsonl"
    lines = [json.dumps({"extra": extra, "text": v}, ensure_ascii=ascii) for v in values]
    write(path, *lines)
    wanted = [value for value in values if value]
    if wanted:
        assert list(texts(path).values()) == wanted
    else:
        with pytest.raises(DataError, match="no line has text"):
            texts(path)


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=200) | st.text(alphabet='{}[]"\\:,textnu0 \n', max_size=60))
def test_any_bytes_give_documents_or_one_error_that_names_the_file(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "a.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found, message = {}, ""
    try:
        found = texts(path)
    except DataError as error:
        message = str(error)
    assert bool(found) != bool(message)
    assert "a.jsonl" in message or found
    assert "\n" not in message
    assert all(text and name.startswith("a.jsonl:") for name, text in found.items())

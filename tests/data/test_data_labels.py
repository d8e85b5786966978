"""Labels of text: hand-labelled snippets, every byte once, aligned with the packed tokens."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlpkit.data.labels.tokens as tokens_module
from mlpkit.data import ByteTokenizer, Document, JsonTokenizer, TextFiles, load_data
from mlpkit.data.labels import (
    CATEGORIES,
    LabelsError,
    label_document,
    python_labels,
    text_labels,
    token_labels,
    validation_labels,
)
from mlpkit.data.labels.python import PYTHON_RULE, _python_kind, _tokenized
from mlpkit.data.labels.text import lexed
from mlpkit.data.sources import stdlib_files

SHORT = {
    **{"space": "_", "newline": "n", "other": "?", "number": "0", "keyword": "k", "name": "a"},
    **{"string": "s", "comment": "c", "operator": "o", "function_word": "f", "word": "w"},
    **{"capitalised": "C", "cjk": "z", "punctuation": "p"},
}


def short(labels: np.ndarray) -> str:
    """Labels as one letter a byte."""
    return "".join(SHORT[CATEGORIES[label]] for label in labels)


def test_the_categories_keep_their_numbers() -> None:
    """Files of runs hold the numbers; a name may be added at the end alone."""
    assert CATEGORIES[:14] == (
        *("space", "newline", "other", "number", "keyword", "name", "string", "comment"),
        *("operator", "function_word", "word", "capitalised", "cjk", "punctuation"),
    )
    assert set(SHORT) == set(CATEGORIES)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if x == 1:\n", "kk_a_oo_0on"),
        ("\tpass  # a b\r\n", "_kkkk__cccccnn"),
        ('s = \'a b\' + rb"""x\ny"""\n', "a_o_sssss_o_sssssssssssn"),
        ('f"{a} b"; d = 1_0.5e-3j\n', "sssssssso_a_o_000000000n"),
        ("match = None\n", "aaaaa_o_kkkkn"),
        ("é = 'é'\n", "aa_o_ssssn"),
        ("a = b + \\\n    c\n", "a_o_a_o_?n____an"),
        ("@d\ndef f(): ...\n", "oankkk_aooo_ooon"),
        ("", ""),
        ("x", "a"),
        ("\n\n# only\n", "nnccccccn"),
    ],
)
def test_python_is_labelled_as_by_hand(source: str, expected: str) -> None:
    assert short(python_labels(source.encode())) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (b"def f(:\n  x = 'open\n", "kkk_aoon__a_o_sssssn"),
        (b"x = $ ?\n", "a_o_?_?n"),
        (b'"""never closed # \n', "s" * 19),
        (b"a = 1\n  b = 2\n c = 3\n", "a_o_0n__a_o_0n_a_o_0n"),
        (b"x\x00 = 1\n", "a?_o_0n"),
        (b"# \xff\n", "cccn"),
        (b"((((", "oooo"),
    ],
)
def test_broken_python_is_labelled_by_the_lexical_rule(source: bytes, expected: str) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 (which one differs between versions)
        _tokenized(source)
    assert short(python_labels(source)) == expected


def test_a_declared_encoding_and_a_byte_order_mark_keep_bytes_and_labels_together() -> None:
    latin = b"# coding: latin-1\ns = '\xe9'\n"
    assert short(python_labels(latin)) == "c" * 17 + "na_o_sssn"
    marked = "é = 1\n".encode("utf-8-sig")
    assert short(python_labels(marked)) == "???aa_o_0n"


def test_an_f_string_is_one_string_also_with_quotes_and_code_inside() -> None:
    source = """x = f'{d["k"]!r:>{w}}' 'b'\n"""
    assert short(python_labels(source.encode())) == "a_o_" + "s" * 18 + "_sssn"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat sat, 12.5!\n", "fff_www_wwwp_00p0pn"),
        ("Don't Tim's", "CCCCC_CCCCC"),
        ("a_b\t\r\nÉté", "fpw_nnCCCCC"),
        ("水は。東京 한글", "zzzzzzpppzzzzzz_zzzzzz"),
        ("€ 😀", "ppp_pppp"),
        ("e\u0301 \x00", "www_?"),
        ("", ""),
    ],
)
def test_text_is_labelled_as_by_hand(text: str, expected: str) -> None:
    assert short(text_labels(text.encode())) == expected


def test_bytes_that_are_no_utf8_are_other() -> None:
    assert short(text_labels(b"ab \xff\xfe cd")) == "ww_??_ww"


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_every_byte_of_anything_has_one_label(text: bytes) -> None:
    for rule in (python_labels, text_labels):
        labels = rule(text)
        assert labels.shape == (len(text),)
        assert labels.dtype == np.uint8
        assert (labels < len(CATEGORIES)).all()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(["if", " ", "x", "\n", "'", '"', "#", "1", "(", "\\", "é", "\t"])))
def test_white_space_outside_strings_and_comments_is_white_in_any_python(parts: list[str]) -> None:
    text = "".join(parts).encode()
    inside = {CATEGORIES.index(name) for name in ("string", "comment")}
    for byte, label in zip(text, python_labels(text), strict=True):
        if label not in inside:
            white = {"space": b" \t", "newline": b"\n"}.get(CATEGORIES[label], b"")
            assert (byte in b" \t\n") == (byte in white)


def test_tokenize_and_the_lexical_rule_agree_on_the_standard_library() -> None:
    """Two implementations, on 50 files of real source."""
    for name, path in stdlib_files(Path(sysconfig.get_path("stdlib")))[::14]:
        text = path.read_bytes()
        same = _tokenized(text) == lexed(text, PYTHON_RULE, _python_kind)
        assert same.mean() > 0.9999, name


def test_the_name_of_a_document_decides_the_rule() -> None:
    text = b"if 1"
    assert short(label_document(Document("a.py", text))) == "kk_0"
    assert short(label_document(Document("a.md", text))) == "ff_0"


@pytest.mark.parametrize(
    ("labels", "num_bytes", "expected"),
    [
        ("_www", [4], "w"),  # a space before a word
        ("__w", [3], "w"),  # white space never outvotes
        ("__n", [3], "_"),
        ("wwp", [3], "w"),
        ("wp", [2], "w"),  # equal: the earlier category
        ("wwpp", [2, 0, 2, 0], "wppp"),  # without bytes: as the next one, at the end as the last
    ],
)
def test_a_token_is_what_most_of_its_bytes_are(
    labels: str, num_bytes: list[int], expected: str
) -> None:
    codes = {letter: CATEGORIES.index(name) for name, letter in SHORT.items()}
    found = token_labels(
        np.array([codes[letter] for letter in labels], np.uint8), np.array(num_bytes), CATEGORIES
    )
    assert short(found) == expected


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Documents of two kinds, one empty."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "empty.txt").write_text("")
    for number in range(12):
        text = f"Number {number} of the 水, and more.\n" * (number + 1)
        (folder / f"{number}.txt").write_text(text)
        (folder / f"{number}.py").write_text(f"x = {number}  # one\nif x: pass\n" * (number + 1))
    return folder


@pytest.mark.parametrize("val_fraction", [0.3, 0.02])
def test_each_validation_token_has_the_label_of_its_own_byte(
    mixed: Path, tmp_path: Path, val_fraction: float
) -> None:
    """Whole documents and tails; found again by decoding the packed tokens themselves."""
    dataset = load_data(
        TextFiles(path=str(mixed)),
        ByteTokenizer(),
        val_fraction=val_fraction,
        cache_dir=tmp_path / "cache",
    )
    categories, labels = validation_labels(dataset)
    assert categories == (*CATEGORIES, "end")
    assert labels.shape == dataset.val.shape
    ends = np.flatnonzero(dataset.val == 256)
    assert (labels[ends] == len(CATEGORIES)).all()
    sources = {path.read_bytes(): label_document(Document(path.name, path.read_bytes()))
               for path in mixed.iterdir() if path.stat().st_size}  # fmt: skip
    for start, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
        text = bytes(dataset.val[start:end].tolist())
        (own,) = {bytes(kinds[len(whole) - len(text) :].tobytes())
                  for whole, kinds in sources.items() if whole.endswith(text)}  # fmt: skip
        assert labels[start:end].tobytes() == own
    few = validation_labels(dataset, num_tokens=7)
    assert few.labels.tolist() == labels[:7].tolist()


def test_tokens_of_a_vocabulary_are_labelled_by_their_bytes(mixed: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<eos>"], show_progress=False
    )
    library.train_from_iterator([p.read_text() for p in mixed.iterdir()], trainer)
    (tmp_path / "tokenizer").mkdir()
    library.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    tokenizer = JsonTokenizer(path=str(tmp_path / "tokenizer"))
    dataset = load_data(
        TextFiles(path=str(mixed)), tokenizer, val_fraction=0.3, cache_dir=tmp_path / "cache"
    )
    categories, labels = validation_labels(dataset)
    named = [(tokenizer.decode([i]), categories[k]) for i, k in zip(dataset.val, labels)]  # noqa: B905
    kinds: dict[bytes, set[str]] = {}
    for text, kind in named:
        kinds.setdefault(text, set()).add(kind)
    assert len(labels) == len(dataset.val) < dataset.meta.val.bytes
    assert kinds[b" of"] == {"function_word"}
    assert kinds[b"Number"] == {"capitalised"}
    assert kinds[b"if"] == {"keyword"}
    assert kinds[b""] == {"end"}
    assert {"comment", "number", "punctuation", "newline"} <= {kind for _, kind in named}


def test_a_long_document_is_labelled_piece_by_piece(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = load_data(
        TextFiles(path=str(mixed)),
        ByteTokenizer(),
        val_fraction=0.3,
        cache_dir=tmp_path / "cache",
    )
    whole = validation_labels(dataset).labels
    monkeypatch.setattr(tokens_module, "WHOLE_BYTES", 20)
    assert np.array_equal(validation_labels(dataset).labels, whole)


class Letters:
    """A source that labels its own text: a, b and the rest."""

    categories = ("a", "b", "rest")

    def documents(self) -> Iterator[Document]:
        """Two documents, for training and validation."""
        yield from (Document(str(number), b"abcab" * 20) for number in range(8))

    def fingerprint(self) -> str:
        """Never changes."""
        return "letters"

    def labels(self, document: Document) -> np.ndarray:
        """By hand."""
        return np.array([{97: 0, 98: 1}.get(byte, 2) for byte in document.text])


def test_a_source_may_label_its_own_text(tmp_path: Path) -> None:
    dataset = load_data(Letters(), ByteTokenizer(), val_fraction=0.3, cache_dir=tmp_path)
    categories, labels = validation_labels(dataset, num_tokens=6)
    assert categories == ("a", "b", "rest", "end")
    assert labels.tolist() == [0, 1, 2, 0, 1, 0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (lambda document: np.zeros(3, int), r"int64 of shape \(3,\)"),
        (lambda document: np.full(100, 7), "go from 7 to 7; there are 3"),
        (lambda document: np.full(100, 0.5), "float64"),
        (lambda document: [][0], "IndexError"),
    ],
)
def test_wrong_labels_of_a_source_are_named(
    tmp_path: Path, labels: Callable[[Document], object], message: str
) -> None:
    source = Letters()
    source.labels = labels  # type: ignore[method-assign, assignment]
    dataset = load_data(source, ByteTokenizer(), val_fraction=0.3, cache_dir=tmp_path)
    with pytest.raises(LabelsError, match=message):
        validation_labels(dataset)


def test_text_that_changed_since_is_not_labelled_as_if_it_had_not(
    mixed: Path, tmp_path: Path
) -> None:
    dataset = load_data(
        TextFiles(path=str(mixed)),
        ByteTokenizer(),
        val_fraction=0.3,
        cache_dir=tmp_path / "cache",
    )
    for path in mixed.glob("*.txt"):
        path.write_text("something else\n")
    with pytest.raises(LabelsError, match="has changed since"):
        validation_labels(dataset)

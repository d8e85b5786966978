"""The token cache: made once by whoever comes first, whole or not at all, remade when damaged."""

import json
import logging
import os
import platform
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from mlpkit.data import (
    ByteTokenizer,
    DataError,
    Document,
    TextFiles,
    Tokenizer,
    Tokens,
    default_cache_dir,
    load_data,
)
from mlpkit.data.packing import pieces


class Numbered:
    """Sixty documents of a hundred bytes."""

    def __init__(self, *, letter="x"):
        self.letter = letter
        self.reads = 0

    def documents(self):
        self.reads += 1
        for i in range(60):
            yield Document(f"{i}.txt", f"{i:03d}{self.letter * 96}\n".encode())

    def fingerprint(self):
        return f"numbered-{self.letter}"


class WideTokenizer(Tokenizer):
    """Ids above 16 bits, one for two bytes, and no end-of-document id."""

    name, vocab_size, eos = "wide", 200_000, None

    def tokenize(self, text):
        ids = np.frombuffer(text, np.uint16).astype(np.int64) + 100_000
        return Tokens(ids, np.full_like(ids, 2))

    def decode(self, ids):
        return (np.asarray(ids) - 100_000).astype(np.uint16).tobytes()

    def fingerprint(self):
        return "wide"


SCRIPT = textwrap.dedent(
    """
    import os, signal, sys, time
    from pathlib import Path
    from mlpkit.data import ByteTokenizer, Document, load_data

    def die(*args):
        os.kill(os.getpid(), signal.SIGKILL)

    class Slow:
        reads = 0
        def documents(self):
            print("read", flush=True)
            self.reads += 1
            for i in range(60):
                if "writing" in sys.argv and self.reads == 2 and i == 30:
                    die()
                yield Document(f"{i}.txt", b"x" * 99 + b"\\n")
                time.sleep(0.005)
        def fingerprint(self):
            return "slow"

    if "rename" in sys.argv:  # every file is written
        os.replace = die
    data = load_data(Slow(), ByteTokenizer(), val_fraction=0.1, cache_dir=Path(sys.argv[1]))
    print(data.meta.train.tokens, data.meta.val.tokens, int(data.train.sum()))
    """
)


def start(folder, *stage):
    command = [sys.executable, "-c", SCRIPT, str(folder), *stage]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def load(folder, source=None, tokenizer=None, val_fraction=0.1):
    return load_data(
        source or Numbered(),
        tokenizer or ByteTokenizer(),
        val_fraction=val_fraction,
        cache_dir=folder,
    )


def names(folder):
    return sorted(p.suffix for p in folder.iterdir())


def test_documents_follow_each_other_with_an_end_id_and_are_all_there_once(tmp_path):
    data = load(tmp_path)
    text = ByteTokenizer().decode(data.train) + ByteTokenizer().decode(data.val)
    lines = sorted(text.splitlines())
    assert lines == [text[:-1] for _, text in Numbered().documents()]
    assert data.train[100::101].tolist() == [256] * data.meta.train.documents
    assert data.train.dtype == np.uint16
    assert data.val_bytes.tolist() == [int(token != 256) for token in data.val]


def test_the_metadata_counts_tokens_bytes_and_documents(tmp_path):
    meta = load(tmp_path).meta
    assert meta.split == "file"
    assert meta.train.documents + meta.val.documents == 60
    for counts in (meta.train, meta.val):
        assert counts.bytes == 100 * counts.documents
        assert counts.tokens == 101 * counts.documents
    assert (meta.eos, meta.vocab_size, meta.val_fraction) == (256, 257, 0.1)
    assert (meta.tokenizer, meta.source_fingerprint) == ("bytes", "numbered-x")
    assert meta.python == platform.python_version()
    (saved,) = tmp_path.glob("*/meta.json")
    assert json.loads(saved.read_text())["train"]["tokens"] == meta.train.tokens


def test_a_large_vocabulary_is_kept_in_32_bits_and_needs_no_end_id(tmp_path):
    data = load(tmp_path, tokenizer=WideTokenizer())
    assert data.train.dtype == np.uint32
    text = data.tokenizer.decode(data.train) + data.tokenizer.decode(data.val)
    assert sorted(text.splitlines()) == [text[:-1] for _, text in Numbered().documents()]
    assert data.meta.train.tokens * 2 == data.meta.train.bytes
    assert set(data.val_bytes.tolist()) == {2}


def test_one_file_keeps_its_last_lines_for_validation_and_says_so(tmp_path):
    lines = [f"line {i:04d}" for i in range(1000)]
    (tmp_path / "one.txt").write_text("\n".join(lines) + "\n")
    data = load(tmp_path / "c", TextFiles(path=str(tmp_path / "one.txt")), val_fraction=0.05)
    assert data.meta.split == "tail"
    assert bytes(data.val[:-1].tolist()).decode().splitlines() == lines[950:]
    assert bytes(data.train[:-1].tolist()).decode().splitlines() == lines[:950]


def test_a_second_load_reads_the_cache_and_a_change_of_anything_makes_another(tmp_path):
    source = Numbered()
    first = load(tmp_path, source)
    reads = source.reads
    again = load(tmp_path, source)
    assert source.reads == reads
    assert again.meta == first.meta
    assert np.array_equal(again.train, first.train)
    load(tmp_path, Numbered(letter="y"))
    load(tmp_path, source, WideTokenizer())
    load(tmp_path, source, val_fraction=0.2)
    assert len(list(tmp_path.glob("*/meta.json"))) == 4


def test_two_caches_of_the_same_are_the_same_bytes(tmp_path):
    for folder in ("a", "b"):
        load(tmp_path / folder)
    first, second = (
        {path.name: path.read_bytes() for path in tmp_path.glob(f"{folder}/*/*")} for folder in "ab"
    )
    assert len(first) == 4
    assert first == second


@pytest.mark.parametrize(
    ("name", "content"),
    [("train.bin", b"12"), ("val_bytes.bin", None), ("meta.json", b"{"), ("meta.json", b"[]")],
)
def test_a_damaged_cache_is_made_again_with_a_note(tmp_path, caplog, name, content):
    whole = np.array(load(tmp_path).train)
    (damaged,) = tmp_path.glob(f"*/{name}")
    damaged.unlink()
    if content is not None:
        damaged.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(load(tmp_path).train, whole)
    assert "is damaged" in caplog.text
    assert names(tmp_path) == ["", ".lock"]
    caplog.clear()
    load(tmp_path)
    assert not caplog.text


def test_two_processes_that_want_the_same_cache_make_it_once(tmp_path):
    jobs = [start(tmp_path), start(tmp_path)]
    outputs = [job.communicate(timeout=60)[0].split("\n") for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0]
    assert outputs[0][-2] == outputs[1][-2] != ""
    # Making it reads the documents twice: to choose the split, and to write.
    assert sorted(output.count("read") for output in outputs) == [0, 2]
    assert names(tmp_path) == ["", ".lock"]


@pytest.mark.parametrize("stage", ["writing", "rename"])
def test_a_killed_process_leaves_nothing_that_is_taken_for_a_cache(tmp_path, stage):
    killed = start(tmp_path, stage)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert names(tmp_path) == [".lock", ".unfinished"]
    assert (next(tmp_path.glob("*.unfinished")) / "train.bin").exists()
    after = start(tmp_path)
    output = after.communicate(timeout=60)[0]
    assert after.returncode == 0
    assert output.count("read") == 2
    assert names(tmp_path) == ["", ".lock"]


def test_a_failing_source_leaves_no_folder_and_its_error_is_its_own(tmp_path):
    class Failing(Numbered):
        def documents(self):
            yield from super().documents()
            if self.reads == 2:
                raise OSError("the source's own trouble")

    with pytest.raises(OSError, match="own trouble"):
        load(tmp_path, Failing())
    assert names(tmp_path) == [".lock"]


def test_a_cache_folder_that_cannot_be_made_is_one_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"cannot write .* in .*file/c: .*set MLPKIT_CACHE"
    ) as caught:
        load(tmp_path / "file" / "c")
    assert caught.value.exit_code == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of the operating system")
def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
    command = [sys.executable, "-c", limit + SCRIPT, str(tmp_path)]
    job = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "DataError: cannot write the token cache" in job.stderr
    assert "File too large" in job.stderr
    assert names(tmp_path) == [".lock"]


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5])
def test_a_fraction_out_of_range_is_refused(tmp_path, fraction):
    with pytest.raises(
        DataError, match=rf"val_fraction is {fraction}; give a number between 0 and 1"
    ):
        load(tmp_path, val_fraction=fraction)


def test_too_little_text_for_two_splits_says_how_much_there_is(tmp_path):
    (tmp_path / "tiny.txt").write_text("x")
    with pytest.raises(DataError, match=r"split is empty: .*TextFiles has 1 bytes"):
        load(tmp_path / "c", TextFiles(path=str(tmp_path / "tiny.txt")))


def test_an_error_of_the_tokenizer_names_the_document(tmp_path):
    class Refusing(ByteTokenizer):
        def tokenize(self, text):
            raise DataError("no")

    with pytest.raises(DataError, match=r"document '\d+\.txt': no"):
        load(tmp_path, tokenizer=Refusing())


def test_the_cache_lies_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MLPKIT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache_dir() == tmp_path / ".cache" / "mlpkit" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "mlpkit" / "data"
    monkeypatch.setenv("MLPKIT_CACHE", "~/mine")
    assert default_cache_dir() == tmp_path / "mine" / "data"
    load_data(Numbered(), ByteTokenizer(), val_fraction=0.1)
    assert list((tmp_path / "mine" / "data").glob("*/meta.json"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"ab\ncd\n", [b"ab\n", b"cd\n"]),
        (b"a\nb\ncd", [b"a\nb\n", b"cd"]),
        (b"longline\nx", [b"longline\n", b"x"]),
        (b"unbroken", [b"unbroken"]),
    ],
)
def test_pieces_end_at_lines_and_together_are_the_text(text, expected):
    assert list(pieces(text, 4)) == expected

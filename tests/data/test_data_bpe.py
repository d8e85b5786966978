"""The BPE that is trained on a run's data: once, on the training part, the same every time."""

import hashlib
import multiprocessing
import os
import time

import pytest

from mlpkit.build.models import build_data, tokenizer_of
from mlpkit.compose import compose
from mlpkit.data import DataError, Document, bpe, bpe_vocab_size, build_tokenizer, trained_bpe

pytest.importorskip("tokenizers")


class Listed:
    """A source of the given texts, which counts how often it is read."""

    def __init__(self, *texts):
        self.texts = texts
        self.read = 0

    def documents(self):
        self.read += 1
        for number, text in enumerate(self.texts):
            yield Document(f"{number}.txt", text)

    def fingerprint(self):
        return hashlib.sha256(repr(self.texts).encode()).hexdigest()


TEXTS = [b"the cat sat on the mat and the cat saw the dog %d\n" % i * 3 for i in range(40)]


def train(folder, name="bpe-300", texts=TEXTS):
    return trained_bpe(name, Listed(*texts), val_fraction=0.1, cache_dir=folder)


def test_it_has_every_byte_the_size_that_was_asked_for_and_words_of_the_text(tmp_path):
    tokenizer = train(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.name) == (300, "bpe-300")
    assert tokenizer.eos == 0
    text = bytes(range(32, 127)) + "the cat 三 🙂\n\t<|endoftext|>".encode()
    ids, num_bytes = tokenizer.tokenize(text)
    assert tokenizer.decode(ids) == text
    assert num_bytes.sum() == len(text)
    assert 0 not in ids
    assert len(tokenizer.encode(b" the cat")) == 2


def test_the_same_text_gives_the_same_file_and_is_trained_on_once(tmp_path):
    source = Listed(*TEXTS)
    first = trained_bpe("bpe-300", source, val_fraction=0.1, cache_dir=tmp_path / "a")
    read = source.read
    again = trained_bpe("bpe-300", source, val_fraction=0.1, cache_dir=tmp_path / "a")
    assert source.read == read
    assert first.fingerprint() == again.fingerprint() == train(tmp_path / "b").fingerprint()


def test_size_and_text_are_part_of_the_key(tmp_path):
    files = {
        train(tmp_path).file,
        train(tmp_path, "bpe-280").file,
        train(tmp_path, texts=[*TEXTS, b"more"]).file,
    }
    assert len(files) == 3


def test_nothing_is_learned_from_the_validation_text(tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "choose_split", lambda source, fraction: "tail")
    text = b"aaaa bbbb\n" * 90 + b"zqzqzqzq\n" * 10
    tokenizer = train(tmp_path, texts=[text])
    assert len(tokenizer.encode(b"zqzq")) == 4
    assert len(tokenizer.encode(b"aaaa")) < 4


def test_two_processes_train_it_once(tmp_path, monkeypatch):
    train_one = bpe._train

    def counted(*arguments):
        with (tmp_path / "trained").open("a") as file:
            file.write("x")
        time.sleep(0.3)  # the other one comes meanwhile
        return train_one(*arguments)

    monkeypatch.setattr(bpe, "_train", counted)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        files = pool.map(_train_in, [tmp_path / "cache"] * 2, chunksize=1)
    assert files[0] == files[1]
    assert (tmp_path / "trained").read_text() == "x"


def _train_in(folder):
    time.sleep(0.1)  # so that each of the two gets one
    return str(train(folder).file)


def test_a_killed_writer_leaves_nothing_that_is_taken_for_a_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path)
    monkeypatch.undo()
    assert train(tmp_path).vocab_size == 300


@pytest.mark.parametrize(
    ("name", "size"),
    [("bpe", 2048), ("bpe-257", 257), ("bpe-50000", 50000), ("bytes", None), ("bpe-x", None)],
)
def test_a_name_says_the_size(name, size):
    assert bpe_vocab_size(name) == size


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"bpe-100: a vocabulary of 100; give at least 257"):
        bpe_vocab_size("bpe-100")
    with pytest.raises(DataError, match=r"'0.txt' is not UTF-8 \(0xff\).*data.tokenizer=bytes"):
        train(tmp_path, texts=[b"fine \xff" * 30])
    with pytest.raises(DataError, match=r"unknown tokenizer 'bite'.*\(known: bytes, bpe, bpe-SIZE"):
        build_tokenizer("bite")
    with pytest.raises(DataError, match=r"'bpe-300' is trained on a run's data"):
        build_tokenizer("bpe-300")


def test_a_configuration_trains_it_on_its_own_data(tiny):
    config = compose([*tiny, "data.tokenizer=bpe-280"])
    dataset = build_data(config)
    assert dataset.tokenizer.fingerprint() == tokenizer_of(config).fingerprint()
    assert dataset.meta.vocab_size == dataset.tokenizer.vocab_size == 280
    assert dataset.meta.tokenizer == "bpe-280"
    assert dataset.val_bytes.sum() == dataset.meta.val.bytes

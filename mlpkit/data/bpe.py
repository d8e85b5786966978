"""A byte-level BPE trained on the data itself, once, and kept in the cache; no torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from mlpkit.data.cache import default_cache_dir
from mlpkit.data.packing import locked, pieces, sync, writing
from mlpkit.data.sources import DataError, Source
from mlpkit.data.split import choose_split, divide
from mlpkit.data.tokenizers import EOS_TOKENS, JsonTokenizer, tokenizers_library

NAME = re.compile(r"bpe(?:-(\d+))?")
VOCAB_SIZE = 2048
SMALLEST = 257  # every byte, and the end of a document
FORMAT = 1


def bpe_vocab_size(name: str) -> int | None:
    """The size that a tokenizer's name asks for: ``bpe-4096``, or 2048 for ``bpe``; else None.

    Raises:
        DataError: The size is below 257.
    """
    match = NAME.fullmatch(name)
    if match is None:
        return None
    size = int(match[1] or VOCAB_SIZE)
    if size < SMALLEST:
        raise DataError(
            f"data.tokenizer={name}: a vocabulary of {size}; give at least {SMALLEST}, the 256 "
            "bytes and the end of a document"
        )
    return size


def trained_bpe(
    name: str, source: Source, *, val_fraction: float, cache_dir: Path | None = None
) -> JsonTokenizer:
    """The BPE of a source's training text, from the cache or trained now.

    A small text ends with a smaller vocabulary than was asked for. The same text, size and
    version of the library give the same file. Jobs that ask at the same time wait for the first.

    Args:
        name: ``bpe``, or ``bpe-SIZE``.
        source: Where the documents come from.
        val_fraction: The share of text for validation, of which nothing is learned.
        cache_dir: Where it is kept; None: ``tokenizers`` beside the token caches.

    Raises:
        DataError: The size is too small, a document is not UTF-8, the library is missing, or the
            cache cannot be written.
    """
    size = bpe_vocab_size(name)
    assert size is not None, name
    root = cache_dir or default_cache_dir().with_name("tokenizers")
    made_from = [FORMAT, size, val_fraction, source.fingerprint(), _library_version(name)]
    key = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:24]
    folder = root / key
    file = folder / "tokenizer.json"
    if not file.is_file():
        with locked(folder):
            if not file.is_file():  # the process that was waited for may have made it
                _write(file, _train(name, size, source, val_fraction))
    tokenizer = JsonTokenizer(path=str(folder))
    tokenizer.name = name
    return tokenizer


def _train(name: str, size: int, source: Source, val_fraction: float) -> str:
    """The JSON of a byte-level BPE, as GPT-2 splits words."""
    parts = tokenizers_library(name)
    tokenizer = parts.Tokenizer(parts.models.BPE())
    tokenizer.pre_tokenizer = parts.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = parts.decoders.ByteLevel()
    trainer = parts.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[EOS_TOKENS[0]],
        initial_alphabet=sorted(parts.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(source, val_fraction), trainer)
    return str(tokenizer.to_str())


def training_text(source: Source, val_fraction: float) -> Iterator[str]:
    """The text that a source is trained on, in pieces.

    Raises:
        DataError: It is not UTF-8.
    """
    split = choose_split(source, val_fraction)
    for document in source.documents():
        for piece in pieces(divide(document, split, val_fraction).train):
            try:
                yield piece.decode()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"document {document.name!r} is not UTF-8 (0x{piece[error.start]:02x}), and a "
                    "BPE reads nothing else; use data.tokenizer=bytes"
                ) from error


def _write(path: Path, content: str) -> None:
    """Writes a file that is there whole or not at all; the caller holds the lock of its folder."""
    with writing(path.parent.parent):
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(content, encoding="utf-8")
        sync(unfinished)
        os.replace(unfinished, path)


def _library_version(name: str) -> str:
    tokenizers_library(name)
    return version("tokenizers")

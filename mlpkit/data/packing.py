"""Writing tokens to files one document after the other; no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from mlpkit.data.sources import DataError
from mlpkit.data.tokenizers import Tokenizer

PIECE_BYTES = 8 * 2**20  # a long document is tokenized in pieces, to bound the memory
BYTE_COUNTS = np.dtype(np.uint32)


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """What one split holds.

    Args:
        tokens: All its tokens, with the end-of-document ones.
        bytes: The bytes of text that its tokens stand for; end-of-document ones stand for none.
        documents: Its documents; when the split is by tail, parts of documents.
    """

    tokens: int
    bytes: int
    documents: int


class TokenFile:
    """A file of integers of one type, on the disk for certain when its ``with`` block ends.

    Args:
        path: Where it is made.
        dtype: The type of the integers.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.path = path
        self.dtype = dtype

    def __enter__(self) -> TokenFile:
        with writing(self.path.parent.parent):
            self._file = self.path.open("wb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with writing(self.path.parent.parent):
            self._file.close()
            sync(self.path)

    def write(self, values: npt.NDArray[np.int64]) -> None:
        """Appends integers."""
        with writing(self.path.parent.parent):
            self._file.write(values.astype(self.dtype).tobytes())


class SplitWriter:
    """Tokenizes documents into one split and counts what it holds.

    Args:
        tokenizer: What makes the ids.
        ids: Where they go.
        num_bytes: Where the text bytes of each token go; None: nowhere.
    """

    def __init__(
        self, tokenizer: Tokenizer, ids: TokenFile, num_bytes: TokenFile | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.ids = ids
        self.num_bytes = num_bytes
        self._tokens = self._bytes = self._documents = 0

    def add(self, name: str, text: bytes) -> None:
        """Appends a document and the end-of-document id; an empty one is passed over.

        Args:
            name: The document's name, for errors.
            text: Its text.

        Raises:
            DataError: The tokenizer cannot read it, or it cannot be written.
        """
        if not text:
            return
        for piece in pieces(text):
            try:
                ids, num_bytes = self.tokenizer.tokenize(piece)
            except DataError as error:
                raise DataError(f"document {name!r}: {error}") from error
            assert num_bytes.sum() == (len(piece) if len(ids) else 0), "a byte is counted twice"
            self._append(ids, num_bytes)
        if self.tokenizer.eos is not None:
            self._append(np.array([self.tokenizer.eos]), np.zeros(1, np.int64))
        self._documents += 1

    def counts(self) -> SplitCounts:
        """What was added so far."""
        return SplitCounts(tokens=self._tokens, bytes=self._bytes, documents=self._documents)

    def _append(self, ids: npt.NDArray[np.int64], num_bytes: npt.NDArray[np.int64]) -> None:
        self.ids.write(ids)
        if self.num_bytes is not None:
            self.num_bytes.write(num_bytes)
        self._tokens += len(ids)
        self._bytes += int(num_bytes.sum())


def pieces(text: bytes, size: int = PIECE_BYTES) -> Iterator[bytes]:
    """A text in pieces of about a size, cut after line breaks; together they are the text.

    Args:
        text: The text.
        size: The largest piece in bytes, except where a single line is longer.
    """
    start = 0
    while start < len(text):
        end = len(text)
        if end - start > size:
            end = text.rfind(b"\n", start, start + size) + 1
            end = end or text.find(b"\n", start + size) + 1 or len(text)
        yield text[start:end]
        start = end


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Turns what the operating system refuses into one error that says what to do.

    Args:
        root: The folder of the caches.

    Raises:
        DataError: It cannot be written to.
    """
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write the token cache in {root}: {error.strerror or error}; make room or set "
            "MLPKIT_CACHE to a folder that can be written"
        ) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A block that one process at a time is in, for what is made once and kept in a folder.

    Args:
        folder: What is made; the lock lies beside it, in the folder of the caches.

    Raises:
        DataError: The folder of the caches cannot be written to.
    """
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    with writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def sync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    if os.name == "nt":  # Windows syncs neither folders nor files opened for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

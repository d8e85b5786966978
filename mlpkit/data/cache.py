"""The token cache: a source's tokens, packed once, memory-mapped by every job; no torch.

A cache is a folder: ``train.bin`` and ``val.bin`` (documents one after the other, each ended by the
tokenizer's end-of-document id), ``val_bytes.bin`` (the text bytes each validation token stands for)
and ``meta.json``. Its name is a hash of what it was made from. It appears by one rename.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlpkit.data.packing import (
    BYTE_COUNTS,
    SplitCounts,
    SplitWriter,
    TokenFile,
    locked,
    sync,
    writing,
)
from mlpkit.data.sources import DataError, Source
from mlpkit.data.split import Split, choose_split, divide
from mlpkit.data.tokenizers import Tokenizer

logger = logging.getLogger(__name__)

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What a cache was made from and what it holds.

    Args:
        source: The class of the source, as "module:name".
        source_fingerprint: The source's own hash of its documents.
        tokenizer: What the configuration called the tokenizer.
        tokenizer_fingerprint: The tokenizer's own hash.
        val_fraction: The share of text asked for validation.
        split: "file": whole documents are validated on. "tail": the end of each document.
        dtype: The type of a token in the files.
        vocab_size: Ids are below it.
        eos: The end-of-document id, or None.
        train: Counts of the training split.
        val: Counts of the validation split.
        python: The version of Python that made it.
        format: The version of this layout.
    """

    source: str
    source_fingerprint: str
    tokenizer: str
    tokenizer_fingerprint: str
    val_fraction: float
    split: Split
    dtype: str
    vocab_size: int
    eos: int | None
    train: SplitCounts
    val: SplitCounts
    python: str
    format: int = FORMAT

    def file_sizes(self) -> dict[str, int]:
        """The size in bytes that each data file must have."""
        width = np.dtype(self.dtype).itemsize
        return {
            "train.bin": self.train.tokens * width,
            "val.bin": self.val.tokens * width,
            "val_bytes.bin": self.val.tokens * BYTE_COUNTS.itemsize,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Tokens ready for batches.

    Args:
        train: Training tokens, (N,), memory-mapped.
        val: Validation tokens, (M,), memory-mapped.
        val_bytes: The text bytes each validation token stands for, (M,), memory-mapped.
        meta: What they are.
        tokenizer: What made them.
        source: Where the text came from, for its labels; None: unknown.
    """

    train: npt.NDArray[Any]
    val: npt.NDArray[Any]
    val_bytes: npt.NDArray[Any]
    meta: Metadata
    tokenizer: Tokenizer
    source: Source | None = None


def load_data(
    source: Source, tokenizer: Tokenizer, *, val_fraction: float, cache_dir: Path | None = None
) -> Dataset:
    """The tokens of a source, from the cache or made now.

    Jobs that ask for the same at the same time wait for the first and share its work.

    Args:
        source: Where the documents come from.
        tokenizer: What turns them into ids.
        val_fraction: The share of text for validation, between 0 and 1.
        cache_dir: Where caches lie; None: ``default_cache_dir()``.

    Raises:
        DataError: The fraction is out of range, the source has too little text for two splits,
            or the cache cannot be written.
    """
    if not 0 < val_fraction < 1:
        raise DataError(f"data.val_fraction is {val_fraction}; give a number between 0 and 1")
    root = cache_dir or default_cache_dir()
    folder = root / cache_key(source, tokenizer, val_fraction)
    meta = read_metadata(folder) or _build_under_lock(folder, source, tokenizer, val_fraction)
    return Dataset(
        train=np.memmap(folder / "train.bin", dtype=meta.dtype, mode="r"),
        val=np.memmap(folder / "val.bin", dtype=meta.dtype, mode="r"),
        val_bytes=np.memmap(folder / "val_bytes.bin", dtype=BYTE_COUNTS, mode="r"),
        meta=meta,
        tokenizer=tokenizer,
        source=source,
    )


def default_cache_dir() -> Path:
    """``data`` in ``$MLPKIT_CACHE``, else ``$XDG_CACHE_HOME/mlpkit``, else ``~/.cache/mlpkit``."""
    if chosen := os.environ.get("MLPKIT_CACHE"):
        return Path(chosen).expanduser() / "data"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "mlpkit" / "data"


def cache_key(source: Source, tokenizer: Tokenizer, val_fraction: float) -> str:
    """24 hex digits that name what a cache is made from."""
    parts = [FORMAT, _class_name(source), source.fingerprint(), tokenizer.fingerprint()]
    text = json.dumps([*parts, float(val_fraction)])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def read_metadata(folder: Path) -> Metadata | None:
    """The metadata of a whole cache; None when there is none or it is damaged (with a log line)."""
    if not folder.exists():
        return None
    try:
        content = json.loads((folder / "meta.json").read_bytes())
        content |= {split: SplitCounts(**content[split]) for split in ("train", "val")}
        meta = Metadata(**content)
        sizes = {name: (folder / name).stat().st_size for name in meta.file_sizes()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("token cache %s is damaged (%r); making it again", folder, error)
        return None
    if sizes != meta.file_sizes():
        logger.warning(
            "token cache %s is damaged (sizes %s, expected %s); making it again",
            *(folder, sizes, meta.file_sizes()),
        )
        return None
    return meta


def _build_under_lock(
    folder: Path, source: Source, tokenizer: Tokenizer, val_fraction: float
) -> Metadata:
    with locked(folder):
        return read_metadata(folder) or _build(folder, source, tokenizer, val_fraction)


def _build(folder: Path, source: Source, tokenizer: Tokenizer, val_fraction: float) -> Metadata:
    # The lock is ours, so whatever unfinished folder lies here belongs to a killed process.
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with writing(folder.parent):
            unfinished.mkdir()
        meta = _write(unfinished, source, tokenizer, val_fraction)
        with writing(folder.parent):
            sync(unfinished)
            if folder.exists():  # a damaged one
                shutil.rmtree(folder)
            os.replace(unfinished, folder)
            sync(folder.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return meta


def _write(folder: Path, source: Source, tokenizer: Tokenizer, val_fraction: float) -> Metadata:
    split = choose_split(source, val_fraction)
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)
    with (
        TokenFile(folder / "train.bin", dtype) as train_ids,
        TokenFile(folder / "val.bin", dtype) as val_ids,
        TokenFile(folder / "val_bytes.bin", BYTE_COUNTS) as val_bytes,
    ):
        train = SplitWriter(tokenizer, train_ids)
        val = SplitWriter(tokenizer, val_ids, val_bytes)
        for document in source.documents():
            parts = divide(document, split, val_fraction)
            train.add(document.name, parts.train)
            val.add(document.name, parts.val)
    meta = Metadata(
        source=_class_name(source),
        source_fingerprint=source.fingerprint(),
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint(),
        val_fraction=val_fraction,
        split=split,
        dtype=dtype.name,
        vocab_size=tokenizer.vocab_size,
        eos=tokenizer.eos,
        train=train.counts(),
        val=val.counts(),
        python=platform.python_version(),
    )
    _require_two_splits(meta)
    with writing(folder.parent):
        (folder / "meta.json").write_text(json.dumps(asdict(meta), indent=2))
        sync(folder / "meta.json")
    return meta


def _require_two_splits(meta: Metadata) -> None:
    for name, counts in (("training", meta.train), ("validation", meta.val)):
        if not counts.tokens:
            total = meta.train.bytes + meta.val.bytes
            raise DataError(
                f"the {name} split is empty: data source {meta.source} has {total} bytes of text "
                f"and data.val_fraction is {meta.val_fraction}; give more text"
            )


def _class_name(source: Source) -> str:
    return f"{type(source).__module__}:{type(source).__qualname__}"

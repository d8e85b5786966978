"""Schemas of the data sources that ship: what every source takes, and what each adds; no torch."""

from __future__ import annotations

from dataclasses import dataclass

from mlpkit.configs.run import option


@dataclass(kw_only=True)
class DataConfig:
    """What every source takes; the rest of a schema is its constructor's own options."""

    name: str  # the registered source
    tokenizer: str = "bytes"  # bytes, bpe, bpe-SIZE, or the path of a tokenizer.json
    val_fraction: float = option(0.05, "share of the text kept for validation", above=0, below=1)


@dataclass(kw_only=True)
class PyStdlibConfig(DataConfig):
    """The source of Python's own standard library; nothing to set."""

    name: str = "pystdlib"


@dataclass(kw_only=True)
class TextConfig(DataConfig):
    """The user's own text."""

    name: str = "text"
    path: str | None = None  # a UTF-8 file, a folder of them, or a glob such as 'notes/**/*.md'


@dataclass(kw_only=True)
class JsonLinesConfig(DataConfig):
    """The user's own text as lines of JSON."""

    name: str = "jsonl"
    path: str | None = None  # a .jsonl or .jsonl.gz file, a folder of them, or a glob
    field: str = "text"  # the field that holds the text


@dataclass(kw_only=True)
class ParquetConfig(DataConfig):
    """The user's own text in Parquet files."""

    name: str = "parquet"
    path: str | None = None  # a .parquet file, a folder of them, or a glob
    column: str = "text"  # the column of texts


@dataclass(kw_only=True)
class HubConfig(DataConfig):
    """A dataset of the library ``datasets``."""

    name: str = "hf"
    path: str | None = None  # its name on the Hugging Face Hub, or a folder
    subset: str | None = None  # its configuration, where it has several
    split: str = "train"  # which of its splits
    column: str = "text"  # the column of texts

"""Schemas of the data sources that ship: what every source takes, and what each adds; no torch."""

from __future__ import annotations

from dataclasses import dataclass

from mlpkit.configs.run import option


@dataclass(kw_only=True)
class DataConfig:
    """What every source takes; the rest of a schema is its constructor's own options."""

    name: str  # the registered source
    tokenizer: str = "bytes"  # "bytes", or the path of a tokenizer.json
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

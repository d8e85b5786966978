"""Text to tokens on disk; batches, which need torch, are in ``mlpkit.data.batches``."""

from mlpkit.data.cache import Dataset, Metadata, default_cache_dir, load_data
from mlpkit.data.packing import SplitCounts
from mlpkit.data.sources import DataError, Document, PyStdlib, Source, TextFiles
from mlpkit.data.tokenizers import (
    ByteTokenizer,
    JsonTokenizer,
    Tokenizer,
    Tokens,
    build_tokenizer,
)

__all__ = [
    "ByteTokenizer",
    "DataError",
    "Dataset",
    "Document",
    "JsonTokenizer",
    "Metadata",
    "PyStdlib",
    "Source",
    "SplitCounts",
    "TextFiles",
    "Tokenizer",
    "Tokens",
    "build_tokenizer",
    "default_cache_dir",
    "load_data",
]

"""Text to tokens on disk; batches, which need torch, are in ``mlpkit.data.batches``."""

from mlpkit.data.bpe import bpe_vocab_size, trained_bpe
from mlpkit.data.cache import Dataset, Metadata, default_cache_dir, load_data
from mlpkit.data.columns import HubDataset, Parquet
from mlpkit.data.packing import SplitCounts
from mlpkit.data.records import JsonLines
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
    "HubDataset",
    "JsonLines",
    "JsonTokenizer",
    "Metadata",
    "Parquet",
    "PyStdlib",
    "Source",
    "SplitCounts",
    "TextFiles",
    "Tokenizer",
    "Tokens",
    "bpe_vocab_size",
    "build_tokenizer",
    "default_cache_dir",
    "load_data",
    "trained_bpe",
]

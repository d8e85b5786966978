"""The data sources that ship."""

from __future__ import annotations

from mlpkit.configs.data import (
    HubConfig,
    JsonLinesConfig,
    ParquetConfig,
    PyStdlibConfig,
    TextConfig,
)
from mlpkit.specs import DataSpec

DATA: tuple[DataSpec, ...] = (
    DataSpec(
        name="pystdlib",
        target="mlpkit.data.sources:PyStdlib",
        summary="The source of Python's standard library, about 11 MB that every interpreter has.",
        config=PyStdlibConfig,
    ),
    DataSpec(
        name="text",
        target="mlpkit.data.sources:TextFiles",
        summary="Your own UTF-8 text: a file, a folder or a glob.",
        config=TextConfig,
    ),
    DataSpec(
        name="jsonl",
        target="mlpkit.data.records:JsonLines",
        summary='Your own lines of JSON, {"text": "…"} as MiniMind has them, also .gz.',
        config=JsonLinesConfig,
    ),
    DataSpec(
        name="parquet",
        target="mlpkit.data.columns:Parquet",
        summary="A column of texts in your own Parquet files; needs pyarrow.",
        config=ParquetConfig,
    ),
    DataSpec(
        name="hf",
        target="mlpkit.data.columns:HubDataset",
        summary="A dataset of the Hugging Face Hub, or one saved to disk; needs datasets.",
        config=HubConfig,
    ),
)

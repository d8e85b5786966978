"""The data sources that ship."""

from __future__ import annotations

from mlpkit.configs.data import PyStdlibConfig, TextConfig
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
)

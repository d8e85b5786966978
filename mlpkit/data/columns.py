"""Sources whose documents are rows of a column: Parquet files, a Hugging Face dataset; no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mlpkit.data.records import utf8
from mlpkit.data.sources import (
    PATH,
    DataError,
    Document,
    NamedFile,
    find_files,
    hash_files,
    with_text,
)

ROWS_AT_A_TIME = 256


class Parquet:
    """Texts of the user's own in a column of Parquet files, a document each row.

    A folder gives every .parquet file below it that is not hidden; a glob gives exactly the files
    it matches. Rows without text are passed over. Needs pyarrow: ``pip install 'mlpkit[hf]'``.

    Args:
        path: The file, folder or glob (``**`` for any depth); ``~`` is the home folder.
        column: The column of texts.

    Raises:
        DataError: No path is given.
    """

    def __init__(self, *, path: str | None = None, column: str = "text") -> None:
        if not path:
            raise DataError(f"data=parquet needs {PATH}")
        self.path = path
        self.column = column

    def documents(self) -> Iterator[Document]:
        """Yields the texts, named by file and row.

        Raises:
            DataError: Nothing is found, a file is not Parquet, or it has no such column of texts.
        """
        asked = f"data.path={self.path}"
        found = (
            Document(f"{file.name}:{row}", _text(value, f"{asked}: {file.path}, row {row}"))
            for file in self.files()
            for row, value in enumerate(self._values(file))
        )
        yield from with_text(found, f"{asked}: no row has text")

    def fingerprint(self) -> str:
        """A sha256 over names and contents, and the column.

        Raises:
            DataError: Nothing is found, or a file cannot be read.
        """
        return f"parquet-{self.column}-{hash_files(self.files(), f'data.path={self.path}')}"

    def files(self) -> list[NamedFile]:
        """The files by name.

        Raises:
            DataError: The path does not exist, or no file under it has such a name.
        """
        return find_files(self.path, lambda file: file.name.endswith(".parquet"), "Parquet")

    def _values(self, file: NamedFile) -> Iterator[Any]:
        """The column's values, a few rows in memory at a time."""
        parquet = library("pyarrow.parquet", "data=parquet")
        try:
            with parquet.ParquetFile(file.path) as opened:
                _require_column(self.column, opened.schema_arrow.names, f"{file.path}")
                for batch in opened.iter_batches(ROWS_AT_A_TIME, columns=[self.column]):
                    yield from batch.column(0).to_pylist()
        except DataError:
            raise
        except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's own are these
            raise DataError(f"data.path={self.path}: {file.path}: {_one_line(error)}") from error


class HubDataset:
    """A dataset of the library ``datasets``: by its name on the Hugging Face Hub, or a folder.

    A folder is what ``save_to_disk`` wrote, or holds files that ``load_dataset`` reads. The Hub's
    are downloaded once, and read from its cache from then on. Needs
    ``pip install 'mlpkit[hf]'``.

    Args:
        path: The name, such as ``roneneldan/TinyStories``, or the folder.
        subset: The dataset's configuration, where it has several; None: its only one.
        split: Which of its splits.
        column: The column of texts.

    Raises:
        DataError: No path is given.
    """

    def __init__(
        self,
        *,
        path: str | None = None,
        subset: str | None = None,
        split: str = "train",
        column: str = "text",
    ) -> None:
        if not path:
            raise DataError("data=hf needs data.path=NAME (of a dataset, or a folder)")
        self.path, self.subset, self.split, self.column = path, subset, split, column
        self._loaded: Any = None

    def documents(self) -> Iterator[Document]:
        """Yields the texts, named by split and row.

        Raises:
            DataError: The dataset cannot be loaded, or has no such column of texts.
        """
        asked = f"data.path={self.path}: {self.split}"
        found = (
            Document(f"{self.split}:{row}", _text(value, f"{asked}, row {row}"))
            for row, value in enumerate(self._column())
        )
        yield from with_text(found, f"{asked}: no row has text")

    def fingerprint(self) -> str:
        """A sha256 over the texts: a dataset's own fingerprint changes with the library.

        Raises:
            DataError: As in documents.
        """
        total = hashlib.sha256()
        for name, text in self.documents():
            total.update(f"{name}\0{len(text)}\0".encode())
            total.update(text)
        return f"hf-{total.hexdigest()}"

    def _column(self) -> Iterator[Any]:
        if self._loaded is None:
            self._loaded = self._load().select_columns([self.column])
        for batch in self._loaded.iter(ROWS_AT_A_TIME):
            yield from batch[self.column]

    def _load(self) -> Any:
        datasets = library("datasets", "data=hf")
        folder = Path(self.path).expanduser()
        saved = any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))
        try:
            if saved:
                loaded = datasets.load_from_disk(str(folder))
                loaded = loaded[self.split] if isinstance(loaded, dict) else loaded
            else:
                name = str(folder) if folder.exists() else self.path
                loaded = datasets.load_dataset(name, self.subset, split=self.split)
        except Exception as error:  # the Hub, the disk and the parsers each have their own
            raise DataError(
                f"data.path={self.path}: the dataset cannot be loaded "
                f"({type(error).__name__}: {_one_line(error)}); check data.path, data.subset and "
                "data.split. Without a network give a folder that save_to_disk wrote, or use "
                "data=parquet or data=jsonl"
            ) from error
        _require_column(self.column, loaded.column_names, f"split {self.split!r} of {self.path}")
        return loaded


def library(name: str, asked: str) -> Any:
    """An optional library.

    Args:
        name: The module.
        asked: What needs it, for the message.

    Raises:
        DataError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise DataError(
            f"{asked} needs the library {package} ({error}): pip install 'mlpkit[hf]', or convert "
            "the text and use data=jsonl"
        ) from error


def _require_column(column: str, known: list[str], where: str) -> None:
    if column not in known:
        raise DataError(
            f"{where} has no column {column!r} (its columns: {', '.join(known) or 'none'}); name "
            "the one of texts with data.column=NAME"
        )


def _text(value: Any, place: str) -> bytes:
    """A value of a column as UTF-8; nothing for null."""
    if value is None:
        return b""
    if not isinstance(value, str):
        raise DataError(
            f"{place} is a {type(value).__name__}, not text; name the column of texts with "
            "data.column=NAME"
        )
    return utf8(value, place)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]

"""A source whose documents are lines of JSON; no torch."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import IO

from mlpkit.data.sources import (
    PATH,
    DataError,
    Document,
    NamedFile,
    find_files,
    hash_files,
    with_text,
)

LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
LONGEST_LINE = 64 * 2**20  # bytes; a file without line breaks would else be one line of any size
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonLines:
    """Texts of the user's own as lines of JSON, MiniMind's ``{"text": "…"}``: a document each.

    A folder gives every .jsonl and .ndjson file below it that is not hidden, also compressed as
    .gz; a glob gives exactly the files it matches. Empty lines and empty texts are passed over; a
    line that cannot be used stops with its file and number. Read line by line.

    Args:
        path: The file, folder or glob (``**`` for any depth); ``~`` is the home folder.
        field: The field that holds the text.

    Raises:
        DataError: No path is given.
    """

    def __init__(self, *, path: str | None = None, field: str = "text") -> None:
        if not path:
            raise DataError(f"data=jsonl needs {PATH}")
        self.path = path
        self.field = field

    def documents(self) -> Iterator[Document]:
        """Yields the texts, named by file and line.

        Raises:
            DataError: Nothing is found, a file cannot be read, or a line is not such an object.
        """
        asked = f"data.path={self.path}"
        found = (
            Document(f"{file.name}:{number}", self._text(line, f"{asked}: {file.path}:{number}"))
            for file in self.files()
            for number, line in self._lines(file)
        )
        yield from with_text(found, f"{asked}: no line has text")

    def fingerprint(self) -> str:
        """A sha256 over names and contents, and the field.

        Raises:
            DataError: Nothing is found, or a file cannot be read.
        """
        return f"jsonl-{self.field}-{hash_files(self.files(), f'data.path={self.path}')}"

    def files(self) -> list[NamedFile]:
        """The files by name.

        Raises:
            DataError: The path does not exist, or no file under it has such a name.
        """
        return find_files(self.path, lambda file: file.name.lower().endswith(LINES), "JSON lines")

    def _lines(self, file: NamedFile) -> Iterator[tuple[int, bytes]]:
        packed = file.name.lower().endswith(".gz")
        number = 0
        try:
            with gzip.open(file.path) if packed else file.path.open("rb") as stream:
                while line := _next_line(stream):
                    number += 1
                    if len(line) > LONGEST_LINE:
                        raise DataError(
                            f"data.path={self.path}: {file.path}:{number} is longer than "
                            f"{LONGEST_LINE // 2**20} MiB; a JSON-lines file has one object a line"
                        )
                    line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
                    if line.strip():
                        yield number, line
        except (OSError, EOFError, zlib.error) as error:  # what gzip raises for a damaged file
            raise DataError(
                f"data.path={self.path}: {file.path} cannot be read after line {number}: {error}"
            ) from error

    def _text(self, line: bytes, place: str) -> bytes:
        """The text of a line as UTF-8."""
        try:
            record = json.loads(line.decode())
        except UnicodeDecodeError as error:
            byte = line[error.start]
            raise DataError(
                f"{place} is not UTF-8 at byte {error.start} (0x{byte:02x}); convert the file"
            ) from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place} is not JSON ({error}); mend or remove the line") from error
        if not isinstance(record, dict):
            raise DataError(
                f'{place} is a {type(record).__name__}; a line is an object such as {{"text": "…"}}'
            )
        if not isinstance(text := record.get(self.field), str):
            fields = ", ".join(map(repr, list(record)[:8])) or "none"
            found = (
                "no field" if self.field not in record else f"{type(text).__name__} in the field"
            )
            raise DataError(
                f"{place} has {found} {self.field!r} (its fields: {fields}); name the one that "
                "holds the text with data.field=NAME"
            )
        return utf8(text, place)


def _next_line(stream: IO[bytes] | gzip.GzipFile) -> bytes:
    return stream.readline(LONGEST_LINE + 1)


def utf8(text: str, place: str) -> bytes:
    """A text as UTF-8.

    Args:
        text: The text.
        place: Where it stands, for the message.

    Raises:
        DataError: It has half a character, as JSON can spell it.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # JSON can spell one half of a surrogate pair
        raise DataError(
            f"{place} has half a character (U+{ord(text[error.start]):04X}), which UTF-8 cannot "
            "write; mend or remove it"
        ) from error

"""Where documents come from: the contract of a data source, and the sources that ship; no torch."""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import platform
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

logger = logging.getLogger(__name__)

# Tests, what pip installed, and what differs between builds of one Python version. topics.py is a
# generated manual of 0.8 MB, which the split would make the larger part of validation.
STDLIB_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
)
STDLIB_SKIPPED_FILES = ("_sysconfigdata", "sitecustomize", "usercustomize", "pydoc_data/topics")
SNIFFED_BYTES = 8192
PATH = "data.path=FILE (a file, a folder or a glob)"  # what every source of the user's files needs


class DataError(ValueError):
    """Data that cannot be trained on, or a token cache that cannot be written."""

    exit_code = 2


class Document(NamedTuple):
    """One document.

    Args:
        name: A relative path that stays the same between runs and machines: it decides whether
            the document is trained on or validated on.
        text: Its bytes, UTF-8 unless only the ``bytes`` tokenizer is to read them.
    """

    name: str
    text: bytes


class Source(Protocol):
    """What a data source is: a class with keyword-only plain options and two methods."""

    def documents(self) -> Iterator[Document]:
        """Yields the documents, in the same order every time; it may be called more than once."""

    def fingerprint(self) -> str:
        """A hash that changes when the documents do, found without tokenizing them."""


class NamedFile(NamedTuple):
    """A file of a source and the stable name of its document."""

    name: str
    path: Path


class PyStdlib:
    """The ``.py`` files of the running interpreter's standard library, without its tests.

    About 11 MB in 700 files, of which 0.4 to 0.6 MB are validated on by default; a little different
    in every Python version. In a virtual environment
    it is the library of the Python underneath.
    """

    def documents(self) -> Iterator[Document]:
        """Yields the files by name, with paths relative to the library's folder."""
        for name, path in stdlib_files(Path(sysconfig.get_path("stdlib"))):
            yield Document(name, read_file(path, "data=pystdlib"))

    def fingerprint(self) -> str:
        """The Python version and a sha256 over names and contents, in about 0.1 s."""
        files = stdlib_files(Path(sysconfig.get_path("stdlib")))
        return f"python-{platform.python_version()}-{hash_files(files, 'data=pystdlib')}"


class TextFiles:
    """Text of the user's own: a file, a folder or a glob.

    A folder gives every file below it that is neither hidden nor binary (a NUL byte in its first
    8 KiB); a glob gives exactly the files it matches. Everything read must be UTF-8. Empty files
    are passed over.

    Args:
        path: The file, folder or glob (``**`` for any depth); ``~`` is the home folder.

    Raises:
        DataError: No path is given.
    """

    def __init__(self, *, path: str | None = None) -> None:
        if not path:
            raise DataError(f"data=text needs {PATH}")
        self.path = path

    def documents(self) -> Iterator[Document]:
        """Yields the files by name.

        Raises:
            DataError: Nothing is found, a file cannot be read or is not UTF-8, or all are empty.
        """
        found = (Document(name, self._read(path)) for name, path in self.files())
        yield from with_text(found, f"data.path={self.path}: empty (0 bytes of text)")

    def fingerprint(self) -> str:
        """A sha256 over names and contents; where the files lie does not matter.

        Raises:
            DataError: Nothing is found, or a file cannot be read.
        """
        return f"text-{hash_files(self.files(), f'data.path={self.path}')}"

    def files(self) -> list[NamedFile]:
        """The files by name.

        Raises:
            DataError: The path does not exist, or nothing under it is text.
        """
        return find_files(self.path, lambda file: not is_binary(file.path), "text")

    def _read(self, path: Path) -> bytes:
        text = read_file(path, f"data.path={self.path}")
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"data.path={self.path}: {path} is not UTF-8 at byte {error.start} "
                f"(0x{text[error.start]:02x}); convert the file, or leave it out with a glob such "
                "as data.path='folder/**/*.txt'"
            ) from error
        return text


def with_text(documents: Iterable[Document], nothing: str) -> Iterator[Document]:
    """The documents that are not empty, of which there must be one.

    Args:
        documents: The documents.
        nothing: What to say of them if they are.

    Raises:
        DataError: All are empty.
    """
    found = False
    for document in documents:
        if document.text:
            found = True
            yield document
    if not found:
        raise DataError(f"{nothing}; give a source with some")


def find_files(path: str, wanted: Callable[[NamedFile], bool], what: str) -> list[NamedFile]:
    """The files that ``data.path`` means: itself, those below a folder, or those of a glob.

    Args:
        path: A file, a folder or a glob (``**`` for any depth); ``~`` is the home folder.
        wanted: Which of a folder's files, hidden ones left out, are taken; a file and the matches
            of a glob are taken whatever they are.
        what: What those are called in messages, e.g. "text".

    Returns:
        At least one, sorted by name.

    Raises:
        DataError: The path does not exist, or nothing under it is wanted.
    """
    place = Path(path).expanduser()
    if place.is_file():
        return [NamedFile(place.name, place)]
    if place.is_dir():
        return _in_folder(path, place, wanted, what)
    if place.exists():
        raise DataError(f"data.path={path}: neither a file nor a folder")
    if not glob.has_magic(str(place)):
        raise DataError(f"data.path={path}: no such file or folder (looked from {Path.cwd()})")
    matches = [Path(match) for match in glob.glob(str(place), recursive=True)]
    fixed = [part for part in place.parents if not glob.has_magic(str(part))]
    files = [NamedFile(p.relative_to(fixed[0]).as_posix(), p) for p in matches if p.is_file()]
    if not files:
        raise DataError(f"data.path={path}: the glob matches no file (looked from {Path.cwd()})")
    return sorted(set(files))


def _in_folder(
    path: str, root: Path, wanted: Callable[[NamedFile], bool], what: str
) -> list[NamedFile]:
    found = [file for file in walk(root) if not is_hidden(file.name)]
    taken = [file for file in found if wanted(file)]
    if not taken:
        raise DataError(
            f"data.path={path}: no {what} files in this folder ({len(found)} binary or other "
            "files, hidden ones not counted)"
        )
    if len(taken) < len(found):
        logger.info("%s: %d files passed over, not %s", root, len(found) - len(taken), what)
    return taken


def stdlib_files(root: Path) -> list[NamedFile]:
    """The ``.py`` files of a standard library by name, without tests and installed packages.

    Raises:
        DataError: There are none, as in an interpreter with its library in a zip file.
    """
    files = [
        file
        for file in walk(root, STDLIB_SKIPPED_FOLDERS)
        if file.name.endswith(".py") and not file.name.startswith(STDLIB_SKIPPED_FILES)
    ]
    if not files:
        raise DataError(
            f"data=pystdlib: this Python has no .py files in {root}; use data=text data.path=FILE"
        )
    return files


def walk(root: Path, skipped: Iterable[str] = ()) -> list[NamedFile]:
    """The regular files below a folder, named by relative path and sorted by it.

    Args:
        root: The folder.
        skipped: Names of folders that are not entered.
    """
    skipped = frozenset(skipped)
    files = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in skipped]
        for path in (Path(folder, name) for name in names):
            if path.is_file():  # no pipes, sockets or broken links
                files.append(NamedFile(path.relative_to(root).as_posix(), path))
    return sorted(files)


def hash_files(files: Iterable[NamedFile], asked: str) -> str:
    """The sha256 of names, sizes and contents.

    Args:
        files: The files.
        asked: What the configuration calls them, for the message.

    Raises:
        DataError: One cannot be read.
    """
    total = hashlib.sha256()
    for name, path in files:
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            size = path.stat().st_size
        except OSError as error:
            raise _unreadable(path, asked, error) from error
        total.update(f"{name}\0{size}\0{content}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def read_file(path: Path, asked: str) -> bytes:
    """The content of a file.

    Args:
        path: The file.
        asked: What the configuration calls it, for the message.

    Raises:
        DataError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, asked, error) from error


def _unreadable(path: Path, asked: str, error: OSError) -> DataError:
    return DataError(f"{asked}: {path} cannot be read ({error.strerror}); check that file")


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder on the way to it, has a name that starts with a dot."""
    return any(part.startswith(".") for part in name.split("/"))


def is_binary(path: Path) -> bool:
    """Whether a file has a NUL byte near its start, or cannot be opened."""
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(SNIFFED_BYTES)
    except OSError:
        return True

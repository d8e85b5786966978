"""Which text is trained on and which is validated on; no torch."""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple

from mlpkit.data.sources import DataError, Document, Source

Split = Literal["file", "tail"]


class Parts(NamedTuple):
    """A document's text, divided; one of them may be empty."""

    train: bytes
    val: bytes


def in_validation(name: str, val_fraction: float) -> bool:
    """Whether a document of this name is validated on, when the split is by file.

    Args:
        name: The document's name.
        val_fraction: The share of names for which it is true, between 0 and 1.
    """
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") < val_fraction * 2**64


def choose_split(source: Source, val_fraction: float) -> Split:
    """How a source is divided: whole files, or the end of each.

    By file, unless that would give validation less than half or more than twice its share of the
    bytes, as with a single file or a handful. Then the end of each document is validated on.

    Args:
        source: The source; its documents are read once.
        val_fraction: The share of validation, between 0 and 1.

    Raises:
        DataError: The source has no text.
    """
    total = val = 0
    for name, text in source.documents():
        total += len(text)
        val += len(text) if in_validation(name, val_fraction) else 0
    if not total:
        raise DataError(f"data source {type(source).__name__} gave no text (0 bytes)")
    # Without training text nothing can be learned, however large the fraction.
    enough = val_fraction / 2 <= val / total <= val_fraction * 2 and val < total
    return "file" if enough else "tail"


def divide(document: Document, split: Split, val_fraction: float) -> Parts:
    """The training and the validation part of a document.

    Args:
        document: The document.
        split: What ``choose_split`` said for its source.
        val_fraction: The share of validation, between 0 and 1.
    """
    name, text = document
    if split == "tail":
        end = tail_start(text, val_fraction)
        return Parts(text[:end], text[end:])
    return Parts(b"", text) if in_validation(name, val_fraction) else Parts(text, b"")


def tail_start(text: bytes, val_fraction: float) -> int:
    """Where the last part of a text starts: at the line nearest to its share.

    When no line starts within the share's own length of that place, as in a text without line
    breaks, it is the place itself, moved back to the start of its UTF-8 character.

    Args:
        text: The text.
        val_fraction: The share of the last part, between 0 and 1.
    """
    place = round(len(text) * (1 - val_fraction))
    lines = [text.rfind(b"\n", 0, place) + 1, text.find(b"\n", place) + 1]
    near = [line for line in lines if 0 < line < len(text)]
    line = min(near, key=lambda line: abs(line - place), default=0)
    if line and abs(line - place) <= len(text) - place:
        return line
    while 0 < place < len(text) and text[place] & 0xC0 == 0x80:  # a continuation byte
        place -= 1
    return place

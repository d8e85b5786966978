"""Text to ids and back, with the number of text bytes that each id stands for; no torch."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlpkit.data.sources import DataError
from mlpkit.registry import suggestion

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

Ids = npt.NDArray[np.int64]
NAMES = ("bytes", "bpe")
# What the families call the end of a document, tried in this order when no
# tokenizer_config.json beside the file says it.
EOS_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")


class Tokens(NamedTuple):
    """A tokenized text.

    Args:
        ids: The token ids, (N,).
        num_bytes: How many bytes of the text each token stands for, (N,); every byte belongs to
            exactly one token, so that they sum to the length of the text.
    """

    ids: Ids
    num_bytes: Ids


class Tokenizer(ABC):
    """Text to ids and back.

    Attributes:
        name: What the configuration called it.
        vocab_size: Ids are below it.
        eos: The id between documents, standing for no byte; None: documents simply follow.
        file: The tokenizer.json that it was read from; None: there is none.
    """

    name: str
    vocab_size: int
    eos: int | None
    file: Path | None = None

    @abstractmethod
    def tokenize(self, text: bytes) -> Tokens:
        """Ids of a text, and the bytes each stands for, without an end-of-document id."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> bytes:
        """The text of ids; ids that stand for no text, such as ``eos``, give nothing."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that changes when ids do."""

    def encode(self, text: bytes) -> Ids:
        """Ids of a text, (N,), without an end-of-document id."""
        return self.tokenize(text).ids


class ByteTokenizer(Tokenizer):
    """Each byte is its own id, 0 to 255; id 256 ends a document."""

    def __init__(self) -> None:
        self.name = "bytes"
        self.vocab_size = 257
        self.eos = 256

    def tokenize(self, text: bytes) -> Tokens:
        """One token per byte."""
        ids = np.frombuffer(text, np.uint8).astype(np.int64)
        return Tokens(ids, np.ones_like(ids))

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of ids below 256."""
        return bytes(i for i in map(int, ids) if i < 256)

    def fingerprint(self) -> str:
        """A constant."""
        return "bytes-1"


class JsonTokenizer(Tokenizer):
    """A ``tokenizer.json`` of the library ``tokenizers``.

    Truncation, padding and added start and end tokens are off, and the text of a special token is
    read as ordinary text. The end-of-document id is the ``eos_token`` of a
    ``tokenizer_config.json`` beside the file, else the first of ``EOS_TOKENS`` in the vocabulary.

    Args:
        path: The file, or the folder that holds it.

    Raises:
        DataError: The file is missing or broken, or the library is not installed.
    """

    def __init__(self, *, path: str) -> None:
        self.name = path
        file = Path(path).expanduser()
        self.file = file = file / "tokenizer.json" if file.is_dir() else file
        content = _read(file, path)
        self._library = _load(content, path)
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1  # ids may have gaps
        self.eos = _find_eos(vocabulary, file.with_name("tokenizer_config.json"))
        self._sha256 = hashlib.sha256(content).hexdigest()
        self._lengths = _byte_level_lengths(self._library, json.loads(content), vocabulary)

    def tokenize(self, text: bytes) -> Tokens:
        """Ids of UTF-8 text.

        With a byte-level vocabulary the bytes of a token are those it is made of, also where a
        character is split. Where the tokens do not spell the text (a normaliser, an unknown word,
        dropped spaces) they come from the library's offsets.

        Raises:
            DataError: The text is not UTF-8.
        """
        try:
            characters = text.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"tokenizer {self.name!r} reads UTF-8 only: byte {error.start} is "
                f"0x{text[error.start]:02x}; use data.tokenizer=bytes"
            ) from error
        encoding = self._library.encode(characters, add_special_tokens=False)
        ids = np.asarray(encoding.ids, dtype=np.int64)
        if self._lengths is not None and self._lengths[ids].sum() == len(text):
            return Tokens(ids, self._lengths[ids])
        starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
        return Tokens(ids, bytes_between_starts(characters, starts))

    def decode(self, ids: Iterable[int]) -> bytes:
        """The text of ids, as UTF-8; a character cut short becomes U+FFFD."""
        return str(self._library.decode([int(i) for i in ids])).encode()

    def fingerprint(self) -> str:
        """The sha256 of the file, and the end-of-document id."""
        return f"json-{self._sha256}-{self.eos}"


def build_tokenizer(name: str) -> Tokenizer:
    """A tokenizer by name or path.

    Args:
        name: ``"bytes"``, or the path of a ``tokenizer.json`` or of its folder. ``"bpe"`` is made
            from a run's data: ``mlpkit.data.trained_bpe``.

    Raises:
        DataError: The name is unknown, or the file cannot be used.
    """
    if name == "bytes":
        return ByteTokenizer()
    if name.endswith(".json") or "/" in name or "\\" in name or Path(name).exists():
        return JsonTokenizer(path=name)
    if name.partition("-")[0] == "bpe":
        raise DataError(
            f"tokenizer {name!r} is trained on a run's data, and is kept beside its weights as "
            "tokenizer.json; give the path of that file"
        )
    raise DataError(
        f"unknown tokenizer {name!r}{suggestion(name, NAMES)} "
        f"(known: {', '.join(NAMES)}, bpe-SIZE, or the path of a tokenizer.json)"
    )


def bytes_between_starts(text: str, starts: Ids) -> Ids:
    """How many UTF-8 bytes each token stands for, from the character at which it starts.

    A token has the bytes up to the next token's start; the first also has what comes before it.
    Tokens that start at the same character, as the byte tokens of one emoji do, share its bytes
    evenly, the remainder with the last.

    Args:
        text: The text.
        starts: Each token's first character, (N,).

    Returns:
        Counts (N,) that sum to the text's length in bytes.
    """
    if not len(starts):
        return starts
    widths = [len(character.encode()) for character in text]
    offsets = np.concatenate([[0], np.cumsum(widths, dtype=np.int64)])
    firsts = offsets[np.maximum.accumulate(starts)]
    firsts[firsts == firsts[0]] = 0
    groups, sizes = np.unique(firsts, return_counts=True)
    totals = np.diff(np.append(groups, offsets[-1]))
    counts = np.repeat(totals // sizes, sizes)
    counts[np.cumsum(sizes) - 1] += totals % sizes
    return counts


def _read(file: Path, asked: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(
            f"data.tokenizer={asked}: {file} cannot be read ({error.strerror}); give the path of a "
            "tokenizer.json, or data.tokenizer=bytes"
        ) from error


def tokenizers_library(asked: str) -> Any:
    """The library ``tokenizers``, the optional extra "text".

    Args:
        asked: The tokenizer that needs it, for the message.

    Raises:
        DataError: It is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise DataError(
            f"data.tokenizer={asked} needs the library tokenizers: pip install 'mlpkit[text]', or "
            "use data.tokenizer=bytes"
        ) from error
    return tokenizers


def _load(content: bytes, asked: str) -> LibraryTokenizer:
    try:
        loaded: LibraryTokenizer = tokenizers_library(asked).Tokenizer.from_str(content.decode())
    except DataError:
        raise
    except Exception as error:  # the library raises bare Exception for what it cannot parse
        raise DataError(
            f"data.tokenizer={asked}: not a tokenizer.json of the library tokenizers ({error})"
        ) from error
    loaded.no_truncation()  # a file saved for inference may cut every document at its limit
    loaded.no_padding()
    loaded.encode_special_tokens = True
    return loaded


def _find_eos(vocabulary: dict[str, int], config: Path) -> int | None:
    try:
        said = json.loads(config.read_bytes()).get("eos_token")
    except (OSError, ValueError, AttributeError):
        said = None
    said = said.get("content") if isinstance(said, dict) else said
    for token in (said, *EOS_TOKENS):
        if token in vocabulary:
            return vocabulary[token]
    return None


def _byte_level_lengths(
    library: LibraryTokenizer, content: dict[str, Any], vocabulary: dict[str, int]
) -> Ids | None:
    """Bytes by id when the vocabulary is byte-level (one character a byte), else None."""
    if not _mentions_byte_level(content.get("decoder")):
        return None
    added = {entry.content for entry in library.get_added_tokens_decoder().values()}
    lengths = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    for token, index in vocabulary.items():
        lengths[index] = len(token.encode()) if token in added else len(token)
    return lengths


def _mentions_byte_level(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    parts = decoder.get("decoders", [])
    return decoder.get("type") == "ByteLevel" or any(map(_mentions_byte_level, parts))

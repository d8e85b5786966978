"""The tokenizer's files of a folder: checked when they are read, written for AutoTokenizer."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlpkit.convert.folders import TOKENIZER_FILES, ConversionError, inside, read_json
from mlpkit.data import build_tokenizer
from mlpkit.data.sources import DataError
from mlpkit.data.tokenizers import EOS_TOKENS

TOKENIZER, TOKENIZER_CONFIG = TOKENIZER_FILES
CLASS = "PreTrainedTokenizerFast"
END = EOS_TOKENS[0]
# The bytes that stand for themselves in a byte-level vocabulary; the others are written as the
# characters from 256 on, in order, so that no token holds a space or a control character.
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def byte_characters() -> list[str]:
    """The character that stands for each byte, 0 to 255, in GPT-2's byte-level vocabularies."""
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in PRINTABLE else chr(next(others)) for byte in range(0x100)]


def byte_tokenizer() -> dict[str, bytes]:
    """The tokenizer ``bytes`` as files: the id of a byte is the byte, 256 ends a document.

    A byte-level vocabulary without merges leaves each byte alone, whatever the language.
    """
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 256,
                "content": END,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": False},
        "post_processor": None,
        "decoder": {**level, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: byte for byte, character in enumerate(byte_characters())},
            "merges": [],
        },
    }
    said = {"tokenizer_class": CLASS, "eos_token": END, "clean_up_tokenization_spaces": False}
    return {TOKENIZER: _json(content), TOKENIZER_CONFIG: _json(said)}


def copied_tokenizer(folder: Path, eos: int | None) -> dict[str, bytes]:
    """A run's own tokenizer files, with what AutoTokenizer needs to know beside them.

    Args:
        folder: The run directory.
        eos: The id that ends a document; None: there is none.

    Raises:
        ConversionError: They are damaged.
    """
    content = read_json(folder / TOKENIZER, ConversionError)
    said: dict[str, Any] = {"tokenizer_class": CLASS, "clean_up_tokenization_spaces": False}
    if eos is not None and (token := _token(content, eos)):
        said["eos_token"] = token
    if (folder / TOKENIZER_CONFIG).is_file():
        said |= read_json(folder / TOKENIZER_CONFIG, ConversionError)
    return {TOKENIZER: (folder / TOKENIZER).read_bytes(), TOKENIZER_CONFIG: _json(said)}


def found_files(place: Path, vocab_size: int) -> tuple[Path, ...]:
    """The ``tokenizer.json`` of a place, and what stands beside it; empty: there is none.

    Args:
        place: A folder, or the file.
        vocab_size: Rows of the embedding, which its ids stay below.

    Raises:
        ConversionError: It is damaged, or has more ids.
    """
    folder = place.parent if place.is_file() else place
    files = [inside(folder, name) for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not files or files[0].name != TOKENIZER_FILES[0]:
        return ()
    if find_spec("tokenizers") is None:  # the optional extra "text": it is copied unread
        return tuple(files)
    try:
        size = build_tokenizer(str(files[0])).vocab_size
    except DataError as error:
        raise ConversionError(f"{files[0]} cannot be used: {error}") from error
    if size > vocab_size:
        raise ConversionError(
            f"{files[0]} has ids up to {size - 1}, and the embedding has {vocab_size} rows; give "
            "the model's own with --tokenizer PATH"
        )
    return tuple(files)


def _token(content: dict[str, Any], index: int) -> str | None:
    """The text of a token's id in a tokenizer.json."""
    for added in content.get("added_tokens") or ():
        if added.get("id") == index:
            return str(added["content"])
    vocabulary = (content.get("model") or {}).get("vocab")
    if isinstance(vocabulary, dict):
        return next((token for token, number in vocabulary.items() if number == index), None)
    return None


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()

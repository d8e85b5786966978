"""The categories of Python source, by Python's own tokenizer; no torch."""

from __future__ import annotations

import io
import keyword
import re
import tokenize
import warnings
from collections.abc import Iterator

import numpy as np

from mlpkit.data.labels.text import CODE, Labels, lexed

QUOTES = r"\"\"\"(?:\\.|[^\\])*?(?:\"\"\"|\Z)|'''(?:\\.|[^\\])*?(?:'''|\Z)"
LINE_QUOTES = r"\"(?:\\.|[^\"\\\r\n])*\"?|'(?:\\.|[^'\\\r\n])*'?"
PYTHON_RULE = re.compile(
    rf"(?P<newline>[\r\n]+)|(?P<space>[^\S\r\n]+)|(?P<comment>\#[^\r\n]*)"
    rf"|(?P<string>(?i:[bru]|f|br|rb|fr|rf)?(?:{QUOTES}|{LINE_QUOTES}))"
    r"|(?P<number>\.?\d(?:[eE][+-]|[\w.])*)|(?P<word>[^\W\d]\w*)|(?P<rest>.)",
    re.DOTALL,
)
TOKENS = {
    tokenize.NAME: "name",
    tokenize.NUMBER: "number",
    tokenize.STRING: "string",
    tokenize.COMMENT: "comment",
    tokenize.OP: "operator",
}


def python_labels(text: bytes) -> Labels:
    """The category of each byte of Python source, by Python's own ``tokenize``.

    keyword, name (soft keywords such as match too), number, string (an f-string as a whole, white
    space inside too), comment, operator, space, newline; a line's continuing backslash and a
    byte-order mark are other. Source that ``tokenize`` refuses is labelled by a lexical rule:
    the same categories from regular expressions, an unclosed quote ending with its line, an
    unclosed triple quote with the text.

    Args:
        text: The source, in the encoding that it declares.

    Returns:
        Indices into ``CATEGORIES``, one a byte.
    """
    try:
        return _tokenized(text)
    except (SyntaxError, tokenize.TokenError, ValueError, RecursionError):
        return lexed(text, PYTHON_RULE, _python_kind)


def _tokenized(text: bytes) -> Labels:
    """Labels by ``tokenize``.

    Raises:
        SyntaxError: It refuses the source; so do the others that it raises.
        ValueError: A token's text is not what the source has at its place.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(text).readline)
    mark = 3 if encoding == "utf-8-sig" else 0
    encoding = "utf-8" if mark else encoding
    raw = list(io.BytesIO(text[mark:]))
    lines = [line.decode(encoding) for line in raw]
    starts = np.cumsum([mark, *map(len, raw)], dtype=np.int64)

    def place(row: int, column: int) -> int:
        if row > len(lines):
            return len(text)
        line = lines[row - 1]
        width = column if line.isascii() else len(line[:column].encode(encoding))
        return int(starts[row - 1]) + width

    labels = _white(text)
    for kind, start, end, found in _python_tokens(text):
        first, last = place(*start), place(*end)
        if found and text[first:last] != found.encode(encoding):
            raise ValueError(f"tokenize gave {found!r} for {text[first:last]!r}")
        labels[first:last] = CODE[kind]
    return labels


def _white(text: bytes) -> Labels:
    """Every byte as space, newline or other."""
    table = np.full(256, CODE["other"], np.uint8)
    table[list(b" \t\f\v")] = CODE["space"]
    table[list(b"\r\n")] = CODE["newline"]
    return table[np.frombuffer(text, np.uint8)]


def _python_tokens(text: bytes) -> Iterator[tuple[str, tuple[int, int], tuple[int, int], str]]:
    """Category, start, end and text of each token; an f-string is one, without its text.

    Python 3.12 began to tell the parts of an f-string apart. Labels do not depend on it.
    """
    depth, opened = 0, (0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the style of somebody's source
        for token in tokenize.tokenize(io.BytesIO(text).readline):
            name = tokenize.tok_name[token.type]
            if token.type == tokenize.ERRORTOKEN:
                raise SyntaxError(f"line {token.start[0]}: {token.string!r}")
            if name.endswith("STRING_START"):
                opened, depth = (opened if depth else token.start), depth + 1
            elif name.endswith("STRING_END"):
                depth -= 1
                if not depth:
                    yield "string", opened, token.end, ""
            elif token.type in TOKENS and not depth:
                kind = TOKENS[token.type]
                is_keyword = kind == "name" and keyword.iskeyword(token.string)
                yield ("keyword" if is_keyword else kind), token.start, token.end, token.string


def _python_kind(found: str) -> str:
    if found[0].isidentifier():
        return "keyword" if keyword.iskeyword(found) else "name"
    return "operator" if found in "()[]{}<>=!+-*/%&|^~,.:;@" else "other"

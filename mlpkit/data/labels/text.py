"""A lexical rule for the categories of any text; no torch."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.uint8]

# Files that were written keep their meaning: names are added at the end and never renamed.
CATEGORIES = (
    *("space", "newline", "other", "number"),  # of any text
    *("keyword", "name", "string", "comment", "operator"),  # of Python
    *("function_word", "word", "capitalised", "cjk", "punctuation"),  # of all else
)
END = "end"  # an end-of-document token
WHITE = ("space", "newline")
CODE = {name: index for index, name in enumerate(CATEGORIES)}

ENGLISH = """
    a about after all also an and any are as at be because been before but by can could did do
    does for from had has have he her him his how i if in into is it its may me might more
    most must my no not of on one or other our shall she should so some such than that the
    their them then there these they this those to under up us was we were what when where
    which while who will with would you your
"""
FUNCTION_WORDS = frozenset(ENGLISH.split())
CJK = (
    "\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
LETTER = rf"(?:(?![{CJK}])[^\W\d_])"
TEXT_RULE = re.compile(
    rf"(?P<newline>[\r\n]+)|(?P<space>[^\S\r\n]+)|(?P<number>\d+)|(?P<cjk>[{CJK}]+)"
    rf"|(?P<word>{LETTER}+(?:['’]{LETTER}+)*)|(?P<rest>.)",
    re.DOTALL,
)


def text_labels(text: bytes) -> Labels:
    """The category of each byte of any text, by a lexical rule.

    number (a run of digits), cjk (Han, kana, hangul), function_word (of a list of English ones,
    also capitalised), capitalised (every letter of a word that starts with a capital), word (any
    other), newline, space, punctuation (symbols and emoji too), other (control characters and
    what is not UTF-8). A combining mark is as the character it belongs to.

    Args:
        text: The text, UTF-8 or not.

    Returns:
        Indices into ``CATEGORIES``, one a byte.
    """
    return lexed(text, TEXT_RULE, _text_kind)


def lexed(text: bytes, rule: re.Pattern[str], kind: Callable[[str], str]) -> Labels:
    """The category of each byte by a regular expression that matches everywhere.

    Args:
        text: UTF-8; any other byte is a character of its own.
        rule: Its groups are categories, or "word" and "rest", of which ``kind`` decides.
        kind: The category of what was found; "" for that of the character before.

    Returns:
        Indices into ``CATEGORIES``, one a byte.
    """
    characters = text.decode("utf-8", "surrogateescape")
    kinds, lengths = [CODE["other"]], [0]
    for match in rule.finditer(characters):
        group, found = str(match.lastgroup), match.group()
        name = kind(found) if group in ("word", "rest") else group
        kinds.append(CODE[name] if name else kinds[-1])  # a mark is as what it marks
        lengths.append(
            len(found) if found.isascii() else len(found.encode("utf-8", "surrogateescape"))
        )
    return np.repeat(np.array(kinds, np.uint8), lengths)


def _text_kind(found: str) -> str:
    if not found[0].isalpha():
        general = unicodedata.category(found[0])  # "¼A" matches as a word
        if general[0] == "M":
            return ""
        return "punctuation" if general[0] in "PS" else "other"
    if found.lower() in FUNCTION_WORDS:
        return "function_word"
    return "capitalised" if found[0].isupper() or found[0].istitle() else "word"

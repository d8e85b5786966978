"""What the report says, in English and in Chinese."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from string import Formatter
from typing import Any

from mlpkit.report.records import Statement
from mlpkit.report.words.columns import COLUMNS
from mlpkit.report.words.numbers import FORMATS
from mlpkit.report.words.page import PAGE
from mlpkit.report.words.sentences import SENTENCES, TERMS

LANGUAGES = ("en", "zh")
MOST_ITEMS = 10  # of a list in a sentence; the table has them all
WORDS = PAGE | COLUMNS  # key → (English, Chinese); what stands in braces is filled in


class Writer(Formatter):
    """Fills templates; None is a dash, a list is joined, and a format is one of ``FORMATS``.

    Args:
        lang: "en" or "zh".
    """

    def __init__(self, lang: str) -> None:
        self.lang = lang

    def format_field(self, value: Any, format_spec: str) -> str:
        """A value as its template wants it."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "–"
        if isinstance(value, list | tuple | set | frozenset):
            joiner = "、" if self.lang == "zh" else ", "
            written = [self.format_field(item, format_spec) for item in value]
            if len(written) <= MOST_ITEMS + 2:
                return joiner.join(written)
            return f"{joiner.join(written[:MOST_ITEMS])} … +{len(written) - MOST_ITEMS}"
        if isinstance(value, Mapping):  # what goes with each name stands behind it
            pairs = ((self.format_field(k, format_spec), item) for k, item in value.items())
            return self.format_field([f"{k} ({self.format_field(v, '')})" for k, v in pairs], "")
        if format_spec == "brief":  # the start of a hash is enough to tell two apart
            return re.sub(r"[0-9a-f]{16,}", lambda found: found[0][:8], str(value))
        if format_spec == "term":
            words = TERMS.get(str(value), (str(value), str(value)))
            return words[LANGUAGES.index(self.lang)]
        if format_spec == "others":  # a clause that is not needed when there are none
            return word("others", self.lang, count=value) if value else ""
        if not isinstance(value, int | float) or isinstance(value, bool) or not format_spec:
            return str(value)
        return FORMATS[format_spec](value)


def fill(template: str, values: Mapping[str, Any], lang: str) -> str:
    """A template with its values.

    Args:
        template: With names in braces; ``{sd:score}`` has the format "score".
        values: A value for every name.
        lang: "en" or "zh".

    Raises:
        KeyError: A name has no value.
    """
    return Writer(lang).vformat(template, (), values)


def word(key: str, lang: str, **values: Any) -> str:
    """A text of the page.

    Args:
        key: In ``WORDS``.
        lang: "en" or "zh".
        values: What stands in its braces.
    """
    return fill(WORDS[key][LANGUAGES.index(lang)], values, lang)


def both(key: str, **values: Any) -> dict[str, str]:
    """A text of the page in both languages, as charts take it."""
    return {lang: word(key, lang, **values) for lang in LANGUAGES}


def sentence(statement: Statement, lang: str) -> str:
    """A statement in words.

    Args:
        statement: What to say.
        lang: "en" or "zh".
    """
    template = SENTENCES[statement.key][LANGUAGES.index(lang)]
    return fill(template, statement.values, lang)

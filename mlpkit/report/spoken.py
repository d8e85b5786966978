"""Texts and statements in both languages, as markup of which the page shows one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from mlpkit.report.records import Comparison, Statement
from mlpkit.report.words import LANGUAGES, both, sentence, word


def in_both(spoken: Mapping[str, str]) -> Markup:
    """A text in both languages, of which the page shows one.

    Args:
        spoken: The language to the text.
    """
    if len(set(spoken.values())) == 1:
        return escape(spoken["en"])
    spans = (Markup('<span lang="{}">{}</span>').format(lang, spoken[lang]) for lang in LANGUAGES)
    return Markup("").join(spans)


def text(key: str, **values: Any) -> Markup:
    """A text of ``mlpkit.report.words`` in both languages.

    Args:
        key: Which text.
        values: What stands in its braces.
    """
    return in_both(both(key, **values))


def say(statement: Statement, *, several: bool = False) -> Markup:
    """A statement in both languages.

    Args:
        statement: What to say.
        several: Whether there are several groups, so that it says of which it speaks.
    """
    spoken = {lang: sentence(statement, lang) for lang in LANGUAGES}
    if several and "group" in statement.values and statement.key != "group":
        number = int(statement.values["group"]) + 1
        spoken = {k: f"{word('group', k, number=number)}: {v}" for k, v in spoken.items()}
    return in_both(spoken)


def say_all(statements: Sequence[Statement], comparison: Comparison) -> list[Markup]:
    """Statements in both languages.

    Args:
        statements: What to say.
        comparison: What they are about: with several groups each says of which it speaks.
    """
    return [say(statement, several=len(comparison.groups) > 1) for statement in statements]

"""What can stand at the cursor of an ``mlpkit`` command line: verbs, flags, values, names."""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlpkit.cli import PASSED_ON, VERBS, build_parser
from mlpkit.cli.completion.paths import paths

QUERY = "query"
# Hydra's flags that mlpkit answers otherwise, or that mean another program's configuration
NOT_OFFERED = (
    *("--shell-completion", "--run", "--experimental-rerun"),
    *("--config-path", "--config-name"),
)


def answer(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The candidates for a query; none, instead of an error in the middle of the user's line.

    Args:
        words: The line's words from the program on; the last one, perhaps empty, is completed.
            Without words the line is read as bash gives it.
        env: ``COMP_LINE``, the line up to the cursor, and ``COMP_WORDBREAKS``.
    """
    noise = io.StringIO()  # what a plugin prints while it is imported is no candidate
    with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        try:
            if words:
                return candidates([*words[:-1], words[-1].lstrip("'\"")])
            split, quoted = split_line(env.get("COMP_LINE", ""))
            breaks = "" if quoted else env.get("COMP_WORDBREAKS", "")
            return trimmed(candidates(split), split[-1], breaks)
        except (Exception, SystemExit):
            return []


def split_line(line: str) -> tuple[list[str], bool]:
    """The words of a shell line that ends at the cursor, and whether a quote is open there."""
    for closing in ("", "'", '"'):
        try:
            # the mark keeps an empty last word: the cursor stands after a space
            words = shlex.split(f"{line}\0{closing}")
        except ValueError:
            continue
        return [*words[:-1], words[-1].removesuffix("\0")], bool(closing)
    raise AssertionError(f"{line!r} ends neither outside quotes nor within them")


def trimmed(found: Sequence[str], word: str, breaks: str) -> list[str]:
    """The candidates from where readline lets the word begin: after its last break character."""
    start = 1 + max((word.rfind(character) for character in breaks), default=-1)
    return [candidate[start:] for candidate in found]


def candidates(words: Sequence[str]) -> list[str]:
    """The possible forms of the last word, each as a whole word, in order and without repeats.

    Args:
        words: The line's words from the program on.
    """
    *before, word = words[1:]
    verb = next((w for w in before if not w.startswith("-")), None)
    if verb is None:
        found = [*VERBS, *flags(build_parser(""))] if word else list(VERBS)
    elif verb not in VERBS:
        return []
    else:
        found = arguments(verb, before[before.index(verb) + 1 :], word)
    return list(dict.fromkeys(c for c in found if c.startswith(word)))


def arguments(verb: str, before: Sequence[str], word: str) -> list[str]:
    """What a verb can take next: a flag, a flag's value, or a positional argument."""
    parser = parser_of(verb)
    flag = parser._option_string_actions.get(before[-1]) if before else None
    if flag is not None and flag.nargs is None:
        return [str(choice) for choice in flag.choices or ()] or paths_for(flag, word)
    if flag is not None and flag.nargs == "?" and flag.choices and not word:
        return [str(choice) for choice in flag.choices]
    if word.startswith("-"):
        return flags(parser)
    taken = positional_words(parser, before)
    positions = parser._get_positional_actions()
    if not positions:
        return []
    position = positions[min(len(taken), len(positions) - 1)]
    if len(taken) >= len(positions) and position.nargs not in ("*", "+"):
        return []
    if position.choices:
        return [str(choice) for choice in position.choices if choice != QUERY]
    if position.dest == "overrides":
        from mlpkit.cli.completion.overrides import overrides  # imports Hydra: only where needed

        return overrides(taken, word)
    if position.dest in ("kind", "name", "pattern"):
        return registered(taken)
    return paths_for(position, word)


def parser_of(verb: str) -> argparse.ArgumentParser:
    """The parser of a verb's arguments: its own, or Hydra's."""
    if verb in PASSED_ON:
        from hydra._internal.utils import get_args_parser  # Hydra takes a while to import

        return get_args_parser()
    parser = build_parser(verb)
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    chosen = verbs.choices[verb]
    assert isinstance(chosen, argparse.ArgumentParser)
    return chosen


def flags(parser: argparse.ArgumentParser) -> list[str]:
    """The flags of a parser, long ones and ``-m``."""
    known = parser._option_string_actions
    return [f for f in known if (f.startswith("--") or f == "-m") and f not in NOT_OFFERED]


def positional_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """The words that are neither flags nor their values."""
    found, value_of_flag = [], False
    for word in words:
        action = parser._option_string_actions.get(word)
        if not value_of_flag and not word.startswith("-"):
            found.append(word)
        value_of_flag = action is not None and action.nargs is None
    return found


def registered(taken: Sequence[str]) -> list[str]:
    """The kinds, or, behind a kind, its names and aliases."""
    from mlpkit.plugins import registries  # loads the plugins: only where names are asked for

    by_noun = registries().by_noun()
    if not taken:
        return list(by_noun)
    specs = by_noun[taken[0]].list() if taken[0] in by_noun else []
    return [name for spec in specs for name in (spec.name, *spec.aliases)]


def paths_for(action: argparse.Action, word: str) -> list[str]:
    """Files and folders, where an argument is a path."""
    return paths(word) if action.type is Path else []

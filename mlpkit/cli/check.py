"""``mlpkit check``: the conformance kit as a table."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from mlpkit.plugins import KINDS
from mlpkit.registry import UnknownNameError, suggestion

if TYPE_CHECKING:
    from mlpkit.testing import Result


class CheckArgumentError(ValueError):
    """Arguments of ``mlpkit check`` that cannot be read."""

    exit_code = 2


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.add_argument(
        "what",
        nargs="+",
        metavar="[KIND] NAME|DIST [OPTION=VALUE …]",
        help=f"an entry (KIND: {', '.join(KINDS)}), or all that a distribution provides",
    )
    parser.add_argument(
        "--expect",
        action="append",
        default=[],
        metavar="CHECK=REASON",
        help="a check that fails, and why; it then must",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints a row for each check; 1 if one failed."""
    words = [word for word in options.what if "=" not in word]
    given = OmegaConf.from_dotlist([word for word in options.what if "=" in word])
    kind, name = read_words(words)
    expected = dict(read_pair(text) for text in options.expect)

    from mlpkit.testing import run_checks, run_plugin  # imports torch: the parser does without

    plain: Any = OmegaConf.to_container(given)
    if kind is None:
        results = run_plugin(name, expected=expected, **plain)
    else:
        results = run_checks(kind, name, expected=expected, **plain)
    if options.json:
        print(json.dumps([result._asdict() for result in results], indent=2, ensure_ascii=False))
    else:
        print_results(results)
    return 1 if any(result.state == "failed" for result in results) else 0


def read_words(words: Sequence[str]) -> tuple[str | None, str]:
    """The kind, if one is named, and the name.

    Raises:
        CheckArgumentError: There are not one or two words.
        UnknownNameError: The first of two is no kind.
    """
    if len(words) == 1:
        return None, words[0]
    if len(words) != 2:
        raise CheckArgumentError(f"{' '.join(words) or 'nothing'} to check; write [KIND] NAME")
    if words[0] not in KINDS:
        hint = suggestion(words[0], KINDS)
        raise UnknownNameError(f"unknown kind {words[0]!r}{hint} (there are: {', '.join(KINDS)})")
    return words[0], words[1]


def read_pair(text: str) -> tuple[str, str]:
    """A check's title and the reason why it fails.

    Raises:
        CheckArgumentError: One of them is missing.
    """
    check, _, reason = text.partition("=")
    if not check or not reason:
        raise CheckArgumentError(f"--expect {text!r} has no reason; write CHECK=REASON")
    return check, reason


def print_results(results: Sequence[Result]) -> None:
    """Prints the results as a table without borders, and their numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("kind", "name", "check", "state", "why"):
        table.add_column(column, overflow="fold", no_wrap=column in ("kind", "name", "state"))
    for result in results:
        table.add_row(*result)
    console = Console(markup=False, highlight=False)
    console.print(table)
    counts = Counter(result.state for result in results)
    console.print(", ".join(f"{number} {state}" for state, number in sorted(counts.items())))

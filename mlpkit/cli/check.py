"""``mlpkit check``: the conformance kit as a table."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from mlpkit.cli.catalogue import registry_of
from mlpkit.cli.printing import print_json, print_table
from mlpkit.plugins import KINDS

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
        print_json([result._asdict() for result in results])
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
        raise CheckArgumentError(
            f"check is given {' '.join(words) or 'no name'}; write [KIND] NAME"
        )
    return registry_of(words[0]).noun, words[1]


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
    """Prints a row for each result, and how many there are of each state."""
    columns = ("kind", "name", "check", "state", "why")
    print_table(columns, results, whole=("kind", "name", "state"))
    counts = Counter(result.state for result in results)
    print(", ".join(f"{number} {state}" for state, number in sorted(counts.items())))

"""``mlpkit completion``: shell completion for bash, zsh and fish; no torch."""

from __future__ import annotations

import argparse
import os

from mlpkit.cli.completion.lines import QUERY, answer, candidates
from mlpkit.cli.completion.scripts import SCRIPTS

__all__ = ["QUERY", "SCRIPTS", "answer", "candidates", "configure", "run"]


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.add_argument(
        "shell",
        choices=(*SCRIPTS, QUERY),
        metavar="{" + ",".join(SCRIPTS) + "}",
        help='print its script; use: eval "$(mlpkit completion bash)", the same with zsh, '
        "or: mlpkit completion fish | source",
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints a script, or answers a script's query: one candidate per line."""
    if options.shell != QUERY:
        print(SCRIPTS[options.shell], end="")
        return 0
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    for candidate in answer(words, os.environ):
        print(candidate)
    return 0

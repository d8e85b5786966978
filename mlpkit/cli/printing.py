"""How verbs print: tables without borders, and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from mlpkit.registry import printable

WIDE = 200  # columns where the output is no terminal and nobody says: a file is not narrow


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, whole: Collection[str] = ()
) -> None:
    """Prints a table; what is long wraps.

    Args:
        columns: The headings.
        rows: The cells of each row.
        whole: The columns that are never wrapped.
    """
    # only what prints a table pays for rich
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column in whole, overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    console = Console(markup=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    console.print(table)


def print_json(value: Any) -> None:
    """Prints plain values as JSON; what JSON has no form for is told as text."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))

"""Cells of the page's tables: each with its exact value, which sorts it, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlpkit.figures.charts import short
from mlpkit.report.published import PublishedLine
from mlpkit.report.records import Difference, Estimate, Row
from mlpkit.report.words.numbers import duration, score, signed, signed_percent, size

Value = float | int | str | None


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of numbers.

    Args:
        key: What it is; ``column_<key>`` in ``mlpkit.report.words`` names and explains it.
        value: The exact number of a row; None where it is not known.
        write: How a known one is written.
        kind: The class of its cells.
    """

    key: str
    value: Callable[[Row], float | None]
    write: Callable[[Row], str]
    kind: str = ""


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns in which some row has a number.

    Args:
        rows: Those of the table.
    """
    return [column for column in COLUMNS if any(column.value(row) is not None for row in rows)]


def spread(estimate: Estimate) -> str:
    """A mean with the standard deviation over seeds, where there are several."""
    return score(estimate.mean) + (f" ± {score(estimate.sd)}" if estimate.sd is not None else "")


def interval(difference: Difference) -> str:
    """A difference with its 95 % interval, where noise is known."""
    if difference.low is None or difference.high is None:
        return signed(difference.mean)
    return f"{signed(difference.mean)} [{signed(difference.low)}, {signed(difference.high)}]"


def _estimate(name: str, kind: str = "") -> Column:
    def value(row: Row) -> float | None:
        found: Estimate | None = getattr(row, name)
        return found.mean if found else None

    return Column(key=name, value=value, write=lambda row: spread(getattr(row, name)), kind=kind)


def _plain(name: str, write: Callable[[float], str]) -> Column:
    def value(row: Row) -> float | None:
        found: float | None = getattr(row, name)
        return found

    return Column(key=name, value=value, write=lambda row: write(getattr(row, name)))


def _difference(row: Row) -> float | None:
    return row.difference.mean if row.difference else None


COLUMNS = (
    Column(
        key="seeds",
        value=lambda row: row.n_ok,
        write=lambda row: f"{row.n_ok}/{row.n_ok + row.n_failed + row.n_other}",
    ),
    _estimate("val_bpb", "score"),
    Column(
        key="difference",
        value=_difference,
        write=lambda row: interval(row.difference) if row.difference else "",
        kind="score",
    ),
    _estimate("val_loss"),
    _plain("parameters", short),
    _plain("active_parameters", short),
    _plain("ffn_parameters", short),
    _plain("match_residual", signed_percent),
    _plain("flops_per_token", short),
    _plain("training_flops", short),
    _plain("tokens", short),
    _plain("tokens_per_second", short),
    _plain("peak_memory_bytes", size),
    _plain("seconds", duration),
    _plain("time_to_target", duration),
    _plain("flops_to_target", short),
)


def published_cells(line: PublishedLine) -> dict[str, tuple[str, str]]:
    """The cells of what was published and measured: the exact value, and what is read.

    Args:
        line: A variant in a source's table.
    """
    found = {
        "published": (line.value, score),
        "published_difference": (line.difference, signed),
        "metric": (line.measured, score),
        "difference": (line.measured_difference, signed),
    }
    cells = {
        key: ("", "–") if value is None else (repr(value), write(value))
        for key, (value, write) in found.items()
    }
    return {"variant": (line.variant, line.variant), **cells}

"""What papers reported beside what was measured, for sweeps of an experiment that says it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mlpkit.report.records import Comparison, Row


class PublishedLine(NamedTuple):
    """A variant as it was published and as it was measured.

    Args:
        variant: Its name.
        value: What was published.
        difference: To the published value of the baseline; None where that has none.
        measured: The mean of the metric; None: no run finished.
        measured_difference: To the baseline, paired by seed; None for the baseline itself.
    """

    variant: str
    value: float
    difference: float | None
    measured: float | None
    measured_difference: float | None


class PublishedTable(NamedTuple):
    """The results of one source.

    Args:
        source: The paper and its table.
        measure: What its values are.
        note: What else it says.
        lines: The variants that it has, in the order of the rows.
    """

    source: str
    measure: str
    note: str
    lines: tuple[PublishedLine, ...]


def published(comparison: Comparison) -> list[PublishedTable]:
    """What the experiments of the runs say was published, one table for each source.

    Args:
        comparison: What the runs say.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for run in comparison.runs:
        experiment = run.config.get("experiment")
        listed = experiment.get("published") if isinstance(experiment, Mapping) else None
        for source in listed if isinstance(listed, list) else []:
            if isinstance(source, Mapping):
                found[json.dumps(source, sort_keys=True, default=str)] = source
    return [_table(source, comparison) for source in found.values()]


def _table(source: Mapping[str, Any], comparison: Comparison) -> PublishedTable:
    said = source.get("values")
    values = {k: float(v) for k, v in said.items()} if isinstance(said, Mapping) else {}
    # experiments call FFNs as results do, whatever was typed
    base = {row.variant.name: values.get(row.variant.ffn) for row in comparison.rows}
    lines = [
        _line(row, values[row.variant.ffn], base.get(comparison.baseline))
        for row in comparison.rows
        if row.variant.ffn in values
    ]
    return PublishedTable(
        source=str(source.get("source") or ""),
        measure=str(source.get("measure") or ""),
        note=str(source.get("note") or ""),
        lines=tuple(lines),
    )


def _line(row: Row, value: float, base: float | None) -> PublishedLine:
    return PublishedLine(
        variant=row.variant.name,
        value=value,
        difference=None if base is None else value - base,
        measured=row.metric.mean if row.metric else None,
        measured_difference=row.difference.mean if row.difference else None,
    )

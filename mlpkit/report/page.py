"""The report as one HTML file, which needs no other file and no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mlpkit import __version__
from mlpkit.figures.canvas import DARK, LIGHT
from mlpkit.figures.charts import SHEET, variables
from mlpkit.report.cells import COLUMNS, Column, columns, published_cells
from mlpkit.report.provenance import Fact, command, facts
from mlpkit.report.published import published
from mlpkit.report.records import Comparison, Group, Row, Run
from mlpkit.report.spoken import say, say_all, text
from mlpkit.report.variants import is_number
from mlpkit.report.words import word
from mlpkit.report.words.numbers import score

VERDICTS = (
    *("baseline", "better", "worse", "indistinguishable"),
    *("not_comparable", "no_verdict"),
)
SECTIONS = (
    *("verdict", "table", "published", "curves", "fronts", "heatmap", "effects", "mixture"),
    *("configuration", "failures", "provenance", "samples", "help"),
)

ALWAYS = ("verdict", "table", "configuration", "provenance", "help")  # whatever they have to say


class Panel(NamedTuple):
    """One tab of a section of charts.

    Args:
        label: What the tab says, in both languages.
        charts: SVG elements.
    """

    label: Markup
    charts: Sequence[Markup]


class Cell(NamedTuple):
    """One cell of the main table.

    Args:
        column: Its column's key.
        value: The exact number, which sorts; empty where there is none.
        shown: What is read.
        kind: Its class.
    """

    column: str
    value: str
    shown: Markup | str
    kind: str = ""


def render(
    comparison: Comparison,
    *,
    charts: Mapping[str, Any],
    mixture: Markup | None = None,
    sweeps: Sequence[str] = (),
    language: str = "en",
) -> str:
    """The page.

    Args:
        comparison: What the runs say.
        charts: ``curves``, ``fronts`` and ``heatmap`` (lists of ``Panel``), ``effects`` (an SVG
            element or None), ``keys`` (the switches of the curves).
        mixture: The section on experts; None where no run has any.
        sweeps: Command lines of the sweeps.
        language: The language that it opens in, "en" or "zh".

    Returns:
        HTML, as text.
    """
    script = _asset("page.js")
    shown = {
        **_findings(comparison),
        **_runs(comparison),
        "curves": charts.get("curves", ()),
        "keys": charts.get("keys", ()),
        "fronts": charts.get("fronts", ()),
        "heatmap": charts.get("heatmap", ()),
        "effects": charts.get("effects"),
        "mixture": mixture,
        "sweep_commands": sweeps,
    }
    return (
        _environment()
        .from_string(_asset("page.html.j2"))
        .render(
            **shown,
            sections=[name for name in SECTIONS if name in ALWAYS or shown[name]],
            language=language,
            version=__version__,
            style=Markup(style()),
            script=Markup(script),  # our own file; its hash is the only one that the page lets run
            script_hash=_hash(script),
        )
    )


def _findings(comparison: Comparison) -> dict[str, Any]:
    """What the page says of the variants: result, table, what was published, configuration."""
    return {
        "summary": _summary(comparison),
        # what was found comes before how many runs there were
        "verdict": say_all(sorted(comparison.verdict, key=lambda s: s.key == "runs"), comparison),
        "warnings": say_all([s for s in comparison.warnings if s.key != "damaged"], comparison),
        "groups": [_group(group, comparison) for group in comparison.groups],
        "published": [
            {"source": table, "lines": [published_cells(line) for line in table.lines]}
            for table in published(comparison)
        ],
        "heatmap_note": text("heatmap_note", metric=comparison.metric),
        "settings": _settings(comparison),
        "common": sorted((key, _plain(value)) for key, value in comparison.common.items()),
        "common_title": text("common", count=len(comparison.common)),
        "help": ["variant", "verdict", *(column.key for column in COLUMNS), "notes"],
        "verdicts": VERDICTS,
    }


def _runs(comparison: Comparison) -> dict[str, Any]:
    """What the page says of single runs: what failed, where they come from, what they write."""
    runs = comparison.runs
    names = {run.id: row.variant.name for row in comparison.rows for run in row.variant.runs}
    return {
        "left_out": [(run.id, problem) for run in runs for problem in run.problems],
        "failures": [_failure(run, names[run.id]) for run in comparison.failures],
        "facts": [_fact(fact, len(runs)) for fact in facts(runs)],
        "runs": [_run(run, names[run.id], comparison.metric) for run in runs],
        "samples": _samples(comparison),
    }


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.globals.update(t=text, words=word)
    return environment


def _asset(name: str) -> str:
    return (files("mlpkit.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def style() -> str:
    """The sheet of the page, with the colours of both themes."""
    light, dark = (
        "".join(f"--{key}:{value};" for key, value in variables(colours).items())
        for colours in (LIGHT, DARK)
    )
    return (
        f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f"@media print{{:root{{{light}}}}}\n{_asset('page.css')}{SHEET}"
    )


def _summary(comparison: Comparison) -> Markup:
    runs = comparison.runs
    return text(
        "counted",
        runs=len(runs),
        variants=len(comparison.rows),
        ok=sum(run.status == "ok" for run in runs),
        baseline=comparison.baseline,
    )


def _group(group: Group, comparison: Comparison) -> dict[str, Any]:
    rows = [row for row in comparison.rows if row.variant.group == group.index]
    used = columns(rows)
    notes = any(row.notes or row.reasons for row in rows)
    return {
        "title": text("group", number=group.index + 1),
        "note": text("group_note", **group.identity, baseline=group.baseline),
        "columns": ["variant", "verdict", *(c.key for c in used), *(["notes"] if notes else [])],
        "rows": [
            {"verdict": row.verdict, "cells": list(_cells(row, used, notes=notes))} for row in rows
        ],
    }


def _cells(row: Row, used: Sequence[Column], *, notes: bool) -> Any:
    name = row.variant.name
    yield Cell("variant", name, name)
    badge = Markup('<span class="badge {}">{}</span>')
    shown = badge.format(row.verdict, text(f"verdict_{row.verdict}"))
    yield Cell("verdict", str(VERDICTS.index(row.verdict)), shown, "text")
    for column in used:
        value = column.value(row)
        if value is None:
            yield Cell(column.key, "", "–", "soft")
        else:
            yield Cell(column.key, repr(value), column.write(row), column.kind)
    if notes:
        said = Markup("; ").join(say(note) for note in (*row.reasons, *row.notes))
        yield Cell("notes", "", said, "text")


def _plain(value: Any) -> str:
    """A value of a configuration as YAML has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings(comparison: Comparison) -> list[list[str]]:
    """What differs as lines of a table, heads first; the longer side goes down."""
    keys = comparison.varying
    table = [["", *(row.variant.name for row in comparison.rows)]]
    table += [[key, *map(_plain, values)] for key, values in keys.items()]
    across = len(keys) > len(comparison.rows)
    lines = table if across else [list(column) for column in zip(*table, strict=True)]
    return lines if keys else []


def _failure(run: Run, name: str) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": name,
        "status": run.status,
        "error": run.error,
        "command": command(run),
        "log_tail": "\n".join(run.log_tail[-30:]),
    }


def _fact(fact: Fact, total: int) -> dict[str, Any]:
    """A fact with the runs of each value where they differ."""
    shown = []
    for value, ids in fact.values:
        which = "" if len(ids) == total or len(fact.values) == 1 else ", ".join(ids[:4])
        which += f" … {len(ids)}" if which and len(ids) > 4 else ""
        changed = value.removesuffix(" *")
        marked = Markup("{} ({})").format(changed, text("dirty"))
        shown.append((marked if changed != value else value or text("unknown"), which))
    return {"key": fact.key, "found": shown}


def _run(run: Run, name: str, metric: str) -> dict[str, Any]:
    value = run.metrics.get(metric) if run.status == "ok" else None
    return {
        "id": run.id,
        "name": name,
        "status": run.status,
        "seed": "" if run.seed is None else run.seed,
        "score": {
            "value": repr(value) if is_number(value) else "",
            "shown": score(value) if is_number(value) else "–",
        },
        "command": command(run),
    }


def _samples(comparison: Comparison) -> list[tuple[str, str]]:
    """The sample of the first seed of each variant that has one."""
    found = []
    for row in comparison.rows:
        sample = next((run.sample for run in row.variant.ok if run.sample), None)
        if sample:
            found.append((row.variant.name, sample))
    return found

"""Writing a report: the page, its figures and its tables, each file atomically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mlpkit.figures.charts import Chart
from mlpkit.figures.labels import words as known_language
from mlpkit.report.comparison import compare
from mlpkit.report.mixtures import mixture_section, section_files, section_markup
from mlpkit.report.page import Panel, render
from mlpkit.report.plots import COSTS, FRONTS, draw_all, swatches
from mlpkit.report.provenance import sweep_commands
from mlpkit.report.records import Comparison
from mlpkit.report.runs import find_runs
from mlpkit.report.spoken import text
from mlpkit.report.tables import tables
from mlpkit.report.words import LANGUAGES
from mlpkit.training.run_directory import write_atomically

PAGE = "report.html"


class ReportError(ValueError):
    """A report that cannot be written where it should."""

    exit_code = 2


def write_report(
    paths: Sequence[Path], *, out: Path, language: str = "en", baseline: str | None = None
) -> Path:
    """Writes a report on runs, whatever state they are in.

    Args:
        paths: Run directories, folders that hold runs at any depth, or sweep.json files.
        out: The folder for report.html, figures/ and tables/; it is made.
        language: In which the page opens and the figures are written, "en" or "zh".
        baseline: The variant, or the FFN, that the others are compared with; None: the one that
            a sweep names, else the dense SwiGLU, else the first.

    Returns:
        The path of the page.

    Raises:
        NoRunsError: There is no run in the paths.
        ComparisonError: There is no such baseline.
        ReportError: ``out`` cannot be written to.
    """
    known_language(language)  # an unknown one is refused before anything is read
    comparison = compare(find_runs(paths), baseline=baseline)
    write_files(comparison, out, language=language, sweeps=sweep_commands(paths))
    return out / PAGE


def write_files(
    comparison: Comparison, out: Path, *, language: str = "en", sweeps: Sequence[str] = ()
) -> None:
    """Writes the files of a report on a comparison; the page last, when all it stands on is there.

    Args:
        comparison: What the runs say.
        out: The folder.
        language: "en" or "zh".
        sweeps: Command lines of the sweeps.

    Raises:
        ReportError: The folder cannot be written to.
    """
    names = {run.id: row.variant.name for row in comparison.rows for run in row.variant.runs}
    experts = mixture_section(comparison.runs, names)
    files = {
        f"figures/{name}.svg": chart.file()
        for name, chart in draw_all(comparison, langs=(language,)).items()
    }
    files |= {f"tables/{name}": content for name, content in tables(comparison).items()}
    files |= section_files(experts, language=language) if experts else {}
    page = render(
        comparison,
        charts=panels(comparison),
        mixture=section_markup(experts) if experts else None,
        sweeps=sweeps,
        language=language,
    )
    try:
        for name, content in {**files, PAGE: page}.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            # a name from a file can hold half a character, which no encoding has
            write_atomically(out / name, content.encode("utf-8", "replace"))
    except OSError as error:
        raise ReportError(
            f"the report cannot be written to {out}: {error.strerror or error}; "
            "choose another folder with --out"
        ) from error


def panels(comparison: Comparison) -> dict[str, Any]:
    """The charts of the page by section, in both languages.

    Args:
        comparison: What the runs say.
    """
    charts = draw_all(comparison, langs=LANGUAGES, legend=False)
    effects = charts.get("effects")
    return {
        "keys": [{**key, "swatch": Markup(key["swatch"])} for key in swatches(charts, comparison)],
        "curves": _tabs(charts, {x: text(x) for x in COSTS}, "curves-", at_end=True),
        "fronts": _tabs(charts, {x: text(x) for x in FRONTS}, "front-"),
        "heatmap": [
            Panel(Markup("").join([chart.spoken(chart.title)[0][1]]), [Markup(chart.inline())])
            for name, chart in charts.items()
            if name.startswith("heatmap-")
        ],
        "effects": Markup(effects.inline()) if effects else None,
    }


def _tabs(
    charts: Mapping[str, Chart], labels: Mapping[str, Markup], prefix: str, *, at_end: bool = False
) -> list[Panel]:
    """A panel for each label that has charts: those named after it."""
    found = []
    for key, label in labels.items():
        named = [
            Markup(chart.inline())
            for name, chart in charts.items()
            if name.startswith(prefix) and (name.endswith(f"-{key}") if at_end else key in name)
        ]
        if named:
            found.append(Panel(label, named))
    return found

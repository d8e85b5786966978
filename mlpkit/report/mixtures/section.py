"""The records of the report's section on experts, from the runs that have any."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mlpkit.figures.charts import Chart
from mlpkit.figures.experts import (
    category_label,
    layer_label,
    plot_co_activation,
    plot_expert_categories,
    plot_expert_load,
)
from mlpkit.figures.routing import plot_routing
from mlpkit.report.mixtures.findings import findings, warnings
from mlpkit.report.records import Run, Statement
from mlpkit.report.words import LANGUAGES

FORMAT = 1  # of mixture.json
CELLS = 6000  # of heatmaps in a page, about a megabyte
MOST_FIGURES = 12  # variants with figures
MOST_CURVES = 12  # runs in one figure of routing; of more, one of each variant
FEWEST = 16  # choices of a category; the share of a rarer one is chance
ROUTING = ("max_violation_share", "router_entropy")  # drawn over training
HEALTH = (
    *("seed", "layer", "max_violation", "max_violation_share", "max_violation_batch"),
    *("load_entropy", "dead_experts", "router_entropy", "router_entropy_of_mean"),
    *("dropped_share", "unrouted_share", "explained_share"),
    *("gradient_ratio", "gradient_relative"),
)
EXPERTS = ("layer", "expert", "load", "categories", "top_tokens")


class Figure(NamedTuple):
    """A figure, drawn when it is asked for.

    Args:
        name: Its file's name, without ending.
        draw: Called with ``langs``, the languages of its texts.
    """

    name: str
    draw: Callable[..., Chart]


class Table(NamedTuple):
    """A table of plain values.

    Args:
        name: Which one: ``health`` or ``tokens``.
        columns: Keys of ``mlpkit.report.mixtures.words``.
        rows: A value for each column; None where there is none. Text may be in two languages.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, kw_only=True)
class MixtureVariant:
    """The experts of one variant.

    Args:
        name: The variant.
        seed: That of the run whose figures and tokens are shown.
        statements: What its experts do.
        tables: Layers of all runs, and experts of the shown one.
        figures: Of the shown run.
    """

    name: str
    seed: int | None
    statements: tuple[Statement, ...]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True, kw_only=True)
class MixtureSection:
    """What is said and shown about experts.

    Args:
        tokens: How many tokens were counted, of the run with the most.
        warnings: What is wrong with some routing, or could not be read.
        variants: Those with experts.
        figures: Routing over training, all variants together.
    """

    tokens: int
    warnings: tuple[Statement, ...]
    variants: tuple[MixtureVariant, ...]
    figures: tuple[Figure, ...]


def mixture_section(
    runs: Sequence[Run], names: Mapping[str, str] | None = None
) -> MixtureSection | None:
    """The section on experts; None where no run has an analysis of any.

    Args:
        runs: All runs of the report.
        names: Run id to the name of its variant; None: every run is one, named by its id.
    """
    grouped: dict[str, list[Run]] = {}
    problems: list[Statement] = []
    for run in runs:
        if not run.mixture:
            continue
        if problem := _problem(run):
            problems.append(Statement(key="unreadable", values={"run": run.id, "problem": problem}))
            continue
        if reason := run.mixture.get("unlabelled"):
            problems.append(Statement(key="unlabelled", values={"run": run.id, "reason": reason}))
        grouped.setdefault((names or {}).get(run.id, run.id), []).append(run)
    if not grouped and not problems:
        return None
    for group in grouped.values():
        group.sort(key=lambda run: (run.seed is None, run.seed))
    budget = CELLS // max(1, min(len(grouped), MOST_FIGURES))
    found = [w for name, group in grouped.items() for w in warnings(name, group)]
    counted = [run.mixture["tokens"] for g in grouped.values() for run in g if run.mixture]
    return MixtureSection(
        tokens=max(counted, default=0),
        warnings=(*found, *problems),
        variants=tuple(
            _variant(name, group, index, budget if index < MOST_FIGURES else 0)
            for index, (name, group) in enumerate(grouped.items())
        ),
        figures=tuple(_routing(grouped)),
    )


def chosen_layers(mixture: Mapping[str, Any], budget: int) -> list[str]:
    """The layers whose heatmaps fit into a number of cells: those that categories tell most about.

    Args:
        mixture: The analysis of a run.
        budget: Cells; one layer is shown however many it has.

    Returns:
        Their names in the order of the model.
    """
    layers = mixture["layers"]

    def told(name: str) -> float:
        return float((layers[name]["categories"] or {}).get("explained_share", 0.0))

    kept: list[str] = []
    for name in sorted(layers, key=told, reverse=True):
        size = layers[name]["num_experts"]
        budget -= size * (min(size, 64) + 10)
        if budget >= 0 or not kept:
            kept.append(name)
    return [name for name in layers if name in kept]


def _problem(run: Run) -> str:
    """Why an analysis cannot be shown; empty if it can: no file may stop a page."""
    try:
        if (run.mixture or {})["format"] != FORMAT:
            return f"format {(run.mixture or {})['format']!r}"
        int((run.mixture or {})["tokens"])
        warnings("", [run])
        findings([run])
        _health(run)
        _tokens(run)
        for figure in _figures("", run, CELLS):
            figure.draw(langs=("en",))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _variant(name: str, runs: Sequence[Run], index: int, budget: int) -> MixtureVariant:
    rows = tuple(row for run in runs for row in _health(run))
    return MixtureVariant(
        name=name,
        seed=runs[0].seed,
        statements=tuple(findings(runs)),
        tables=(
            Table("health", HEALTH, rows),
            Table("tokens", EXPERTS, tuple(_tokens(runs[0]))),
        ),
        figures=tuple(_figures(f"experts-{index + 1}", runs[0], budget)) if budget else (),
    )


def _figures(prefix: str, run: Run, budget: int) -> list[Figure]:
    mixture = run.mixture or {}
    found = [Figure(f"{prefix}-load", functools.partial(plot_expert_load, mixture))]
    for layer in chosen_layers(mixture, budget):
        place = f"{prefix}-{layer.replace('/', '-')}"
        draw = functools.partial(plot_expert_categories, mixture, layer)
        if mixture["layers"][layer]["categories"]:
            found.append(Figure(f"{place}-categories", draw))
        if mixture["layers"][layer]["num_experts_per_tok"] > 1:
            pairs = functools.partial(plot_co_activation, mixture, layer)
            found.append(Figure(f"{place}-pairs", pairs))
    return found


def _routing(grouped: Mapping[str, Sequence[Run]]) -> list[Figure]:
    lines = {
        name if len(runs) == 1 else f"{name}, {run.seed}": run.steps
        for name, runs in grouped.items()
        for run in runs
    }
    if len(lines) > MOST_CURVES:  # one run of each variant
        lines = {name: runs[0].steps for name, runs in grouped.items()}
    shown = dict(list(lines.items())[:MOST_CURVES])
    return [
        Figure(f"routing-{measure}", functools.partial(plot_routing, shown, measure))
        for measure in ROUTING
        if any(measure in line for steps in shown.values() for line in steps)
    ]


def _health(run: Run) -> list[tuple[Any, ...]]:
    rows = []
    for name, layer in (run.mixture or {})["layers"].items():
        known = {
            **layer,
            "seed": run.seed,
            "layer": layer_label(name),
            "dead_experts": len(layer["dead_experts"]),
            "explained_share": (layer["categories"] or {}).get("explained_share"),
            "gradient_ratio": layer["gradient"]["ratio"],
            "gradient_relative": layer["gradient"]["relative"],
        }
        rows.append(tuple(known[column] for column in HEALTH))
    return rows


def _tokens(run: Run) -> list[tuple[Any, ...]]:
    mixture, rows = run.mixture or {}, []
    for name, layer in mixture["layers"].items():
        fair = sum(layer["load"]) / layer["num_experts"]
        for expert, count in enumerate(layer["load"]):
            tokens = [f"{t['token']!r} {t['lift']:.1f}×" for t in layer["top_tokens"][expert]]
            row = (layer_label(name), expert, count / fair if fair else 0.0)
            rows.append((*row, _categories(mixture, layer, expert), "  ".join(tokens)))
    return rows


def _categories(mixture: Mapping[str, Any], layer: Mapping[str, Any], expert: int) -> Any:
    """The categories that an expert takes more often than uniform, in both languages."""
    if not layer["categories"]:
        return None
    totals = [sum(column) for column in zip(*layer["categories"]["counts"], strict=True)]
    lifts = layer["categories"]["lift_over_uniform"][expert]
    best = sorted((c for c, n in enumerate(totals) if n >= FEWEST), key=lambda c: -lifts[c])[:3]
    named = [(category_label(mixture["categories"][c]), lifts[c]) for c in best if lifts[c] > 1]
    return {
        lang: "  ".join(f"{n if isinstance(n, str) else n[lang]} {v:.1f}×" for n, v in named)
        for lang in LANGUAGES
    }

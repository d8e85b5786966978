"""The comparison as CSV, JSON, LaTeX (booktabs) and Markdown."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlpkit.figures.charts import short
from mlpkit.report.frames import run_row
from mlpkit.report.records import Comparison, Difference, Estimate, Row

# what a mean, an interval … is called in a column of the CSV: val_bpb, val_bpb_sd, val_bpb_low …
ESTIMATES = ("val_bpb", "val_loss")
NUMBERS = (
    *("parameters", "active_parameters", "ffn_parameters", "match_residual", "flops_per_token"),
    *("training_flops", "tokens", "tokens_per_second", "peak_memory_bytes", "seconds"),
    *("time_to_target", "flops_to_target", "tokens_to_target"),
)
UNITS = {"val_bpb": "bits/byte", "val_loss": "nats/token", "tokens_per_second": "tokens/s"}
_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "·": r"$\cdot$",
    "Δ": r"$\Delta$",
    "±": r"$\pm$",
    "−": "$-$",
    "—": "---",
    "²": r"\textsuperscript{2}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
}


def tables(comparison: Comparison) -> dict[str, str]:
    """All tables as file name → content.

    Args:
        comparison: The comparison.
    """
    return {
        "comparison.csv": to_csv(comparison),
        "comparison.json": to_json(comparison),
        "comparison.tex": to_latex(comparison),
        "comparison.md": to_markdown(comparison),
        "runs.csv": runs_to_csv(comparison),
    }


def to_csv(comparison: Comparison) -> str:
    """A row per variant with every number in full; what is not known is empty.

    Args:
        comparison: The comparison.
    """
    return _csv([_flat(row) for row in comparison.rows])


def runs_to_csv(comparison: Comparison) -> str:
    """A row per run: status, configuration, final numbers.

    Args:
        comparison: The comparison.
    """
    return _csv([run_row(row.variant, run) for row in comparison.rows for run in row.variant.runs])


def to_json(comparison: Comparison) -> str:
    """Rows, groups, verdict and warnings, with every number in full; what is not known is null.

    Args:
        comparison: The comparison.
    """
    content = {
        "metric": comparison.metric,
        "baseline": comparison.baseline,
        "groups": [dataclasses.asdict(group) for group in comparison.groups],
        "axes": {axis.key: axis.values for axis in comparison.axes},
        "rows": [_nested(row) for row in comparison.rows],
        "verdict": [dataclasses.asdict(said) for said in comparison.verdict],
        "warnings": [dataclasses.asdict(said) for said in comparison.warnings],
    }
    return json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_latex(comparison: Comparison) -> str:
    """A table for a paper; bold is better than the baseline beyond the corrected interval.

    Args:
        comparison: The comparison.
    """
    head, body = _cells(comparison)
    lines = [
        "% needs \\usepackage{booktabs}; bold: better than the baseline (Holm, 95 %)",
        f"\\begin{{tabular}}{{l{'r' * (len(head) - 2)}l}}",
        r"\toprule",
        _latex_line([escape_latex(cell) for cell in head]),
        r"\midrule",
    ]
    group = comparison.rows[0].variant.group if comparison.rows else 0
    for row, cells in zip(comparison.rows, body, strict=True):
        if row.variant.group != group:
            lines.append(r"\midrule")
            group = row.variant.group
        written = [escape_latex(_with_minus(cell) if i else cell) for i, cell in enumerate(cells)]
        if row.verdict == "better":
            written[:2] = [f"\\textbf{{{cell}}}" for cell in written[:2]]
        lines.append(_latex_line(written))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def to_markdown(comparison: Comparison) -> str:
    """A table for a README; bold as in LaTeX.

    Args:
        comparison: The comparison.
    """
    head, body = _cells(comparison)
    lines = [head, ["---", *["---:"] * (len(head) - 2), "---"]]
    for row, cells in zip(comparison.rows, body, strict=True):
        written = [_escape_markdown(cell) for cell in cells]
        if row.verdict == "better":
            written[:2] = [f"**{cell}**" for cell in written[:2]]
        lines.append(written)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def decimals(uncertainty: float | None) -> int:
    """How many decimals are worth writing: two significant digits of the uncertainty.

    Args:
        uncertainty: A standard deviation; None or 0 where it is not known.

    Returns:
        In [1, 6]; 4 without an uncertainty, since scores of seeds differ in the third.
    """
    if not uncertainty or not math.isfinite(uncertainty):
        return 4
    return min(6, max(1, 1 - math.floor(math.log10(uncertainty))))


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it.

    Args:
        text: Any text, also hostile: names come from plugins and command lines.
    """
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the printed tables: numbers rounded to their uncertainty."""
    places = {g.index: decimals(g.noise.sd or g.noise.baseline_sd) for g in comparison.groups}
    unit = UNITS.get(comparison.metric, comparison.metric)
    head = [
        *("variant", unit, "Δ [95 %]", "seeds", "parameters", "active"),
        *("FLOPs/token", "tokens/s", "verdict"),
    ]
    body = [
        [
            row.variant.name,
            _spread(row.metric, places[row.variant.group]),
            _interval(row.difference, places[row.variant.group]),
            f"{row.n_ok}/{len(row.variant.runs)}",
            *("" if count is None else short(count) for count in _counts(row)),
            row.verdict.replace("_", " "),
        ]
        for row in comparison.rows
    ]
    return head, body


def _counts(row: Row) -> list[float | None]:
    return [row.parameters, row.active_parameters, row.flops_per_token, row.tokens_per_second]


def _spread(found: Estimate | None, places: int) -> str:
    if found is None:
        return "—"
    spread = "" if found.sd is None else f" ± {found.sd:.{places}f}"
    return f"{found.mean:.{places}f}{spread}"


def _interval(found: Difference | None, places: int) -> str:
    if found is None:
        return "—"
    mean = f"{found.mean:+.{places}f}"
    if found.low is None or found.high is None:
        return mean
    return f"{mean} [{found.low:+.{places}f}, {found.high:+.{places}f}]"


def _latex_line(cells: Iterable[str]) -> str:
    # the empty group keeps a name in brackets from being an option of the line break before it
    return "{}" + " & ".join(cells) + r" \\"


def _with_minus(number: str) -> str:
    """A number with a minus sign, where typing gives a hyphen."""
    return number.replace("-", "−")


def _escape_markdown(cell: str) -> str:
    text = " ".join(cell.split()).replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;").replace("`", "\\`")


def _flat(row: Row) -> dict[str, Any]:
    """A row with one name per number."""
    flat: dict[str, Any] = {
        "variant": row.variant.name,
        "ffn": row.variant.ffn,
        "group": row.variant.group,
        "verdict": row.verdict,
        "reasons": " ".join(reason.key for reason in row.reasons),
        "n_ok": row.n_ok,
        "n_failed": row.n_failed,
        "n_other": row.n_other,
    }
    for name in ESTIMATES:
        found: Estimate | None = getattr(row, name)
        flat[name] = found.mean if found else None
        for part in ("sd", "low", "high"):
            flat[f"{name}_{part}"] = getattr(found, part, None)
    for part in ("mean", "low", "high", "p", "p_holm"):
        flat[f"difference_{part}"] = getattr(row.difference, part, None)
    return flat | {name: getattr(row, name) for name in NUMBERS}


def _nested(row: Row) -> dict[str, Any]:
    """A row as its record has it, with the variant in short."""
    kept = {f.name: getattr(row, f.name) for f in dataclasses.fields(row) if f.name != "variant"}
    kept = {key: _plain(value) for key, value in kept.items()}
    variant = row.variant
    return {
        "variant": variant.name,
        "ffn": variant.ffn,
        "group": variant.group,
        "levels": dict(variant.levels),
        "runs": {run.id: run.status for run in variant.runs},
        "seeds": list(variant.seeds_ok),
        **kept,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dataclasses.asdict(value) if dataclasses.is_dataclass(type(value)) else value


def _finite(value: Any) -> Any:
    """JSON has no NaN, and its mappings have names as keys."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows under the names of all of them; None is empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()

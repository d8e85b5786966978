"""The cases in words, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .cases import Case
from .machine import Peaks


def lines(case: Case, peaks: Peaks) -> list[str]:
    """A case for people: each contender's value, its ratio to ours, its share of the peak."""
    reference = case.values.get(case.ours or "")
    peak = peaks.get(case.facts.get("dtype", ""), {}).get("flops")
    shown = ["", case.title]
    for name, value in sorted(case.values.items(), key=lambda item: item[1]):
        line = f"  {name:<28} {amount(value, case.unit):>14}"
        line += f"  {value / reference:>6.2f} x ours" if reference else ""
        if case.flops and peak and case.unit == "s":
            line += f"  {case.flops / value / peak:>5.0%} of peak"
        shown.append(line)
    shown += [f"  {name:<28} not run: {reason}" for name, reason in case.missing.items()]
    return shown + verdicts(case)


def verdicts(case: Case) -> list[str]:
    """What a case says about its targets, and how far it can be trusted."""
    found = []
    if case.ratio is not None:
        goal = "" if case.target is None else f", target {sign(case)} {case.target:g}"
        usual = "" if case.median_ratio is None else f", by medians {case.median_ratio:.2f}"
        found.append(f"  ours over the best peer: {case.ratio:.2f}{usual}{goal}")
    if case.over_floor is not None:
        found.append(f"  ours over the floor: {case.over_floor:.2f}")
    if "target_seconds" in case.facts:
        found.append(f"  target: at most {case.facts['target_seconds']:g} s")
    if case.discarded:
        note = f"  {case.discarded} of {case.kept + case.discarded} measurements discarded"
        found.append(f"{note}: other processes held the processor")
    return found


def sign(case: Case) -> str:
    """Whether the target is a floor or a ceiling."""
    return "≥" if case.unit == "tokens/s" else "≤"


def amount(value: float, unit: str) -> str:
    """A value with its unit, three or four digits."""
    if unit == "s":
        return f"{value * 1e3:.3f} ms" if value < 1 else f"{value:.2f} s"
    if unit == "B":
        return f"{value / 1e6:.2f} MB" if value >= 1e5 else f"{value / 1e3:.2f} kB"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def heading(facts: Mapping[str, Any], peaks: Peaks) -> list[str]:
    """The machine, the versions, and what it can do at most."""
    shown = ", ".join(f"{key} {value}" for key, value in facts.items() if value is not None)
    lines = [shown]
    for dtype, peak in peaks.items():
        lines.append(
            f"{dtype}: products {peak['flops'] / 1e9:,.0f} GFLOP/s, "
            f"copies {peak['bytes'] / 1e9:,.1f} GB/s read and written"
        )
    return lines


def write_json(path: Path, cases: Sequence[Case], facts: Mapping[str, Any], peaks: Peaks) -> None:
    """Writes everything that was measured."""
    record = {"machine": facts, "peaks": peaks, "cases": [case.as_dict() for case in cases]}
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

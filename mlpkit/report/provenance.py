"""Where numbers come from: versions, data, machines, and the commands that repeat the runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlpkit.report.records import Run


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One thing about how runs were made.

    Args:
        key: What it is; ``fact_<key>`` in ``mlpkit.report.words`` names it.
        values: Each value with the ids of its runs; the commonest first. "" was not recorded.
    """

    key: str
    values: tuple[tuple[str, tuple[str, ...]], ...]


def facts(runs: Sequence[Run]) -> list[Fact]:
    """How the runs were made, fact by fact; a fact that no run records is left out.

    Args:
        runs: The runs; those without a readable result say nothing.
    """
    readable = [run for run in runs if run.result]
    found = []
    for key, read in READERS.items():
        by_value: dict[str, list[str]] = {}
        for run in readable:
            by_value.setdefault(_text(read(run)), []).append(run.id)
        if any(by_value):
            order = sorted(by_value.items(), key=lambda item: -len(item[1]))
            found.append(Fact(key=key, values=tuple((v, tuple(ids)) for v, ids in order)))
    if seeds := sorted({run.seed for run in runs if run.seed is not None}):
        found.append(Fact(key="seeds", values=((", ".join(map(str, seeds)), ()),)))
    return found


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in sorted(value.items()))
    return "" if value is None else str(value)


def _git(run: Run) -> str:
    git = run.result.get("git")
    if not isinstance(git, Mapping) or not git.get("commit"):
        return ""
    return f"{str(git['commit'])[:12]}{' *' if git.get('dirty') else ''}"


def _recorded(key: str) -> Callable[[Run], Any]:
    return lambda run: run.result.get(key)


READERS: dict[str, Callable[[Run], Any]] = {
    "mlpkit": _recorded("mlpkit"),
    "git": _git,
    **{key: _recorded(key) for key in ("torch", "python", "computing", "hardware", "threads")},
    "data": lambda run: run.data_label,
    "tokenizer": lambda run: run.data.get("tokenizer"),
    "plugins": _recorded("plugins"),
}


def command(run: Run) -> str:
    """The line that makes a run again; empty if what it was asked for is not known.

    Args:
        run: The run; where it wrote to is left out of the line.
    """
    if not run.overrides and not run.result:
        return ""
    kept = [o for o in run.overrides if o.lstrip("+~").partition("=")[0] != "run_dir"]
    if run.config and not any(o.partition("=")[0] == "seed" for o in kept) and run.seed:
        kept.append(f"seed={run.seed}")
    return shlex.join(["mlpkit", "train", *kept])


def sweep_commands(paths: Sequence[Path]) -> list[str]:
    """The lines of the sweeps among the paths, as they were typed.

    Args:
        paths: What the report was asked about: sweep.json files, folders above them, runs.
    """
    found = []
    for path in paths:
        files = [path] if path.name == "sweep.json" else sorted(path.glob("**/sweep.json"))
        for file in files:
            try:
                line = json.loads(file.read_text(encoding="utf-8"))["command"]
            except (OSError, ValueError, KeyError, TypeError):
                continue  # a sweep that cannot be read is named among what was left out
            if isinstance(line, str) and line not in found:
                found.append(line)
    return found

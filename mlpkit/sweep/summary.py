"""What a sweep says when it is over: a table of its jobs, its report, its exit code."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mlpkit.report.budgets import LIMIT
from mlpkit.sweep.jobs import Job, labels, shared
from mlpkit.sweep.matching import residual_text
from mlpkit.sweep.records import State, read_state, runs_elsewhere
from mlpkit.sweep.running import POLL, STOPPED, say

WIDE = 200  # columns where the output is no terminal: a file is not narrow
SHOWN = {"none": "not run"}
ORDER = ("ok", "failed", "lost", "stopped", "running", "none")


def wait_for_others(jobs: Sequence[Job]) -> None:
    """Waits for jobs that other processes run, so that the table and the report are whole."""
    from mlpkit.training.run_directory import holder

    for job, name in zip(jobs, labels(jobs), strict=True):
        waited = False
        while runs_elsewhere(job.path):
            if not waited:
                say(f"waiting for {name}, which {holder(job.path)} runs: {job.path}")
            waited = True
            time.sleep(POLL)


def summarise(jobs: Sequence[Job]) -> int:
    """Prints what became of each job; returns the exit code: 0, 1, or 75 if it was only stopped."""
    states = [read_state(job.path) for job in jobs]
    matched = any(job.match for job in jobs)
    table = Table(box=None, pad_edge=False)
    for column in ("job", "overrides", "status", "val_bpb", *(["budget"] * matched), "run"):
        table.add_column(column, overflow="fold")
    names = labels(jobs)
    for number, (job, state) in enumerate(zip(jobs, states, strict=True)):
        score = "" if state.val_bpb is None else f"{state.val_bpb:.4f}"
        budget = [residual_text(job.match)] if matched else []
        status = SHOWN.get(state.status, state.status)
        table.add_row(str(number + 1), names[number], status, score, *budget, str(job.path))
    print_table(table)
    for line in remarks(jobs, states):
        say(line)
    return exit_code(states)


def print_table(table: Table) -> None:
    """Prints a table; into a file as wide as it is."""
    console = Console(markup=False, highlight=False)
    console = console if console.is_terminal else Console(width=WIDE, markup=False, highlight=False)
    console.print(table)


def remarks(jobs: Sequence[Job], states: Sequence[State]) -> list[str]:
    """The lines below the table: why jobs did not finish, unequal sizes, the count."""
    common = " ".join(shared(jobs)).replace("'", "")
    lines = [f"in all jobs: {common}"] if common else []
    lines += [
        f"{name}: {state.status}: {state.result.get('error', '')}"
        for name, state in zip(labels(jobs), states, strict=True)
        if state.status in ("failed", "lost", "stopped")
    ]
    finished = [state.result["metrics"] for state in states if state.status == "ok"]
    if not any(job.match for job in jobs):
        note = budget_note([m["parameters"] for m in finished if "parameters" in m])
        lines += [note] if note else []
    counts = Counter(state.status for state in states)
    shown = [f"{counts[s]} {SHOWN.get(s, s)}" for s in ORDER if counts[s] or s in ("ok", "failed")]
    lines.append(", ".join(shown))
    if len(finished) < len(states):
        lines.append("the same line again, in any order, runs what is missing")
    return lines


def exit_code(states: Sequence[State]) -> int:
    """0 when all are finished; 75 when nothing is wrong but a signal came; else 1."""
    found = {state.status for state in states}
    if found == {"ok"}:
        return 0
    return STOPPED if "stopped" in found and found <= {"ok", "stopped", "none"} else 1


def budget_note(parameters: list[int]) -> str:
    """A warning when models of a sweep differ in size by more than 2 %; empty otherwise."""
    if not parameters or max(parameters) <= (1 + LIMIT) * min(parameters):
        return ""
    return (
        f"note: the models have {min(parameters):,} to {max(parameters):,} parameters; a better "
        "score may come from size alone (match=params makes them equal)"
    )


def report(sweep: Path) -> None:
    """Writes the report beside a sweep's record; what goes wrong is said, and changes nothing.

    Args:
        sweep: Its sweep.json.
    """
    try:
        # pandas and matplotlib: an extra that training can do without
        from mlpkit.report import write_report
    except ImportError as error:
        say(f"no report: {error}; pip install 'mlpkit[report]', then: mlpkit report {sweep}")
        return
    try:
        say(f"report: {write_report([sweep], out=sweep.parent)}")
    except Exception as error:  # the runs are there whatever the report makes of them
        text = f"{type(error).__name__}: {error}"
        say(f"no report: {text}; once that is solved: mlpkit report {sweep}", sys.stderr)

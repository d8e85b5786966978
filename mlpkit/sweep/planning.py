"""The dry run: every job with what it costs, and the warnings that are better read before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from mlpkit.build import build_data
from mlpkit.data.batches import tokens_per_epoch
from mlpkit.describe import Description
from mlpkit.sweep.equality import run_key, without_seed
from mlpkit.sweep.jobs import Job, labels, shared
from mlpkit.sweep.matching import residual_text
from mlpkit.sweep.records import read_state
from mlpkit.sweep.summary import print_table
from mlpkit.sweep.timing import Timing, measure
from mlpkit.sweep.warnings import warnings_of
from mlpkit.training.memory import require_memory
from mlpkit.training.progress import clock


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job, and what it would cost.

    Args:
        job: The job.
        name: What it is called among the others.
        description: Its model in numbers.
        tokens: What it trains on.
        epochs: How often it sees the data.
        timing: How long it takes; None for one that is finished already.
        key: What it runs: equal for two jobs that are the same run under two names.
        replicate: The same without the seed.
    """

    job: Job
    name: str
    description: Description
    tokens: int
    epochs: float
    timing: Timing | None
    key: str
    replicate: str

    @property
    def flops(self) -> int:
        """Training FLOPs of the whole run: three times the forward's."""
        return self.tokens * self.description.training_flops_per_token


def show_plan(jobs: Sequence[Job]) -> None:
    """Prints what would run. It writes no file, but for the token cache that the runs will use.

    Args:
        jobs: The jobs, checked.

    Raises:
        ConfigError: A model cannot fit into memory.
        DataError: There is no text to train on.
    """
    planned = plan(jobs)
    print_table(plan_table(planned))
    for line in plan_lines(planned):
        print(line)


def plan(jobs: Sequence[Job]) -> list[PlannedJob]:
    """The jobs with what they cost; models that are alike are timed once.

    Args:
        jobs: The jobs, checked.
    """
    timings: dict[str, Timing] = {}
    per_epoch: dict[str, int] = {}
    found = []
    for job, name in zip(jobs, labels(jobs), strict=True):
        config, options = job.config, job.config.training
        description, key = require_memory(config), run_key(config)
        source = f"{config.data} {options.sequence_length}"
        if source not in per_epoch:
            dataset = build_data(config)
            per_epoch[source] = tokens_per_epoch(dataset, sequence_length=options.sequence_length)
        replicate = without_seed(key)
        finished = read_state(job.path).status == "ok" and not config.rerun
        if not finished and replicate not in timings:
            timings[replicate] = measure(config)
        tokens = options.max_steps * options.batch_size * options.sequence_length
        found.append(
            PlannedJob(
                job=job,
                name=name,
                description=description,
                tokens=tokens,
                epochs=tokens / per_epoch[source],
                timing=None if finished else timings[replicate],
                key=key,
                replicate=replicate,
            )
        )
    return found


def plan_table(planned: Sequence[PlannedJob]) -> Table:
    """A row for each job."""
    matched = any(p.job.match for p in planned)
    sparse = any(p.description.active_parameters != p.description.parameters for p in planned)
    columns = ["job", "overrides", "ffn", "parameters", *(["active"] * sparse)]
    columns += ["FLOPs/token", "FLOPs", *(["width", "budget"] * matched), "time"]
    table = Table(box=None, pad_edge=False)
    for column in columns:
        right = column not in ("overrides", "ffn")
        table.add_column(column, overflow="fold", justify="right" if right else "left")
    for number, entry in enumerate(planned, start=1):
        about = entry.description
        cells = [str(number), entry.name, about.ffn, f"{about.parameters:,}"]
        cells += [f"{about.active_parameters:,}"] * sparse
        cells += [f"{about.training_flops_per_token:,}", f"{entry.flops:.3g}"]
        if matched:
            match = entry.job.match or {}
            cells += [str(match.get("width", "")), residual_text(entry.job.match)]
        time = clock(entry.timing.seconds) if entry.timing else "done"
        table.add_row(*cells, time)
    return table


def plan_lines(planned: Sequence[PlannedJob]) -> list[str]:
    """The lines below the table: what is common, sums, how time was measured, warnings."""
    common = " ".join(shared([p.job for p in planned])).replace("'", "")
    lines = [f"in all jobs: {common}"] if common else []
    open_jobs = [p for p in {p.job.id: p for p in planned}.values() if p.timing]
    seconds = sum(p.timing.seconds for p in open_jobs if p.timing)
    flops = sum(p.flops for p in open_jobs)
    low, high = min(p.epochs for p in planned), max(p.epochs for p in planned)
    epochs = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    jobs = "1 job" if len(open_jobs) == 1 else f"{len(open_jobs)} jobs"
    lines.append(
        f"{jobs} to run: {flops:.3g} FLOPs, about {clock(seconds)} one after the other; "
        f"{epochs} epochs over the data each"
    )
    if open_jobs and open_jobs[0].timing:
        lines.append(f"times: {open_jobs[0].timing.how}")
    matches = [p.job.match for p in planned if p.job.match]
    if matches:
        first = matches[0]
        lines.append(f"budget: {first['target']:,} {first['kind']} of {first['to']} in each layer")
    return [*lines, *(f"warning: {text}" for text in warnings_of(planned))]

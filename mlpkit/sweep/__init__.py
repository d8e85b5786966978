"""Sweeps: variants at equal budget, job identity, one record per job; no torch at import."""

from mlpkit.sweep.jobs import (
    SWEEP_ROOT,
    Job,
    checked_job,
    checked_jobs,
    expand,
    job_id,
    labels,
    settled,
    sweep_id,
)
from mlpkit.sweep.matching import match_budget

__all__ = [
    "SWEEP_ROOT",
    "Job",
    "checked_job",
    "checked_jobs",
    "expand",
    "job_id",
    "labels",
    "match_budget",
    "settled",
    "sweep_id",
]

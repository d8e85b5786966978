"""Runs as pandas frames, for a notebook: one of runs, one of their steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mlpkit.report.records import Run, Variant
from mlpkit.report.runs import find_runs
from mlpkit.report.variants import flatten, make_variants

if TYPE_CHECKING:
    from pandas import DataFrame

Scalar = str | int | float | bool | None


class RunTables(NamedTuple):
    """Runs in two frames, which share the columns ``run``, ``variant`` and ``seed``.

    Args:
        runs: A row per run: ``run``, ``variant``, ``status``, ``path`` …, the dotted configuration
            (``ffn.name``), the model's numbers (``parameters``) and the final ones (``val_bpb``).
        steps: A row per line of metrics.jsonl: ``step``, ``tokens``, ``loss``, ``val_bpb`` …
    """

    runs: DataFrame
    steps: DataFrame


def load_runs(path: str | Path | Iterable[str | Path]) -> RunTables:
    """Reads runs into pandas, whatever state they are in.

    Args:
        path: A run directory, a folder that holds runs at any depth, a sweep.json, or several.

    Raises:
        NoRunsError: There is no run.
        ImportError: pandas is not installed.
    """
    try:
        # of the extra `report`, and slow to import: only who asks for frames pays for it
        from pandas import DataFrame
    except ImportError as error:
        raise ImportError("load_runs needs pandas; pip install 'mlpkit[report]'") from error
    variants, _, _ = make_variants(find_runs(path))
    runs = [(variant, run) for variant in variants for run in variant.runs]
    steps = [
        {"run": run.id, "variant": variant.name, "seed": run.seed, **_scalars(line)}
        for variant, run in runs
        for line in run.steps
    ]
    return RunTables(DataFrame([run_row(v, run) for v, run in runs]), DataFrame(steps))


def run_row(variant: Variant, run: Run) -> dict[str, Scalar]:
    """A run as a flat row: who it is, its configuration, its model and its final numbers.

    Args:
        variant: The variant that it belongs to.
        run: The run.
    """
    return {
        "run": run.id,
        "variant": variant.name,
        "group": variant.group,
        "status": run.status,
        "counted": run in variant.ok,
        "path": str(run.path),
        "overrides": " ".join(run.overrides),
        "error": run.error,
        "problems": "; ".join(run.problems) or None,
        **{key: value for key, value in _scalars(flatten(run.config)).items() if key != "run_dir"},
        "seed": run.seed,
        **_scalars(run.model),
        **_scalars(run.metrics),
    }


def _scalars(values: Mapping[str, Any]) -> dict[str, Scalar]:
    """What fits into a cell; a list does as text, a mapping (the load of each layer) does not."""
    kept: dict[str, Scalar] = {}
    for key, value in values.items():
        if isinstance(value, list):
            kept[key] = str(value)
        elif value is None or isinstance(value, str | int | float | bool):
            kept[key] = value
    return kept

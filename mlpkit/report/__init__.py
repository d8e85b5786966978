"""The report: run directories → statistics → tables and figures → one HTML file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlpkit.report.comparison import compare as compare
    from mlpkit.report.frames import RunTables as RunTables
    from mlpkit.report.frames import load_runs as load_runs
    from mlpkit.report.notebook import plot_curves as plot_curves
    from mlpkit.report.notebook import plot_effects as plot_effects
    from mlpkit.report.notebook import plot_heatmap as plot_heatmap
    from mlpkit.report.notebook import plot_pareto as plot_pareto
    from mlpkit.report.runs import find_runs as find_runs
    from mlpkit.report.writing import write_report as write_report

# Imported on first use: reading runs needs no torch, and only the page needs its template engine.
_HOMES = {
    "RunTables": "mlpkit.report.frames",
    "compare": "mlpkit.report.comparison",
    "find_runs": "mlpkit.report.runs",
    "load_runs": "mlpkit.report.frames",
    "plot_curves": "mlpkit.report.notebook",
    "plot_effects": "mlpkit.report.notebook",
    "plot_heatmap": "mlpkit.report.notebook",
    "plot_pareto": "mlpkit.report.notebook",
    "write_report": "mlpkit.report.writing",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mlpkit.report' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

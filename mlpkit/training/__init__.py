"""The run: loop, validation, metrics and the run directory."""

from mlpkit.training.loop import NonFiniteLossError, train
from mlpkit.training.run_directory import RunDirectory, RunDirectoryError, load_config, load_run

__all__ = [
    "NonFiniteLossError",
    "RunDirectory",
    "RunDirectoryError",
    "load_config",
    "load_run",
    "train",
]

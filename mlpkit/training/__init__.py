"""The run: loop, validation, metrics, checkpoints and the run directory."""

from mlpkit.training.checkpoints import CheckpointError
from mlpkit.training.launch import train
from mlpkit.training.loop import NonFiniteLossError
from mlpkit.training.resume import ResumeError
from mlpkit.training.run_directory import RunDirectory, RunDirectoryError, load_config, load_run
from mlpkit.training.signals import StoppedError

__all__ = [
    "CheckpointError",
    "NonFiniteLossError",
    "ResumeError",
    "RunDirectory",
    "RunDirectoryError",
    "StoppedError",
    "load_config",
    "load_run",
    "train",
]

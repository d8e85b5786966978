"""The run directory: configuration, result, metrics and weights, each written atomically."""

from mlpkit.training.run_directory.directory import RunDirectory
from mlpkit.training.run_directory.files import (
    CHECKPOINTS,
    CONFIG,
    LOCK,
    METRICS,
    RESULT,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    RunDirectoryError,
    require_own_files,
    write_atomically,
)
from mlpkit.training.run_directory.lock import holder, is_held
from mlpkit.training.run_directory.reading import load_run, read_lines, read_result
from mlpkit.training.run_directory.saved_config import (
    hide_environment,
    hiding,
    load_config,
    plain_config,
    read_config,
)

__all__ = [
    "CHECKPOINTS",
    "CONFIG",
    "LOCK",
    "METRICS",
    "RESULT",
    "TOKENIZER",
    "TOKENIZER_CONFIG",
    "WEIGHTS",
    "RunDirectory",
    "RunDirectoryError",
    "hide_environment",
    "hiding",
    "holder",
    "is_held",
    "load_config",
    "load_run",
    "plain_config",
    "read_config",
    "read_lines",
    "read_result",
    "require_own_files",
    "write_atomically",
]

"""A job that starts from another run: its model is that run's; no torch unless one does."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig


def from_source(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The configuration with the model of ``init_from`` under the user's own overrides.

    Args:
        config: A composed configuration.
        overrides: What the user gave.

    Raises:
        RunDirectoryError: ``init_from`` is no run directory.
        ConfigError: The two do not go together.
    """
    if config.init_from is None:
        return config
    from mlpkit.training.starting import inherit  # imports torch: only who starts from a run waits

    return inherit(config, overrides)


def initial_weights(path: str) -> str:
    """The sha256 of the weights that a job starts from: other weights are another job.

    Args:
        path: A run directory or a Hugging Face folder, whose weights may be in several files;
            without weights it stands for itself, and training will say so.
    """
    files = sorted(Path(path).expanduser().glob("*.safetensors"))
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest() if files else path

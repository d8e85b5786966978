"""Checkpoints: written whole, verified before they are read, read without running anything."""

from mlpkit.training.checkpoints.manifest import CheckpointError, verify
from mlpkit.training.checkpoints.store import (
    Checkpoint,
    CheckpointStore,
    no_stage,
    open_checkpoint,
)

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointStore",
    "no_stage",
    "open_checkpoint",
    "verify",
]

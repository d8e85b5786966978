"""The names of a run's files, and how one is replaced whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

CONFIG, RESULT, METRICS = "config.yaml", "result.json", "metrics.jsonl"
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
TOKENIZER_CONFIG, CHECKPOINTS, LOCK = "tokenizer_config.json", "checkpoints", ".lock"


class RunDirectoryError(ValueError):
    """A directory that is not a run, or cannot become one."""

    exit_code = 2


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file: readers see the old or the new one whole, also after a crash."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

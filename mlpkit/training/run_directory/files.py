"""The names of a run's files, and how one is replaced whole."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

CONFIG, RESULT, METRICS = "config.yaml", "result.json", "metrics.jsonl"
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
TOKENIZER_CONFIG, CHECKPOINTS, LOCK = "tokenizer_config.json", "checkpoints", ".lock"
UNFINISHED = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp\Z")  # what a kill within write_atomically leaves


class RunDirectoryError(ValueError):
    """A directory that is not a run, or cannot become one."""

    exit_code = 2


def require_own_files(directory: Path) -> None:
    """Refuses a run directory whose files lie elsewhere: it is written, read and emptied.

    Args:
        directory: The directory; it exists.

    Raises:
        RunDirectoryError: It holds a link, a pipe or a device.
        OSError: It cannot be listed.
    """
    for child in sorted(os.scandir(directory), key=lambda child: child.name):
        if child.is_symlink():
            raise RunDirectoryError(
                f"run_dir {directory} holds a link ({child.name} → {os.readlink(child)}), and what "
                "a run reads and writes is in its own directory alone; put the whole run_dir where "
                "the link leads"
            )
        if not (child.is_file() or child.is_dir()):
            raise RunDirectoryError(
                f"run_dir {directory} holds {child.name}, which is no plain file; remove it"
            )


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file: readers see the old or the new one whole, also after a crash."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
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

"""RunDirectory: what one run writes, each file atomically, under the run's lock."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock
from omegaconf import DictConfig
from safetensors.torch import save
from torch import Tensor

from mlpkit.data import Tokenizer
from mlpkit.training.run_directory.files import (
    CHECKPOINTS,
    CONFIG,
    LOCK,
    METRICS,
    RESULT,
    TOKENIZER,
    TOKENIZER_CONFIG,
    UNFINISHED,
    WEIGHTS,
    RunDirectoryError,
    require_own_files,
    write_atomically,
)
from mlpkit.training.run_directory.lock import hold
from mlpkit.training.run_directory.reading import read_lines, read_result
from mlpkit.training.run_directory.saved_config import config_text


class RunDirectory:
    """One run's files.

    Args:
        path: The directory; it exists.
        lock: Its lock, held until ``close``; None for one that nobody trains in.
    """

    def __init__(self, path: Path, lock: FileLock | None = None) -> None:
        self.path, self._lock = path, lock

    @classmethod
    def create(cls, path: Path | None, *, resume: bool = False) -> RunDirectory:
        """Makes the directory of a run, or takes one that exists, and holds its lock.

        Args:
            path: Where; None: outputs/<date>/<time> below the working directory.
            resume: Whether a run that is there already shall go on.

        Raises:
            RunDirectoryError: It holds a run already, or other files, or cannot be made, or
                another process trains in it.
        """
        try:
            if path is None:
                path = _dated_directory(Path("outputs"))
            path.mkdir(parents=True, exist_ok=True)
            require_own_files(path)
            if not (path / LOCK).exists():  # nobody is at it, and a folder of others gets no lock
                _require_room(path, resume=resume)
            directory = cls(path, hold(path))
        except OSError as error:
            raise RunDirectoryError(
                f"run_dir {path or 'outputs'} cannot be made: {error}; choose another run_dir"
            ) from error
        try:
            _require_room(path, resume=resume)
            _remove_unfinished(path)
        except BaseException:
            directory.close()
            raise
        return directory

    def close(self) -> None:
        """Frees the lock."""
        if self._lock is not None:
            self._lock.release()

    @property
    def checkpoints(self) -> Path:
        """Where its checkpoints are."""
        return self.path / CHECKPOINTS

    def write_config(self, config: DictConfig) -> None:
        """Saves the resolved configuration, which rebuilds the run elsewhere."""
        write_atomically(self.path / CONFIG, config_text(config).encode())

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Replaces the result record."""
        self.write_json(RESULT, result)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Replaces a file of plain values."""
        text = json.dumps(content, indent=2, ensure_ascii=False)
        write_atomically(self.path / name, f"{text}\n".encode())

    def write_text(self, name: str, text: str) -> None:
        """Replaces a text file."""
        write_atomically(self.path / name, text.encode())

    def log(self, line: Mapping[str, Any]) -> None:
        """Appends a line to the metrics."""
        try:
            with (self.path / METRICS).open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise RunDirectoryError(f"{self.path / METRICS} cannot be written: {error}") from error

    def sync_metrics(self) -> None:
        """Brings the metrics to the disk, before a checkpoint that counts on them."""
        with (self.path / METRICS).open("a") as file:
            os.fsync(file.fileno())

    def cut_metrics(self, *, step: int, scored: bool, source: Path | None = None) -> None:
        """Keeps the lines up to a step, so that none is there twice when it is taken again.

        Args:
            step: The step that the run goes on from.
            scored: Whether the validation of that step is done, and its line stays.
            source: The run directory whose lines they are; None: this one.
        """
        kept = [
            line
            for line in read_lines((source or self.path) / METRICS)
            if line["step"] < step or (line["step"] == step and (scored or "loss" in line))
        ]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(self.path / METRICS, text.encode())

    def write_weights(self, state: Mapping[str, Tensor]) -> None:
        """Saves a model's state dict as safetensors, in its own precision."""
        tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        write_atomically(self.path / WEIGHTS, save(tensors, metadata={"format": "pt"}))

    def write_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Keeps a copy of the tokenizer's files, so that the run can be used elsewhere."""
        source = tokenizer.file
        if source is not None and source.parent.resolve() == self.path.resolve():
            return
        for name in (TOKENIZER, TOKENIZER_CONFIG):  # those of an earlier, unfinished run
            (self.path / name).unlink(missing_ok=True)
        if source is None:
            return
        shutil.copyfile(source, self.path / TOKENIZER)
        # which token ends a document
        if (said := source.with_name(TOKENIZER_CONFIG)).is_file():
            shutil.copyfile(said, self.path / TOKENIZER_CONFIG)


def _require_room(path: Path, *, resume: bool) -> None:
    """Refuses a directory that a run cannot start in (or, with resume, go on in)."""
    names = sorted(child.name for child in path.iterdir())
    found = [name for name in names if name != LOCK and not UNFINISHED.match(name)]
    if not found:
        return
    if RESULT not in found:
        raise RunDirectoryError(
            f"run_dir {path} holds other files ({', '.join(found[:3])} …); choose an empty one"
        )
    if resume:
        return
    if (status := read_result(path, locked=True)["status"]) in ("ok", "running"):
        raise RunDirectoryError(
            f"run_dir {path} holds a run with status {status!r}; choose another directory"
        )
    if any((path / CHECKPOINTS).glob("step_*")):
        raise RunDirectoryError(
            f"run_dir {path} holds checkpoints of a run with status {status!r}; resume=auto goes "
            "on from them, or choose another directory"
        )


def _remove_unfinished(path: Path) -> None:
    """Removes what was being written when a process of the run was killed; the lock is held."""
    for child in path.iterdir():
        if UNFINISHED.match(child.name) and child.is_file():
            child.unlink()


def _dated_directory(root: Path) -> Path:
    """A new directory <root>/<date>/<time>; a second run in the same second gets a number."""
    now = datetime.now()
    day = root / now.strftime("%Y-%m-%d")
    day.mkdir(parents=True, exist_ok=True)
    for attempt in range(1000):
        path = day / (now.strftime("%H-%M-%S") + (f"-{attempt}" if attempt else ""))
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{day} holds a thousand runs of this second")

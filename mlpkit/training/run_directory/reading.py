"""Reading a run directory: its result, its metrics, its trained model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from safetensors import SafetensorError
from safetensors.torch import load_file

from mlpkit.build import UncountableError, build_model, hollow_model
from mlpkit.compose.untrusted import require_plain_file
from mlpkit.data import Tokenizer, build_tokenizer
from mlpkit.model import Decoder
from mlpkit.training.run_directory.files import (
    CONFIG,
    RESULT,
    TOKENIZER,
    WEIGHTS,
    RunDirectoryError,
)
from mlpkit.training.run_directory.lock import is_held
from mlpkit.training.run_directory.saved_config import load_config


def read_result(path: Path, *, locked: bool = False) -> dict[str, Any]:
    """A run's result; a "running" one that nobody runs any more reads as "lost".

    Args:
        path: The run directory.
        locked: Whether the caller holds its lock, so that nobody else runs it.

    Raises:
        RunDirectoryError: There is none, or it is damaged.
    """
    try:
        require_plain_file(path / RESULT)
        result: dict[str, Any] = json.loads((path / RESULT).read_text())
        if result["status"] == "running" and not is_running(path, result["pid"], locked=locked):
            result["status"] = "lost"
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{path} is not a run directory: it has no {RESULT}") from error
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise RunDirectoryError(f"{path / RESULT} is damaged: {error}") from error
    return result


def is_running(path: Path, pid: int, *, locked: bool = False) -> bool:
    """Whether the process of a run goes on: by its lock, which also holds on another machine.

    Args:
        path: The run directory.
        pid: The process that its record names, for where there is no lock.
        locked: Whether the caller holds the lock.
    """
    if locked:
        return False
    held = is_held(path)
    return _is_alive(pid) if held is None else held


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file that are whole; a crash can cut one off."""
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines


def load_run(path: Path) -> tuple[Decoder, Tokenizer, DictConfig]:
    """The trained model of a run directory, its tokenizer and its configuration.

    Raises:
        RunDirectoryError: Something is missing or damaged.
        ConfigError: The configuration does not fit this installation.
    """
    config = load_config(path)
    copied = path / TOKENIZER
    tokenizer = build_tokenizer(str(copied) if copied.is_file() else config.data.tokenizer)
    _require_sizes(path, config, tokenizer)
    model = build_model(config, tokenizer=tokenizer)
    try:
        model.load_state_dict(load_file(path / WEIGHTS))
    except FileNotFoundError as error:
        status = read_result(path)["status"]
        raise RunDirectoryError(
            f"{path} has no weights ({WEIGHTS}): the run's status is {status!r}"
        ) from error
    except (SafetensorError, RuntimeError) as error:
        # torch names every tensor that does not fit, a line each, below a heading
        lines = str(error).splitlines()
        raise RunDirectoryError(
            f"{path / WEIGHTS} does not fit {CONFIG}: {lines[min(1, len(lines) - 1)].strip()}"
        ) from error
    return model.eval(), tokenizer, config


def _require_sizes(path: Path, config: DictConfig, tokenizer: Tokenizer) -> None:
    """Refuses a configuration of a larger model than its weights, before memory is taken for it."""
    try:
        model = hollow_model(config, tokenizer=tokenizer)
    except UncountableError as error:
        raise RunDirectoryError(f"{path / CONFIG} is damaged: {error}") from error
    needed = sum(parameter.numel() for parameter in model.parameters())
    if (path / WEIGHTS).is_file() and (found := (path / WEIGHTS).stat().st_size) < needed:
        raise RunDirectoryError(
            f"{path / WEIGHTS} does not fit {CONFIG}: it has {found:,} bytes for the {needed:,} "
            "parameters that are described there"
        )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

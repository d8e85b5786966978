"""The run directory: configuration, result, metrics and weights, each written atomically."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from yaml import YAMLError

from mlpkit.build import build_model
from mlpkit.compose import ConfigError, check
from mlpkit.configs.run import RunConfig
from mlpkit.data import Tokenizer, build_tokenizer
from mlpkit.data.tokenizers import NAMES
from mlpkit.model import Decoder

CONFIG, RESULT, METRICS = "config.yaml", "result.json", "metrics.jsonl"
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"


class RunDirectoryError(ValueError):
    """A directory that is not a run, or cannot become one."""

    exit_code = 2


class RunDirectory:
    """One run's files.

    Args:
        path: The directory; it exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path | None) -> RunDirectory:
        """Makes the directory of a new run.

        Args:
            path: Where; None: outputs/<date>/<time> below the working directory.

        Raises:
            RunDirectoryError: It holds a run already, or other files, or cannot be made.
        """
        try:
            if path is None:
                return cls(_dated_directory(Path("outputs")))
            path.mkdir(parents=True, exist_ok=True)
            found = sorted(child.name for child in path.iterdir())
        except OSError as error:
            raise RunDirectoryError(f"run_dir {path} cannot be made: {error}") from error
        if RESULT in found and read_result(path)["status"] in ("ok", "running"):
            raise RunDirectoryError(
                f"run_dir {path} holds a run with status {read_result(path)['status']!r}; "
                "choose another directory"
            )
        if found and RESULT not in found:
            raise RunDirectoryError(
                f"run_dir {path} holds other files ({', '.join(found[:3])} …); choose an empty one"
            )
        return cls(path)

    def write_config(self, config: DictConfig) -> None:
        """Saves the resolved configuration, which rebuilds the run elsewhere."""
        text = OmegaConf.to_yaml(config, resolve=True)
        write_atomically(self.path / CONFIG, text.encode())

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Replaces the result record."""
        text = json.dumps(result, indent=2, ensure_ascii=False)
        write_atomically(self.path / RESULT, f"{text}\n".encode())

    def log(self, line: Mapping[str, Any]) -> None:
        """Appends a line to the metrics."""
        with (self.path / METRICS).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def start_metrics(self) -> None:
        """Empties the metrics of an earlier, unfinished run in the same directory."""
        (self.path / METRICS).write_bytes(b"")

    def write_weights(self, model: Decoder) -> None:
        """Saves the weights as safetensors, in their own precision."""
        tensors = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
        write_atomically(self.path / WEIGHTS, save(tensors, metadata={"format": "pt"}))

    def write_tokenizer(self, config: DictConfig) -> None:
        """Keeps a copy of the tokenizer's files, so that the run can be used elsewhere."""
        for name in (TOKENIZER, TOKENIZER_CONFIG):  # those of an earlier, unfinished run
            (self.path / name).unlink(missing_ok=True)
        name = str(config.data.tokenizer)
        source = Path(name).expanduser()
        source = source / TOKENIZER if source.is_dir() else source
        if name in NAMES or not source.is_file():
            return
        shutil.copyfile(source, self.path / TOKENIZER)
        # which token ends a document
        if (said := source.with_name(TOKENIZER_CONFIG)).is_file():
            shutil.copyfile(said, self.path / TOKENIZER_CONFIG)


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


def read_result(path: Path) -> dict[str, Any]:
    """A run's result; a "running" one whose process is gone reads as "lost".

    Raises:
        RunDirectoryError: There is none, or it is damaged.
    """
    try:
        result: dict[str, Any] = json.loads((path / RESULT).read_text())
        if result["status"] == "running" and not _is_alive(result["pid"]):
            result["status"] = "lost"
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{path} is not a run directory: it has no {RESULT}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunDirectoryError(f"{path / RESULT} is damaged: {error}") from error
    return result


def load_config(path: Path) -> DictConfig:
    """The checked configuration of a run directory.

    Raises:
        RunDirectoryError: There is none, or it is damaged.
        ConfigError: It needs a plugin that is not installed, or holds foreign keys.
    """
    try:
        loaded = OmegaConf.load(path / CONFIG)
        config = OmegaConf.merge(OmegaConf.structured(RunConfig), loaded)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunDirectoryError(f"{path} is not a run directory: it has no {CONFIG}") from error
    except (OmegaConfBaseException, YAMLError, ValueError, OSError) as error:
        raise RunDirectoryError(f"{path / CONFIG} is damaged: {error}") from error
    assert isinstance(config, DictConfig)
    try:
        check(config)
    except ConfigError as error:
        raise ConfigError(f"{path / CONFIG}: {error}") from error
    return config


def load_run(path: Path) -> tuple[Decoder, Tokenizer, DictConfig]:
    """The trained model of a run directory, its tokenizer and its configuration.

    Raises:
        RunDirectoryError: Something is missing or damaged.
        ConfigError: The configuration does not fit this installation.
    """
    config = load_config(path)
    copied = path / TOKENIZER
    tokenizer = build_tokenizer(str(copied) if copied.is_file() else config.data.tokenizer)
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


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

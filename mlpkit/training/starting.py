"""Starting from another run's weights: its model under the user's own choices, loaded strictly."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from omegaconf import DictConfig, open_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mlpkit.build import plain
from mlpkit.compose import check
from mlpkit.convert.importing import read_checkpoint
from mlpkit.data import Tokenizer
from mlpkit.model import Decoder
from mlpkit.training.resume import AUTO
from mlpkit.training.run_directory import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    load_config,
)

TAKEN = ("ffn", "ffns", "activation")  # with the keys of model, and the tokenizer
SHOWN = 3  # tensors that a message names


class InitialWeightsError(ValueError):
    """Weights that cannot be started from, or do not fit the configured model."""

    exit_code = 4


def inherit(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The configuration with what ``init_from`` says of the model and is not overridden.

    Taken are ``ffn``, ``ffns`` and ``activation``, each as a whole, every key of ``model``, and
    the tokenizer.

    Args:
        config: A composed configuration; it stays as it is.
        overrides: What the user gave; what is named there is theirs.

    Raises:
        RunDirectoryError: ``init_from`` is no run directory.
        ConfigError: The two do not go together.
    """
    if config.init_from is None:
        return config
    path = own_directory(config) or Path(config.init_from).expanduser()
    source, merged = source_config(path), copy.deepcopy(config)
    given = [override_key(override) for override in overrides]
    with open_dict(merged):
        for key in TAKEN:
            if not _is_given(key, given):
                merged[key] = plain(source[key])
        for key, value in source.model.items():
            if not ("model" in given or _is_given(f"model.{key}", given)):
                merged.model[key] = plain(value)
        if not _is_given("data.tokenizer", given):
            own = path / TOKENIZER
            merged.data.tokenizer = str(own) if own.is_file() else source.data.tokenizer
    check(merged)
    return merged


def own_directory(config: DictConfig) -> Path | None:
    """The directory of a run that goes on: it has taken what it needs, and init_from may be gone.

    Args:
        config: A composed configuration.
    """
    if config.resume is None:
        return None
    chosen = config.run_dir if config.resume == AUTO else Path(config.resume).parent.parent
    path = Path(chosen) if chosen else None
    return path if path and (path / CONFIG).is_file() else None


def source_config(path: Path) -> DictConfig:
    """The configuration of the run directory, or of the Hugging Face folder, to start from.

    Raises:
        RunDirectoryError: It is neither.
        ConversionError: It is a folder of a model that mlpkit cannot hold.
    """
    return read_checkpoint(path).config if is_foreign(path) else load_config(path)


def is_foreign(path: Path) -> bool:
    """Whether a directory is a Hugging Face checkpoint, as ``mlpkit export`` also writes."""
    return not (path / CONFIG).is_file() and (path / "config.json").is_file()


def read_weights(path: Path) -> tuple[dict[str, Tensor], str]:
    """The weights of a run directory or Hugging Face folder under mlpkit's names, and their sha256.

    Raises:
        WeightsError: The folder's weights are damaged, or not those of its configuration.
        OSError: There are none.
        SafetensorError: A run's are damaged.
    """
    with TemporaryDirectory() as folder:
        file = path / WEIGHTS
        if is_foreign(path):
            file = Path(folder) / WEIGHTS
            read_checkpoint(path).write_weights(file)
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return load_file(file), digest


def override_key(override: str) -> str:
    """What an override sets: ``ffn.router`` of ``ffn/router=topk``."""
    key = override.lstrip("+~").partition("=")[0]
    return (key.partition("@")[2] or key).replace("/", ".")


def _is_given(key: str, given: Sequence[str]) -> bool:
    return any(one == key or one.startswith(f"{key}.") for one in given)


def load_initial(config: DictConfig, model: Decoder, tokenizer: Tokenizer) -> dict[str, str] | None:
    """Loads the weights that ``init_from`` names; every tensor must be there, and fit.

    Args:
        config: The run's configuration, which describes the same model.
        model: What is loaded into.
        tokenizer: What the run reads text with.

    Returns:
        Where they came from, with their sha256, for the record; None without ``init_from``.

    Raises:
        InitialWeightsError: The file is missing or damaged, or tensors do not fit.
    """
    if config.init_from is None:
        return None
    path = Path(config.init_from).expanduser()
    try:
        weights, digest = read_weights(path)
    except (OSError, SafetensorError) as error:
        raise InitialWeightsError(
            f"init_from={path}: {path / WEIGHTS} cannot be read ({error}); give the directory "
            "of a run that has ended"
        ) from error
    _require_fit(config, weights, model.state_dict(), tokenizer)
    model.load_state_dict(weights)
    return {"path": str(config.init_from), "sha256": digest}


def _require_fit(
    config: DictConfig,
    found: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    tokenizer: Tokenizer,
) -> None:
    """Refuses weights of another model, naming the first tensors that differ."""
    shapes = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    others = {name: tuple(tensor.shape) for name, tensor in found.items()}
    vocabulary = "embed_tokens.weight"
    if others.get(vocabulary, shapes[vocabulary])[0] != shapes[vocabulary][0]:
        raise InitialWeightsError(
            f"init_from={config.init_from} knows {others[vocabulary][0]} tokens and tokenizer "
            f"{tokenizer.name!r} needs {shapes[vocabulary][0]}; leave data.tokenizer out to use "
            "the one that it was trained with"
        )
    wrong = [
        f"{name} {others.get(name, 'is missing')} for {shapes.get(name, 'no such tensor')}"
        for name in {**shapes, **others}
        if shapes.get(name) != others.get(name)
    ]
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise InitialWeightsError(
            f"init_from={config.init_from} holds another model: {', '.join(wrong[:SHOWN])}{more}; "
            "leave out the overrides of ffn, ffns and model, or give those it was trained with"
        )

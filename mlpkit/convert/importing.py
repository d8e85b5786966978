"""Reading a checkpoint of someone else as one of ours: configuration, weights, tokenizer."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict

from mlpkit.compose import ConfigError, compose
from mlpkit.convert.families import FAMILIES, Family, family_of
from mlpkit.convert.folders import (
    CONFIG,
    TOKENIZER_FILES,
    ConversionError,
    WeightsError,
    read_config,
)
from mlpkit.convert.inferring import minimind_config, minimind_generation
from mlpkit.convert.matching import CARRIED, SHOWN, Matching, match, shapes_of
from mlpkit.convert.names import EMBEDDING
from mlpkit.convert.settings import Settings
from mlpkit.convert.sources import Safetensors, Source, torch_file
from mlpkit.convert.tokenizer_files import found_files
from mlpkit.convert.translating import model_overrides, settings_of
from mlpkit.convert.writing import converted, write_file
from mlpkit.layers import LayerPatternError

ALLOWED = ("sliding_window", "unused")
KEPT = ("max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A checkpoint that has been checked and can be written as ours.

    Args:
        family: What it is.
        config: Our configuration of it.
        overrides: What would be typed for that configuration.
        matching: Where each of its tensors goes.
        source: Its tensors.
        tokenizer: Its tokenizer's files; empty: it has none.
        facts: What an export tells the next reader and our configuration has no word for.
    """

    family: Family
    config: DictConfig
    overrides: tuple[str, ...]
    matching: Matching
    source: Source
    tokenizer: tuple[Path, ...]
    facts: Mapping[str, Any]

    def write_weights(self, path: Path) -> None:
        """Writes our tensors as one safetensors file, in the precision they came in.

        Args:
            path: Where.
        """
        write_file(path, [converted(move.read, self.source) for move in self.matching.moves])

    def copy_tokenizer(self, folder: Path) -> None:
        """Copies the tokenizer's files.

        Args:
            folder: Where to.
        """
        for file in self.tokenizer:
            shutil.copyfile(file, folder / file.name)

    def report(self) -> dict[str, Any]:
        """Everything that was found, for people and programs."""
        return {
            "family": self.family.name,
            "overrides": list(self.overrides),
            "tensors": self.matching.summary(),
            "tokenizer": [file.name for file in self.tokenizer],
        }


def read_checkpoint(
    path: Path, *, allow: Collection[str] = (), tokenizer: Path | None = None
) -> Imported:
    """Checks a checkpoint and finds its model; no weight is read yet.

    Args:
        path: A folder with ``config.json`` and safetensors, or a ``.pth`` of MiniMind.
        allow: "sliding_window": import a model whose attention is windowed; "unused": import
            weights of which some have no place in the model.
        tokenizer: A ``tokenizer.json``, or a folder with one; None: the checkpoint's own.

    Raises:
        ConversionError: It is a model that mlpkit has not, or the tokenizer is not for it.
        WeightsError: Its weights are damaged, dangerous, or not those of its configuration.
    """
    for word in allow:
        if word not in ALLOWED:
            raise ConversionError(f"allow has {word!r}; it takes {', '.join(ALLOWED)}")
    values, source, folder = _open(path)
    where = str(folder / CONFIG if (folder / CONFIG).is_file() else path)
    family = _whole_family(values, source, where)
    config = settings_of(family, values, where=where, allowed=tuple(allow))
    refuse_lies(config, source)
    try:
        overrides = model_overrides(family, config)
        ours = compose(overrides)
    except (ConfigError, LayerPatternError) as error:
        raise ConversionError(f"{where}: {error}") from error
    counts = {"s": config.get("n_shared_experts") or 1}
    matching = match(family, shapes_of(ours, config.whole("vocab_size")), source, counts)
    if "unused" not in allow:
        _refuse_unused(family, matching, source)
    files = found_files(tokenizer or folder, config.whole("vocab_size"))
    if tokenizer and not files:
        raise ConversionError(f"--tokenizer {tokenizer} has no {TOKENIZER_FILES[0]}")
    with open_dict(ours):
        ours.data.tokenizer = str(files[0]) if files else "bytes"
    facts = {key: values[key] for key in KEPT if isinstance(values.get(key), int | list)}
    return Imported(
        family=family,
        config=ours,
        overrides=tuple(overrides),
        matching=matching,
        source=source,
        tokenizer=files,
        facts=facts,
    )


def _refuse_unused(family: Family, matching: Matching, source: Source) -> None:
    odd = [name for name in matching.unused if not CARRIED.match(name)]
    if odd:
        more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
        raise WeightsError(
            f"{source.label}: a {family.name} of this configuration has no place for "
            f"{', '.join(odd[:SHOWN])}{more}; with --allow unused it is imported without them"
        )


def _open(path: Path) -> tuple[dict[str, Any], Source, Path]:
    """Configuration, tensors, and the folder that they are in."""
    if path.is_file() and path.suffix == ".pth":
        folder, source = path.parent, torch_file(path)
        said = read_config(folder) if (folder / CONFIG).is_file() else {}
        return minimind_config(source, said), source, folder
    if path.is_file():
        raise WeightsError(
            f"{path} is a file; give the folder with its {CONFIG}, or a .pth of MiniMind"
        )
    if not (path / CONFIG).is_file():
        raise ConversionError(f"{path} has no {CONFIG}; give the folder that save_pretrained wrote")
    return read_config(path), Safetensors(path), path


def _whole_family(values: Mapping[str, Any], source: Source, where: str) -> Family:
    name = values.get("model_type")
    family = minimind_generation(source) if name == "minimind" else family_of(name, where)
    if family.block_only:
        whole = ", ".join(name for name, known in FAMILIES.items() if not known.block_only)
        raise ConversionError(
            f"{where}: of {family.name} only the FFNs can be read, since {family.block_only}: "
            f"mlpkit.convert.load_block; whole models are read of {whole}"
        )
    written = values.get("architectures")
    if family.architecture and written and family.architecture not in written:
        raise ConversionError(
            f"{where}: it is a {written}, and {family.name} is read as {family.architecture}"
        )
    return family


def refuse_lies(config: Settings, source: Source) -> None:
    """Compares sizes with the files before a model of those sizes is built.

    Raises:
        WeightsError: The configuration asks for more than the files can hold.
    """
    entry = source.entries.get(EMBEDDING)
    if entry is None:
        raise WeightsError(f"{source.label} has no {EMBEDDING}; it is no whole decoder")
    said = (config.whole("vocab_size"), config.whole("hidden_size"))
    if entry.shape != said:
        raise WeightsError(
            f"{entry.where}: {EMBEDDING} has the shape {entry.shape}, and {config.where} says "
            f"vocab_size {said[0]} and hidden_size {said[1]}"
        )
    layers, elements = config.whole("num_hidden_layers"), source.elements()
    if layers > len(source.entries):
        raise WeightsError(
            f"{config.where} says num_hidden_layers {layers:,}, and {source.label} has "
            f"{len(source.entries)} tensors"
        )
    for key in ("intermediate_size", "moe_intermediate_size", "num_attention_heads", "head_dim"):
        value = config.get(key)
        if isinstance(value, int) and value > elements:
            raise WeightsError(
                f"{config.where} says {key} {value:,}, and {source.label} has {elements:,} numbers"
            )

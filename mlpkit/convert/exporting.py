"""Writing a model of ours as a folder that transformers loads, checked before it is there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from mlpkit.convert.choosing import choose_target
from mlpkit.convert.families import Family
from mlpkit.convert.folders import CONFIG, ConversionError, WeightsError
from mlpkit.convert.layout import Rule
from mlpkit.convert.matching import Matching, choose, rules_of, shapes_of, uncovered
from mlpkit.convert.sources import Safetensors, Source
from mlpkit.convert.targets import Target
from mlpkit.convert.verifying import largest_difference
from mlpkit.convert.writing import SHARD_BYTES, converted, write_json, write_weights
from mlpkit.layers import slots_by_layer

# Logits of both sides may differ by so much, times the largest logit where that is above 1.
TOLERANCE = 1e-4
DTYPE_NAMES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written.

    Args:
        family: The family whose class loads it.
        architecture: That class.
        matching: Which tensor became which.
        difference: Largest difference of a logit between transformers and us; None: not compared.
        unverified: Why not; empty where it was compared.
        notes: What of the configuration was left out.
    """

    family: str
    architecture: str
    matching: Matching
    difference: float | None
    unverified: str
    notes: tuple[str, ...]


def export_model(
    config: DictConfig,
    weights: Path,
    out: Path,
    *,
    facts: Mapping[str, Any],
    tokenizer: Mapping[str, bytes],
    verify: bool = True,
    shard_bytes: int = SHARD_BYTES,
) -> Exported:
    """Writes a folder for ``AutoModelForCausalLM.from_pretrained``.

    The folder appears when it is whole: it is written and compared beside its place first.

    Args:
        config: Our configuration.
        weights: The folder with our ``model.safetensors``.
        out: The folder to make; it does not exist.
        facts: Keys of ``config.json`` that our configuration has no word for, and their values.
        tokenizer: The tokenizer's files and their contents.
        verify: Whether to compare logits with transformers, where it is installed.
        shard_bytes: The most bytes of weights in a file.

    Raises:
        ConversionError: No class holds the model, the folder exists, or transformers computes
            something else.
        WeightsError: The weights are damaged or not those of the configuration.
    """
    source = Safetensors(weights)
    model = check_weights(config, source)
    target = choose_target(config, partial(width_of, config, model))
    moves = moves_to(target.family, model, config.model.num_layers)
    with appearing(out) as folder:
        pieces = [converted(move.write, source) for move in moves]
        write_weights(folder, pieces, shard_bytes=shard_bytes)
        write_json(folder / CONFIG, hf_config(config, target, source, facts))
        ids = {key: facts[key] for key in facts if key.endswith("_token_id")}
        write_json(folder / "generation_config.json", ids)
        for name, content in tokenizer.items():
            (folder / name).write_bytes(content)
        not_compared = (None, "not asked for")
        difference, unverified = compared(config, source, folder) if verify else not_compared
    return Exported(
        family=target.family.name,
        architecture=target.family.architecture,
        matching=Matching(moves=tuple(moves)),
        difference=difference,
        unverified=unverified,
        notes=target.notes,
    )


def check_weights(config: DictConfig, source: Source) -> dict[str, Tensor]:
    """Our model's state dict without memory, equal in names and shapes to a file.

    Args:
        config: Our configuration.
        source: Our weights.

    Raises:
        WeightsError: They are of another model.
    """
    embedding = source.entries.get("embed_tokens.weight")
    if embedding is None:
        raise WeightsError(f"{source.label} has no embed_tokens.weight; it is no run's weights")
    model = shapes_of(config, embedding.shape[0])
    for name in sorted(model.keys() | source.entries.keys()):
        wanted = tuple(model[name].shape) if name in model else None
        found = source.entries[name].shape if name in source.entries else None
        if wanted != found:
            raise WeightsError(
                f"{source.label}: {name} is {found or 'missing'}, and the configuration of the "
                f"run says {wanted or 'that there is none'}"
            )
    return model


def moves_to(family: Family, model: Mapping[str, Tensor], num_layers: int) -> list[Rule]:
    """The rules, names written out, that make a family's tensors of ours.

    Args:
        family: The family.
        model: Our model's state dict.
        num_layers: Its layers.

    Raises:
        ConversionError: The family has no place for a tensor.
    """
    moves = choose(rules_of(family, num_layers), model, {})
    if left := uncovered(model, moves):  # it should not have been chosen: a mistake of ours
        raise ConversionError(f"{family.name} has no place for {', '.join(left)}; please report it")
    return moves


def width_of(config: DictConfig, model: Mapping[str, Tensor], slot: str, part: str) -> int:
    """The width of a slot's FFN, as it was built; 0: it has no such part.

    Args:
        config: Our configuration.
        model: The model's state dict.
        slot: The slot.
        part: Empty, "experts" or "shared".
    """
    layer = slots_by_layer(config).index(slot)
    where = f"layers.{layer}.ffn.{part}." if part else f"layers.{layer}.ffn."
    down = model.get(f"{where}down_proj.weight")
    return 0 if down is None else int(down.shape[-1])


def hf_config(
    config: DictConfig, target: Target, source: Source, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """What stands in the ``config.json``.

    Args:
        config: Our configuration.
        target: The class that was chosen.
        source: Our weights.
        facts: What our configuration has no word for.
    """
    model, embedding = config.model, source.entries["embed_tokens.weight"]
    rope = {"rope_type": "default", "rope_theta": model.rope_theta}
    dtype = DTYPE_NAMES[embedding.dtype]
    # Both spellings of a thing where transformers 4 and 5, and other readers, differ.
    values = {
        "architectures": [target.family.architecture],
        "model_type": target.family.name,
        "vocab_size": embedding.shape[0],
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim or model.hidden_size // model.num_attention_heads,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_parameters": rope,
        "tie_word_embeddings": model.tie_word_embeddings,
        "attention_dropout": 0.0,
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    if "partial_rotary_factor" in target.family.defaults:
        values |= {"partial_rotary_factor": 1.0}
        rope["partial_rotary_factor"] = 1.0
    if target.family.name != "llama":
        values |= {"sliding_window": None, "use_sliding_window": False}
    return {**values, **target.values, **facts}


def compared(config: DictConfig, source: Source, folder: Path) -> tuple[float | None, str]:
    """The largest difference of a logit, or why there is none.

    Raises:
        ConversionError: It is larger than rounding explains.
    """
    try:
        import transformers  # noqa: F401  # an optional extra, and seconds to import
    except ImportError:
        return None, "transformers is not installed (pip install 'mlpkit[hf]')"
    difference, largest = largest_difference(config, source, folder)
    if not difference <= TOLERANCE * max(1.0, largest):  # also NaN
        raise ConversionError(
            f"transformers computes logits that differ by {difference:.3g} from ours (largest "
            f"logit {largest:.3g}); nothing was written. Please report it"
        )
    return difference, ""


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A folder that has its name only once all is in it, and leaves nothing behind otherwise.

    Args:
        out: Where it will be.

    Raises:
        ConversionError: Something is there, or it cannot be made.
    """
    out = out.expanduser()
    if out.exists() or out.is_symlink():
        raise ConversionError(f"{out} exists; choose a folder that does not")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    except OSError as error:
        raise ConversionError(f"{out} cannot be made: {error.strerror}") from error
    try:
        yield folder
        folder.chmod(0o755)
        if out.exists():
            raise ConversionError(f"{out} was made by someone else meanwhile; choose another")
        os.rename(folder, out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise

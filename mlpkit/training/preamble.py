"""What a run says before its first step: to people, and to the record."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import torch
from omegaconf import DictConfig

from mlpkit import __version__
from mlpkit.data import Dataset
from mlpkit.data.batches import tokens_per_epoch
from mlpkit.describe import Description, count_parameters
from mlpkit.lint import lint
from mlpkit.model import Decoder
from mlpkit.plugins import plugin_versions, registries
from mlpkit.training.hardware import hardware
from mlpkit.training.precision import Precision


def announcement(
    config: DictConfig, dataset: Dataset, precision: Precision, description: Description
) -> list[str]:
    """The lines that say what will be trained: parts, data, tokens and epochs, device, notes.

    Args:
        config: The composed configuration.
        dataset: The tokens.
        precision: Where and how it is computed.
        description: The model in numbers.
    """
    options, meta = config.training, dataset.meta
    tokens = options.max_steps * options.batch_size * options.sequence_length
    epochs = tokens / tokens_per_epoch(dataset, sequence_length=options.sequence_length)
    total = tokens * description.training_flops_per_token
    return [
        str(description),
        f"data       {config.data.name}, {meta.train.tokens:,} tokens to train on, "
        f"{meta.val.tokens:,} to validate on, tokenizer {meta.tokenizer}",
        f"training   {options.max_steps:,} steps × {options.batch_size} × "
        f"{options.sequence_length} = {tokens:,} tokens, {epochs:.2f} epochs, {total:.3g} FLOPs",
        f"computing  {precision}, threads: {torch.get_num_threads()}",
        *(f"note       {finding}" for finding in lint(config, registries())),
    ]


def provenance(
    config: DictConfig,
    dataset: Dataset,
    precision: Precision,
    description: Description,
    model: Decoder,
) -> dict[str, Any]:
    """What a run is made from, for its result record.

    Args:
        config: The composed configuration.
        dataset: The tokens.
        precision: Where and how it is computed.
        description: The model in numbers.
        model: The model.
    """
    ffns = [block.get_submodule("ffn") for block in model.layers]
    return {
        **origin(config, description),
        "computing": str(precision),
        "hardware": hardware(precision.device),
        "threads": torch.get_num_threads(),
        "git": git_state(),
        "data": {"name": config.data.name, **fingerprints(dataset)},
        "model": {**numbers(description), "ffn_parameters": count_parameters(ffns)},
    }


def untrained(
    config: DictConfig, description: Description, overrides: Sequence[str]
) -> dict[str, Any]:
    """The record of a model that came without a step of training: imported, or upcycled.

    Args:
        config: The composed configuration.
        description: The model in numbers.
        overrides: What would be typed for it.
    """
    return {
        "status": "ok",
        "pid": os.getpid(),
        "overrides": list(overrides),
        **origin(config, description),
        "model": numbers(description),
        "step": 0,
        "metrics": {},
    }


def origin(config: DictConfig, description: Description) -> dict[str, Any]:
    """What every record begins with: when, what, and by which versions.

    Args:
        config: The composed configuration.
        description: The model in numbers.
    """
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "ffn": description.ffn,
        "seed": config.seed,
        "mlpkit": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "plugins": plugin_versions(),
    }


def numbers(description: Description) -> dict[str, int | float]:
    """A model's numbers as a record has them.

    Args:
        description: The model in numbers.
    """
    return {
        "parameters": description.parameters,
        "active_parameters": description.active_parameters,
        "flops_per_token": description.flops_per_token,
        "training_flops_per_token": description.training_flops_per_token,
    }


def fingerprints(dataset: Dataset) -> dict[str, str]:
    """What text a run sees, and as which tokens."""
    meta = dataset.meta
    return {"fingerprint": meta.source_fingerprint, "tokenizer": meta.tokenizer_fingerprint}


def git_state() -> dict[str, Any] | None:
    """The commit of the working directory's repository, and whether tracked files differ from it.

    Returns:
        ``commit`` and ``dirty``; None outside of a repository, or without git.
    """
    # A repository can name a program for git to run on every status; none is run for a record.
    command = ["git", "-c", "core.fsmonitor=false"]
    try:
        commit, status = (
            subprocess.run(
                [*command, *arguments], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(status)}

"""What a run says before its first step: to people, and to the record."""

from __future__ import annotations

import platform
from datetime import datetime
from typing import Any

import torch
from omegaconf import DictConfig

from mlpkit import __version__
from mlpkit.data import Dataset
from mlpkit.data.batches import tokens_per_epoch
from mlpkit.describe import Description
from mlpkit.lint import lint
from mlpkit.plugins import plugin_versions, registries
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
    config: DictConfig, dataset: Dataset, precision: Precision, description: Description
) -> dict[str, Any]:
    """What a run is made from, for its result record.

    Args:
        config: The composed configuration.
        dataset: The tokens.
        precision: Where and how it is computed.
        description: The model in numbers.
    """
    meta = dataset.meta
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "ffn": description.ffn,
        "seed": config.seed,
        "mlpkit": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "computing": str(precision),
        "threads": torch.get_num_threads(),
        "plugins": plugin_versions(),
        "data": {
            "name": config.data.name,
            "fingerprint": meta.source_fingerprint,
            "tokenizer": meta.tokenizer_fingerprint,
        },
    }

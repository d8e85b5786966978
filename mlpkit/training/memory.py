"""Whether a run fits into memory at all, found out before anything is allocated."""

from __future__ import annotations

import os
import sys

import torch
from omegaconf import DictConfig

from mlpkit.build.hollow import UNCOUNTABLE, is_uncountable
from mlpkit.compose import ConfigError
from mlpkit.describe import Description, describe
from mlpkit.sizing import bytes_text, training_memory
from mlpkit.training.precision import choose_precision

# The count of activations is in float32, and kernels that recompute need less: what is over by
# less than this may still fit.
SLACK = 2.0


def require_memory(config: DictConfig) -> Description:
    """The model in numbers; refuses a run that needs far more memory than the device has.

    Args:
        config: A composed configuration.

    Raises:
        ConfigError: It cannot fit, or has sizes that cannot be counted.
    """
    options = config.training
    tokens = options.batch_size * options.sequence_length
    sizes = (
        f"lower model.hidden_size ({config.model.hidden_size}), training.batch_size "
        f"({options.batch_size}) or training.sequence_length ({options.sequence_length})"
    )
    try:
        description = describe(config)
    except UNCOUNTABLE as error:
        if not is_uncountable(error):
            raise
        least = bytes_text(attention_memory(config))
        raise ConfigError(f"the model needs more than {least} of memory: {sizes}") from error
    device = choose_precision(options.device, options.precision).device
    needed, present = description.memory.total, device_memory(device)
    if needed > SLACK * present * processes(config):
        raise ConfigError(
            f"a training step needs about {bytes_text(needed)} ({description.parameters:,} "
            f"parameters, {tokens:,} tokens), and {device} has {bytes_text(present)}: {sizes}, or "
            "raise training.gradient_accumulation_steps"
        )
    return description


def attention_memory(config: DictConfig) -> int:
    """Bytes that two matrices of each layer's attention take in training: a lower bound."""
    model = config.model
    heads = model.num_attention_heads
    width = heads * model.head_dim if model.head_dim else model.hidden_size
    return training_memory(2 * model.num_layers * model.hidden_size * width).total


def device_memory(device: torch.device) -> int:
    """The bytes of memory of a device, used or not."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if sys.platform == "win32":  # no sysconf there; the allocator's own message must do
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def processes(config: DictConfig) -> int:
    """The processes that a model is spread over."""
    return int(config.parallel.shard) * int(config.parallel.expert)

"""From a configuration to the description of its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from omegaconf import DictConfig

from mlpkit.build import build_model, ffn_label, plain
from mlpkit.build.parts import split
from mlpkit.compose import compose
from mlpkit.describe.activations import activation_bytes
from mlpkit.describe.description import Description
from mlpkit.describe.parts import Part, model_parts
from mlpkit.describe.sizes import Span, count_parameters, ffn_size
from mlpkit.model import Decoder
from mlpkit.sizing import training_memory


def describe(config: DictConfig | Sequence[str] = (), model: Decoder | None = None) -> Description:
    """The parts of a configuration's model.

    Args:
        config: A composed configuration, or overrides for ``compose``.
        model: The model where it is built already; None: it is built without storage.

    Raises:
        ConfigError: The configuration is wrong.
        BuildError: A part refuses its options.
    """
    if not isinstance(config, DictConfig):
        config = compose(list(config))
    with torch.device("meta"):
        hollow = build_model(config)
    model = model or hollow
    parts, training = model_parts(config, model), config.training
    ffn, inherited = plain(config.ffn), plain(config.activation)
    size = ffn_size(ffn, hidden_size=config.model.hidden_size, inherited_activation=inherited)
    parameters = count_parameters([model])
    active = sum(part.active_parameters for part in parts)
    flops = sum(part.flops for part in parts)
    label, name = ffn_label(ffn, inherited), split(ffn, {})[0]
    return Description(
        ffn=label,
        width="; ".join(_widths(parts)),
        backend=backend_text(config, model),
        batch_size=training.batch_size,
        sequence_length=training.sequence_length,
        parts=parts,
        parameters=parameters,
        active_parameters=active,
        active_range=_around(active, size.active, len(model.layers)),
        flops_per_token=flops,
        flops_range=_around(flops, size.flops, len(model.layers)),
        memory=training_memory(parameters, _activations(config, hollow)),
        note="" if label.partition("[")[0] == name else f"ffn={name} is {label} here",
    )


def backend_text(config: DictConfig, model: Decoder) -> str:
    """How experts are run on a CPU at the training's even load, and why; "" without experts."""
    ffn: Any = model.layers[0].ffn
    if not hasattr(getattr(ffn, "experts", None), "backend_name"):
        return ""
    experts, training = ffn.experts, config.training
    per_token = ffn.router.num_experts_per_tok
    rows = micro_batch(config) * training.sequence_length * per_token // experts.num_experts
    # "auto" decides by the load; groups decide each for itself
    picks = hasattr(experts, "pick")
    name = experts.pick([rows] * experts.num_experts) if picks else experts.backend_name
    reason = f"; {experts.backend_reason}" if experts.backend_reason else ""
    return f"{name}, at {rows:,} rows an expert on a CPU{reason}"


def micro_batch(config: DictConfig) -> int:
    """The sequences of the largest micro-batch of a step."""
    training = config.training
    return -(-int(training.batch_size) // int(training.gradient_accumulation_steps))


def _activations(config: DictConfig, model: Decoder) -> int | None:
    length = config.training.sequence_length
    try:
        return activation_bytes(model, batch_size=micro_batch(config), sequence_length=length)
    except Exception:  # a stranger's FFN may look at values, and there are none
        return None


def _around(mean: int, ffn: Span, layers: int) -> tuple[int, int]:
    """The model's smallest and largest number, from its mean and its FFN's span."""
    return mean - layers * (ffn.mean - ffn.low), mean + layers * (ffn.high - ffn.mean)


def _widths(parts: Sequence[Part]) -> list[str]:
    """The width rules of the FFN or its experts, each once."""
    found = [width for part in parts for width in [part.width, *_widths(part.parts)] if width]
    return list(dict.fromkeys(found))

"""From a configuration to the description of its model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch
from omegaconf import DictConfig
from torch import nn

from mlpkit.build import Component, build_model, ffn_label, plain
from mlpkit.build.parts import split
from mlpkit.compose import compose
from mlpkit.describe.activations import activation_bytes
from mlpkit.describe.description import Description
from mlpkit.describe.modules import ModuleDescription, describe_module
from mlpkit.describe.parts import Part, layers_name, model_parts
from mlpkit.describe.sizes import Size, count_parameters, ffn_size
from mlpkit.layers import MAIN, key_of, layers_by_slot, slot_ffns
from mlpkit.model import Decoder
from mlpkit.sizing import training_memory


@overload
def describe(
    config: DictConfig | Sequence[str] = (), model: Decoder | None = None
) -> Description: ...


@overload
def describe(config: nn.Module) -> ModuleDescription: ...


def describe(
    config: DictConfig | Sequence[str] | nn.Module = (), model: Decoder | None = None
) -> Description | ModuleDescription:
    """The parts of a configuration's model, or of any module.

    Args:
        config: A composed configuration, or overrides for ``compose``; or a module, of which
            parameters alone are known.
        model: The model where it is built already; None: it is built without storage.

    Raises:
        ConfigError: The configuration is wrong.
        BuildError: A part refuses its options.
    """
    if isinstance(config, nn.Module):
        return describe_module(config)
    if not isinstance(config, DictConfig):
        config = compose(list(config))
    hollow = model
    if hollow is None or not hollow.embed_tokens.weight.is_meta:
        with torch.device("meta"):
            hollow = build_model(config)
    model = model or hollow
    parts, training = model_parts(config, model), config.training
    sizes = _sizes(config)
    parameters = count_parameters([model])
    active = sum(part.active_parameters for part in parts)
    flops = sum(part.flops for part in parts)
    return Description(
        ffn=_label(config),
        width="; ".join(_widths(parts)),
        backend=backend_text(config, model),
        batch_size=training.batch_size,
        sequence_length=training.sequence_length,
        parts=parts,
        parameters=parameters,
        active_parameters=active,
        active_range=(
            active - sum(n * (s.active.mean - s.active.low) for s, n in sizes),
            active + sum(n * (s.active.high - s.active.mean) for s, n in sizes),
        ),
        flops_per_token=flops,
        flops_range=(
            flops - sum(n * (s.flops.mean - s.flops.low) for s, n in sizes),
            flops + sum(n * (s.flops.high - s.flops.mean) for s, n in sizes),
        ),
        memory=training_memory(parameters, _activations(config, hollow)),
        note="; ".join(_notes(config)),
    )


def _slots(config: DictConfig) -> dict[str, tuple[Component, list[int]]]:
    """The FFN and the layers of every slot that a layer has."""
    ffns = slot_ffns(config)
    return {slot: (plain(ffns[slot]), layers) for slot, layers in layers_by_slot(config).items()}


def _sizes(config: DictConfig) -> list[tuple[Size, int]]:
    """The size of each slot's FFN, and how many layers have it."""
    hidden, inherited = config.model.hidden_size, plain(config.activation)
    return [
        (ffn_size(ffn, hidden_size=hidden, inherited_activation=inherited), len(layers))
        for ffn, layers in _slots(config).values()
    ]


def _label(config: DictConfig) -> str:
    """What the FFN is; where layers differ, with the layers: ``swiglu (layer 0), moe[…] (…)``."""
    slots, inherited = _slots(config), plain(config.activation)
    labels = {slot: ffn_label(ffn, inherited) for slot, (ffn, _) in slots.items()}
    if len(slots) == 1:
        return next(iter(labels.values()))
    return ", ".join(
        f"{labels[slot]} ({layers_name(layers)})" for slot, (_, layers) in slots.items()
    )


def _notes(config: DictConfig) -> Iterator[str]:
    """The FFNs that are something else than they are called."""
    for slot, (ffn, _) in _slots(config).items():
        label, name = ffn_label(ffn, plain(config.activation)), split(ffn, {})[0]
        if label.partition("[")[0] != name:
            choice = "ffn" if slot == MAIN else f"ffn@{key_of(slot)}"
            yield f"{choice}={name} is {label} here"


def backend_text(config: DictConfig, model: Decoder) -> str:
    """How experts are run on a CPU at the training's even load, and why; "" without experts."""
    firsts = [layers[0] for layers in layers_by_slot(config).values()]
    found = [_backend_of(config, model.layers[layer].ffn) for layer in firsts]
    return "; ".join(dict.fromkeys(text for text in found if text))


def _backend_of(config: DictConfig, ffn: Any) -> str:
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


def _widths(parts: Sequence[Part]) -> list[str]:
    """The width rules of the FFN or its experts, each once."""
    found = [width for part in parts for width in [part.width, *_widths(part.parts)] if width]
    return list(dict.fromkeys(found))

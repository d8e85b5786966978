"""The parts of a model as a tree: shapes, width rules, parameters and FLOPs of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig
from torch import nn

from mlpkit.build import Component, build_ffn, ffn_label, plain
from mlpkit.build.parts import split
from mlpkit.configs.moe import moe_options
from mlpkit.describe.sizes import count_parameters, ffn_size
from mlpkit.describe.widths import expert_width_steps, width_steps
from mlpkit.layers import MAIN, layers_by_slot, slot_ffns, span_text
from mlpkit.model import Block, Decoder
from mlpkit.plugins import registries
from mlpkit.schema import holds_experts
from mlpkit.sizing import attention_flops

if TYPE_CHECKING:
    from mlpkit.describe.mixtures import Piece

SHOWN = 6  # matrices of a stranger's FFN; more say nothing


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of part of a model; its numbers are of all ``count`` of them together.

    Args:
        name: Its name in the module tree.
        count: How many of it there are.
        detail: Its shape in words.
        width: How its width came about; empty if it has none.
        parameters: What it shares with an earlier part is not counted.
        active_parameters: Those that one token uses, with all experts used equally often.
        flops: Forward FLOPs per token of the matrix products; a multiply-add is 2.
        parts: The parts of one of it.
    """

    name: str
    count: int = 1
    detail: str = ""
    width: str = ""
    parameters: int = 0
    active_parameters: int = 0
    flops: int = 0
    parts: tuple[Part, ...] = ()


def model_parts(config: DictConfig, model: Decoder) -> tuple[Part, ...]:
    """The parts of a model from input to output.

    Args:
        config: Its configuration.
        model: The model, on any device.
    """
    return (_embedding(model), *_layers(config, model), _head(model))


def _embedding(model: Decoder) -> Part:
    vocab, hidden = model.embed_tokens.weight.shape
    tied = model.lm_head is None
    return Part(
        name="embed_tokens",
        detail=f"V×H = {vocab}×{hidden}" + (", also the head" if tied else ""),
        parameters=vocab * hidden,
        active_parameters=vocab * hidden,
        flops=2 * vocab * hidden if tied else 0,
    )


def _head(model: Decoder) -> Part:
    head = model.lm_head
    parameters = count_parameters([model.norm, *([] if head is None else [head])])
    return Part(
        name="norm" if head is None else "norm, lm_head",
        parameters=parameters,
        active_parameters=parameters,
        flops=0 if head is None else 2 * head.weight.numel(),
    )


def _layers(config: DictConfig, model: Decoder) -> tuple[Part, ...]:
    """The layers of each slot, together: their blocks are equal."""
    found = layers_by_slot(config)
    return tuple(_slot_part(config, model, slot, found) for slot in found)


def _slot_part(config: DictConfig, model: Decoder, slot: str, layers: dict[str, list[int]]) -> Part:
    block, count = model.layers[layers[slot][0]], len(layers[slot])
    assert isinstance(block, Block)
    ffn = ffn_part(config, slot_ffns(config)[slot], block.ffn)
    parts = (_attention(config, model, block), ffn, _norms(block))
    name, detail = "layers", "each:" if count > 1 else ""
    if list(layers) != [MAIN]:
        name, detail = layers_name(layers[slot]), f"{slot}, {detail}" if detail else slot
    return Part(
        name=name,
        count=count,
        detail=detail,
        parameters=count * sum(part.parameters for part in parts),
        active_parameters=count * sum(part.active_parameters for part in parts),
        flops=count * sum(part.flops for part in parts),
        parts=parts,
    )


def layers_name(layers: Sequence[int]) -> str:
    """Layers in words: ``layer 0``, ``layers 1-3``, ``layers 1,3``."""
    return f"layer{'s' if len(layers) > 1 else ''} {span_text(layers)}"


def _attention(config: DictConfig, model: Decoder, block: Block) -> Part:
    options, size = config.model, model.head_dim
    heads, groups = options.num_attention_heads, options.num_key_value_heads
    flops = attention_flops(
        options.hidden_size,
        num_heads=heads,
        num_key_value_heads=groups,
        head_dim=size,
        sequence_length=config.training.sequence_length,
    )
    parameters = count_parameters([block.self_attn])
    return Part(
        name="self_attn",
        detail=f"{heads} heads, {groups} key-value heads × {size}",
        parameters=parameters,
        active_parameters=parameters,
        flops=flops,
    )


def _norms(block: Block) -> Part:
    parameters = count_parameters([block.input_layernorm, block.post_attention_layernorm])
    return Part(name="norms", parameters=parameters, active_parameters=parameters)


def ffn_part(config: DictConfig, component: Component, ffn: nn.Module) -> Part:
    """The FFN of a layer.

    Args:
        config: The run's configuration.
        component: The FFN's name, or its mapping.
        ffn: The FFN that was built from it: its parameters are counted on it.
    """
    hidden, inherited = config.model.hidden_size, plain(config.activation)
    component = plain(component)
    spec = registries().ffn.get(split(component, {})[0])
    size = ffn_size(component, hidden_size=hidden, inherited_activation=inherited)
    label = ffn_label(component, inherited)
    mixture = holds_experts(spec)
    return Part(
        name="ffn",
        detail=label if mixture else f"{label}{shapes(ffn)}",
        width="" if mixture else width_steps(component, hidden),
        parameters=count_parameters([ffn]),
        active_parameters=size.active.mean,
        flops=size.flops.mean,
        parts=mixture_parts(component, hidden, inherited) if mixture else (),
    )


def shapes(ffn: nn.Module) -> str:
    """The matrices of an FFN: ``, 3·H·I = 3·128·384 = 147,456``, or name by name."""
    matrices = {n: p for n, p in ffn.named_parameters() if p.ndim > 1}
    down = matrices.get("down_proj.weight")
    if down is not None and all(p.numel() == down.numel() for p in matrices.values()):
        (hidden, width), count = down.shape, len(matrices)
        return f", {count}·H·I = {count}·{hidden}·{width} = {count * hidden * width:,}"
    shown = [
        f"{name.removesuffix('.weight')} {'×'.join(str(n) for n in p.shape)}"
        for name, p in list(matrices.items())[:SHOWN]
    ]
    more = [f"{len(matrices) - SHOWN} more"] if len(matrices) > SHOWN else []
    return "".join(f", {text}" for text in (*shown, *more))


def mixture_parts(
    ffn: Component, hidden_size: int, inherited: Component | None
) -> tuple[Part, ...]:
    """The parts of a MoE.

    Args:
        ffn: Its name or mapping.
        hidden_size: H.
        inherited: The run's activation.
    """
    # a dense model loads no MoE code
    from mlpkit.describe.mixtures import moe_pieces

    options = moe_options(split(ffn, {})[1])

    def to_part(piece: Piece) -> Part:
        return Part(
            name=piece.name,
            count=piece.count,
            detail=_piece_detail(piece, options, hidden_size, inherited),
            width=_piece_width(piece, options["num_experts_per_tok"]),
            parameters=piece.count * piece.size.parameters,
            active_parameters=piece.active.mean,
            flops=piece.flops.mean,
        )

    pieces = moe_pieces(options, hidden_size=hidden_size, inherited_activation=inherited)
    return tuple(to_part(piece) for piece in pieces)


def _piece_detail(
    piece: Piece, options: dict[str, Any], hidden_size: int, inherited: Component | None
) -> str:
    experts, chosen = options["num_experts"], options["num_experts_per_tok"]
    if piece.matched is not None:
        label = ffn_label(piece.matched, inherited)
        if holds_experts(registries().ffn.get(split(piece.matched, {})[0])):
            return label
        with torch.device("meta"):
            one = build_ffn(
                piece.matched, hidden_size=piece.hidden_size, inherited_activation=inherited
            )
        return f"{label}{shapes(one)}"
    if piece.name == "router":
        name = split(options["router"], {})[0]
        matrix = f", E×H = {experts}×{hidden_size}" if piece.size.flops.mean else ""
        return f"{name}{matrix}, {chosen} of {experts}"
    return {
        "latent": f"2·H·L = 2·{hidden_size}·{options['latent_size']}",
        "combine": f"2·K·{'L' if options['latent_size'] else 'H'} = 2·{chosen}·{piece.hidden_size}",
        "shared_gate": f"1×H = 1×{hidden_size}",
        "output_bias": f"H = {hidden_size}",
    }[piece.name]


def _piece_width(piece: Piece, num_experts_per_tok: int) -> str:
    if piece.component is None or piece.matched is None:
        return ""
    return expert_width_steps(
        piece.component, piece.matched, piece.hidden_size, num_experts_per_tok
    )

"""What a configuration builds: its parts with parameters and FLOPs, as a tree or as JSON."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mlpkit.build import build_model, ffn_label, plain
from mlpkit.compose import compose
from mlpkit.model import Block, Decoder
from mlpkit.plugins import registries
from mlpkit.sizing import attention_flops, training_flops
from mlpkit.specs import resolve


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of part of a model.

    Args:
        name: Its name in the module tree.
        depth: 1 for the model's own parts, 2 for those of a block.
        count: How many of it there are.
        detail: Its shape in words.
        parameters: Parameters of one of it; what it shares with an earlier part is not counted.
        flops: Forward FLOPs per token of one of it; a multiply-add is 2.
    """

    name: str
    depth: int
    count: int
    detail: str
    parameters: int
    flops: int


@dataclass(frozen=True, kw_only=True)
class Description:
    """A model in numbers.

    Args:
        ffn: What its FFN is, whatever the configuration called it.
        sequence_length: The length that attention's FLOPs are counted for.
        parts: Its parts from input to output.
        parameters: Of the whole model; a tied matrix is counted once.
        flops_per_token: Forward, of the whole model.
        note: What a reader should know about the names; empty if nothing.
    """

    ffn: str
    sequence_length: int
    parts: tuple[Part, ...]
    parameters: int
    flops_per_token: int
    note: str

    @property
    def training_flops_per_token(self) -> int:
        """Forward and backward."""
        return training_flops(self.flops_per_token)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "training_flops_per_token": self.training_flops_per_token}

    def __str__(self) -> str:
        rows = [("", "parameters", "forward FLOPs/token")]
        last = {p.depth: p for p in self.parts}
        for part in self.parts:
            branch = "└─" if part is last[part.depth] else "├─"
            stem = "│  " * (part.depth - 1) + branch
            times = f" ×{part.count}" if part.count > 1 and part.depth == 1 else ""
            rows.append(
                (
                    f"{stem} {part.name}{times}  {part.detail}".rstrip(),
                    f"{part.parameters:,}" if part.parameters else "",
                    f"{part.flops:,}" if part.flops else "",
                )
            )
        rows.append(("total", f"{self.parameters:,}", f"{self.flops_per_token:,}"))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
        lines.append(
            f"training {self.training_flops_per_token:,} FLOPs/token at sequence length "
            f"{self.sequence_length}"
        )
        return "\n".join([*lines, *([f"note: {self.note}"] if self.note else [])])


def describe(config: DictConfig | Sequence[str] = (), model: Decoder | None = None) -> Description:
    """The parts of a configuration's model.

    Args:
        config: A composed configuration, or overrides for ``compose``.
        model: The model where it is built already; None: it is built without storage.

    Raises:
        ConfigError: The configuration is wrong.
    """
    if not isinstance(config, DictConfig):
        config = compose(list(config))
    if model is None:
        with torch.device("meta"):
            model = build_model(config)
    parts = (*_outer_parts(config, model), *_block_parts(config, model), _last_part(model))
    num_layers = len(model.layers)
    flops = sum(p.flops * (num_layers if p.depth == 2 else 1) for p in parts if p.name != "layers")
    label = ffn_label(plain(config.ffn), plain(config.activation))
    named = config.ffn if isinstance(config.ffn, str) else config.ffn.name
    return Description(
        ffn=label,
        sequence_length=config.training.sequence_length,
        parts=parts,
        parameters=count_parameters([model]),
        flops_per_token=flops,
        note="" if label.partition("[")[0] == named else f"ffn={named} is {label} here",
    )


def count_parameters(modules: Iterable[nn.Module]) -> int:
    """Parameters of modules together, each tensor once."""
    unique = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(unique.values())


def ffn_flops(config: DictConfig, ffn: nn.Module) -> int:
    """Forward FLOPs per token of an FFN: its spec's formula, else counted on a copy."""
    options = plain(config.ffn)
    name = options if isinstance(options, str) else options.pop("name")
    spec = registries().ffn.get(name)
    hidden_size = config.model.hidden_size
    if spec.flops_per_token is not None:
        formula = resolve(spec.flops_per_token)
        return int(formula(hidden_size, **({} if isinstance(options, str) else options)))
    return count_flops(ffn, hidden_size)


def count_flops(module: nn.Module, hidden_size: int) -> int:
    """Forward FLOPs per token of a module (..., H), as torch counts matrix products."""
    tokens = 64  # enough for parts that work on groups of tokens; the count is an average
    module = copy.deepcopy(module).to("meta")
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.empty(1, tokens, hidden_size))
    return int(counter.get_total_flops()) // tokens


def _outer_parts(config: DictConfig, model: Decoder) -> tuple[Part, Part]:
    vocab, hidden = model.embed_tokens.weight.shape
    tied = model.lm_head is None
    embedding = Part(
        name="embed_tokens",
        depth=1,
        count=1,
        detail=f"V×H = {vocab}×{hidden}" + (", also the head" if tied else ""),
        parameters=vocab * hidden,
        flops=2 * vocab * hidden if tied else 0,
    )
    blocks = Part(
        name="layers",
        depth=1,
        count=len(model.layers),
        detail="each:",
        parameters=0,
        flops=0,
    )
    return embedding, blocks


def _block_parts(config: DictConfig, model: Decoder) -> tuple[Part, ...]:
    block, options = model.layers[0], config.model
    assert isinstance(block, Block)
    heads = dict(
        num_heads=options.num_attention_heads,
        num_key_value_heads=options.num_key_value_heads,
        head_dim=model.head_dim,
    )
    attention = Part(
        name="self_attn",
        depth=2,
        count=len(model.layers),
        detail="{num_heads} heads, {num_key_value_heads} key-value heads × {head_dim}".format(
            **heads
        ),
        parameters=count_parameters([block.self_attn]),
        flops=attention_flops(
            options.hidden_size, sequence_length=config.training.sequence_length, **heads
        ),
    )
    ffn = Part(
        name="ffn",
        depth=2,
        count=len(model.layers),
        detail=_ffn_detail(config, block.ffn),
        parameters=count_parameters([block.ffn]),
        flops=ffn_flops(config, block.ffn),
    )
    norms = Part(
        name="norms",
        depth=2,
        count=len(model.layers),
        detail="",
        parameters=count_parameters([block.input_layernorm, block.post_attention_layernorm]),
        flops=0,
    )
    return attention, ffn, norms


def _last_part(model: Decoder) -> Part:
    head = model.lm_head
    return Part(
        name="norm" if head is None else "norm, lm_head",
        depth=1,
        count=1,
        detail="",
        parameters=count_parameters([model.norm, *([] if head is None else [head])]),
        flops=0 if head is None else 2 * head.weight.numel(),
    )


def _ffn_detail(config: DictConfig, ffn: nn.Module) -> str:
    """The label, and the shapes of the FFN's matrices: ``swiglu, 3·H·I = 3·128·384``."""
    label = ffn_label(plain(config.ffn), plain(config.activation))
    linears = [m for m in ffn.modules() if isinstance(m, nn.Linear)]
    down = getattr(ffn, "down_proj", None)
    if not isinstance(down, nn.Linear) or not all(
        m.weight.numel() == down.weight.numel() for m in linears
    ):
        return label
    hidden, width = down.weight.shape
    return f"{label}, {len(linears)}·H·I = {len(linears)}·{hidden}·{width}"

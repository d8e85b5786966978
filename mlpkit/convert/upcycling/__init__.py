"""Upcycling: a trained dense model becomes a mixture of its own FFN (Komatsuzaki 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from mlpkit.build import build_model, derived_seed, plain
from mlpkit.build.parts import split as name_and_options
from mlpkit.convert.upcycling.configs import Plan, plan
from mlpkit.convert.upcycling.filling import SCALING, Cut, Filled, fill
from mlpkit.convert.upcycling.parts import UpcycleError
from mlpkit.convert.upcycling.receipt import (
    LayerReceipt,
    Receipt,
    ffn_difference,
    logits_difference,
)
from mlpkit.data import Tokenizer
from mlpkit.layers import key_of, slots_by_layer
from mlpkit.model import Decoder
from mlpkit.moe import MoE

__all__ = ["LayerReceipt", "Receipt", "UpcycleError", "Upcycled", "upcycle_model"]


@dataclass(frozen=True, kw_only=True)
class Upcycled:
    """An upcycled model.

    Args:
        model: The model, on the CPU.
        tokenizer: The source's.
        config: Its configuration, which builds it again.
        receipt: What changed.
    """

    model: Decoder
    tokenizer: Tokenizer
    config: DictConfig
    receipt: Receipt


def upcycle_model(
    dense: Decoder,
    tokenizer: Tokenizer,
    config: DictConfig,
    overrides: Sequence[str] = (),
    *,
    split: int = 1,
    noise: float = 0.0,
    scale: float | None = None,
    layers: str | None = None,
) -> Upcycled:
    """Turns dense FFNs into mixtures of copies (arXiv:2212.05055) or parts (arXiv:2410.07524).

    With a router whose weights add up to a constant, and as many experts per token as a multiple
    of the parts, the model computes at first what the dense one did. The receipt says how
    exactly, and where it does not, why.

    Args:
        dense: The trained model; it stays as it is.
        tokenizer: Its tokenizer.
        config: Its configuration.
        overrides: Of ``ffn`` alone: which mixture, how many experts. The experts are the model's
            own FFN.
        split: In how many parts an FFN is cut, at least 1; a shared FFN is one of them.
        noise: Standard deviation of what is added to the experts' matrices, relative to theirs.
        scale: What the router's weights are multiplied by; None: what keeps the sum.
        layers: Which layers, e.g. "2-"; None: all.

    Raises:
        UpcycleError: A layer has experts already, or its FFN cannot be cut so.
        ConfigError: An override, or the configuration that comes out, is wrong.
    """
    if not 0 <= noise < float("inf"):
        raise UpcycleError(f"noise is {noise}; give 0 or a number above it")
    planned = plan(config, overrides, split=split, layers=layers)
    model = build_model(planned.config, tokenizer=tokenizer)
    model.to(dense.embed_tokens.weight.dtype)
    _copy_others(dense, model, planned)
    receipts = _fill_layers(dense, model, planned, noise=noise, scale=scale)
    difference, largest = logits_difference(dense, model)
    before, after = (sum(p.numel() for p in m.parameters()) for m in (dense, model))
    receipt = Receipt(
        layers=tuple(receipts),
        logits_difference=difference,
        largest_logit=largest,
        parameters=(before, after),
    )
    return Upcycled(model=model.eval(), tokenizer=tokenizer, config=planned.config, receipt=receipt)


def _fill_layers(
    dense: Decoder, model: Decoder, planned: Plan, *, noise: float, scale: float | None
) -> list[LayerReceipt]:
    """Fills the mixtures, and writes the scale of each slot into the configuration."""
    config, receipts = planned.config, []
    slots, scales = slots_by_layer(config), dict[str, float]()
    for layer, cut in planned.cuts.items():
        before: nn.Module = dense.layers[layer].ffn  # type: ignore[assignment]
        moe = model.layers[layer].ffn
        if not isinstance(moe, MoE):
            raise UpcycleError(f"layer {layer} would be a {type(moe).__name__}; choose ffn=moe")
        # one configuration stands for all layers of a slot, and so does the first one's scale
        chosen = scales.get(slots[layer], scale)
        seed = derived_seed(config.seed, f"layers.{layer}.ffn.upcycling")
        filled = fill(moe, before, cut, noise=noise, scale=chosen, seed=seed)
        if slots[layer] not in scales:
            scales[slots[layer]] = filled.scale
            _keep_scale(config, slots[layer], moe)
        receipts.append(_receipt(layer, cut, filled, before, moe))
    return receipts


def _receipt(layer: int, cut: Cut, filled: Filled, dense: nn.Module, moe: MoE) -> LayerReceipt:
    difference, relative = ffn_difference(dense, moe)
    return LayerReceipt(
        layer=layer,
        experts=moe.experts.num_experts,
        parts=len(cut.routed),
        scale=filled.scale,
        weight_sum=filled.weight_sum,
        difference=difference,
        relative=relative,
        reasons=filled.reasons,
    )


def _copy_others(dense: Decoder, model: Decoder, planned: Plan) -> None:
    """Copies every tensor outside of the FFNs that become mixtures."""
    replaced = tuple(f"layers.{layer}.ffn." for layer in planned.cuts)
    source, target = dense.state_dict(), model.state_dict()
    kept = [name for name in target if not name.startswith(replaced)]
    with torch.no_grad():
        for name in kept:
            if name not in source or source[name].shape != target[name].shape:
                raise UpcycleError(f"the model has no {name!r} as its configuration says")
            target[name].copy_(source[name])


def _keep_scale(config: DictConfig, slot: str, moe: MoE) -> None:
    """Writes the router's scaling factor into the configuration, which builds it again."""
    factor = getattr(moe.router, SCALING, None)
    if factor is None:
        return
    node = OmegaConf.select(config, key_of(slot))
    router = plain(node.router)
    name, options = name_and_options(router, {})
    node.router = {"name": name, **options, SCALING: float(factor)}

"""Which class of transformers holds a configuration, and its config.json; or why none does."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from mlpkit.build import plain
from mlpkit.build.parts import split
from mlpkit.convert.choosing_mixtures import mixture_target
from mlpkit.convert.families import FAMILIES
from mlpkit.convert.targets import Target, Widths, dense_of, notes, refuse
from mlpkit.layers import slot_ffns, slots_by_layer
from mlpkit.plugins import registries


def choose_target(config: DictConfig, widths: Widths) -> Target:
    """The class for a configuration.

    Args:
        config: Our configuration.
        widths: The width of a slot's FFN ("main", and "" or a part of it: "experts", "shared"),
            as it was built.

    Raises:
        ConversionError: There is none; the message names the nearest.
    """
    slots = slots_by_layer(config)
    used = {slot: plain(slot_ffns(config)[slot]) for slot in dict.fromkeys(slots)}
    mixtures = [slot for slot, ffn in used.items() if _is_mixture(ffn)]
    if not mixtures:
        return _dense_target(config, used, widths)
    if len(mixtures) > 1 or len(used) > 2:
        raise refuse(f"layers of {len(used)} kinds", "one mixture, and one dense FFN beside it")
    return mixture_target(config, slots, used, mixtures[0], widths)


def _is_mixture(component: Any) -> bool:
    return registries().ffn.get(split(component, {})[0]).target == "mlpkit.moe:MoE"


def _dense_target(config: DictConfig, used: dict[str, Any], widths: Widths) -> Target:
    found = [dense_of(ffn, config, widths(slot, "")) for slot, ffn in used.items()]
    ffn, model = found[0], config.model
    if any(other != ffn for other in found):
        raise refuse("dense FFNs that differ between layers", "the same FFN in every layer")
    biases = f"model.attention_bias={model.attention_bias}"
    if model.qk_norm and model.qk_norm_scope == "all":
        raise refuse("a dense FFN with qk_norm_scope=all", "model.qk_norm_scope=head, with qwen3")
    values = {"intermediate_size": ffn.width, "hidden_act": ffn.activation}
    plain_bias = {"mlp_bias": ffn.bias, "attention_bias": model.attention_bias == "all"}
    if not ffn.gated:
        if model.qk_norm or model.attention_bias == "qkv":
            what = "qk-norm" if model.qk_norm else biases
            raise refuse(f"an FFN without a gate and {what}", "arcee, without it")
        return Target(FAMILIES["arcee"], {**values, **plain_bias}, notes(config))
    if model.qk_norm:
        if ffn.bias or model.attention_bias == "qkv":
            what = "biases in the FFN" if ffn.bias else biases
            raise refuse(f"qk-norm with {what}", "qwen3, without them")
        del plain_bias["mlp_bias"]
        return Target(FAMILIES["qwen3"], {**values, **plain_bias}, notes(config))
    if model.attention_bias == "qkv":
        if ffn.bias:
            raise refuse(f"biases in the FFN with {biases}", "llama, with model.attention_bias=all")
        if _own_head_dim(config):
            raise refuse(f"model.head_dim={model.head_dim} with {biases}", "heads that share H")
        return Target(FAMILIES["qwen2"], values, notes(config))
    return Target(FAMILIES["llama"], {**values, **plain_bias}, notes(config))


def _own_head_dim(config: DictConfig) -> bool:
    model = config.model
    shared = model.hidden_size // model.num_attention_heads
    return model.head_dim is not None and model.head_dim != shared

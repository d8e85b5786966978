"""From a family's configuration to overrides of ours: what a user would type for the same model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlpkit.convert.families import ExpertKeys, Family
from mlpkit.convert.folders import ConversionError
from mlpkit.convert.settings import Settings
from mlpkit.layers import DENSE, MAIN, from_hf, layer_slots
from mlpkit.sizing import resolve_width

MOST_EXPERTS = 2**16  # more are a mistake, and each is a module while the model is built
GREEDY = "greedy"  # DeepSeek-V2's choice that looks at no groups, whatever they are


def settings_of(
    family: Family, values: Mapping[str, Any], *, where: str, allowed: tuple[str, ...] = ()
) -> Settings:
    """A family's configuration, with what its class works out itself.

    Args:
        family: The family.
        values: What stands in the ``config.json``.
        where: What to call it in messages.
        allowed: What may differ all the same.

    Raises:
        ConversionError: It has an option that mlpkit has not, or is quantised.
    """
    config = Settings(values, defaults=family.defaults, where=where, allowed=allowed)
    config.refuse("quantization_config")
    for key, neutral in family.refused.items():
        config.refuse(key, *neutral)
    if rule := family.width_rule:
        if config.get("intermediate_size") is None:
            width = resolve_width(rule, config.whole("hidden_size"), rule)
            config.values["intermediate_size"] = width
        if config.get("moe_intermediate_size") is None:
            config.values["moe_intermediate_size"] = config.values["intermediate_size"]
    return config


def model_overrides(family: Family, config: Settings) -> list[str]:
    """The overrides of a whole model.

    Args:
        family: Its family.
        config: Its configuration.

    Raises:
        ConversionError: It has something that mlpkit has not.
    """
    config.refuse_sliding_window()
    heads = config.whole("num_attention_heads")
    normed = bool(family.qk_norm) and (not family.qk_norm_key or config.flag(family.qk_norm_key))
    biased = family.bias if not family.bias_key or config.flag(family.bias_key) else "none"
    options = {
        "hidden_size": config.whole("hidden_size"),
        "num_layers": config.whole("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads
        if config.get("num_key_value_heads") is None
        else config.whole("num_key_value_heads"),
        "head_dim": _head_dim(config, heads),
        "qk_norm": normed,
        "qk_norm_scope": family.qk_norm if normed else "head",
        "attention_bias": biased,
        "rope_theta": config.rope_theta(),
        "norm_eps": config.number("rms_norm_eps", "layer_norm_eps"),
        "tie_word_embeddings": config.flag("tie_word_embeddings"),
        "vocab_size": config.whole("vocab_size"),
    }
    return [
        *(f"model.{key}={_text(value)}" for key, value in options.items()),
        *ffn_overrides(family, config),
    ]


def _head_dim(config: Settings, heads: int) -> int:
    if config.get("head_dim") is not None:
        return config.whole("head_dim")
    hidden = config.whole("hidden_size")
    if hidden % heads:
        raise ConversionError(
            f"{config.where}: hidden_size {hidden} is no multiple of num_attention_heads {heads}, "
            "and it gives no head_dim"
        )
    return hidden // heads


def ffn_overrides(family: Family, config: Settings) -> list[str]:
    """The overrides of its FFNs: one, or dense ones in some layers and a mixture in the others.

    Args:
        family: Its family.
        config: Its configuration.
    """
    experts = family.experts
    if experts is None or (experts.switch and not config.flag(experts.switch)):
        return [f"ffn={family.ffn}", *_dense("ffn", family, config)]
    found = _mixture(experts, config)
    pattern = from_hf({**config.values, "num_experts": config.whole(*experts.number)})
    if pattern is None:
        return found
    slots = layer_slots(pattern, config.whole("num_hidden_layers"))
    return [
        *found,
        f"+ffn@ffns.{DENSE}={family.ffn}",
        *_dense(f"ffns.{DENSE}", family, config),
        f"model.layers=[{','.join(slots)}]",  # Hydra reads no key such as "0,2"
    ]


def slot_of(family: Family, config: Settings, layer: int) -> str:
    """Whether a layer is ``main`` or ``dense``, as ``ffn_overrides`` has it.

    Args:
        family: The family.
        config: Its configuration.
        layer: The layer, from 0.

    Raises:
        ConversionError: There is no such layer.
    """
    layers = config.whole("num_hidden_layers")
    if not 0 <= layer < layers:
        raise ConversionError(f"layer {layer} of {layers}; they count from 0")
    if family.experts is None:
        return MAIN
    number = config.whole(*family.experts.number)
    return layer_slots(from_hf({**config.values, "num_experts": number}), layers)[layer]


def _dense(key: str, family: Family, config: Settings) -> list[str]:
    found = [
        f"{key}.intermediate_size={config.whole(family.dense_width)}",
        f"{key}.activation={config.activation()}",
    ]
    if family.mlp_bias:
        found.append(f"{key}.bias={_text(config.flag('mlp_bias'))}")
    return found


def _mixture(experts: ExpertKeys, config: Settings) -> list[str]:
    number, per_token = config.whole(*experts.number), config.whole("num_experts_per_tok")
    if number > MOST_EXPERTS:
        raise ConversionError(
            f"{config.where}: {experts.number[0]} is {number:,}; at most {MOST_EXPERTS:,} are read"
        )
    found = [
        f"ffn={experts.preset}",
        f"ffn.num_experts={number}",
        f"ffn.num_experts_per_tok={per_token}",
        f"ffn.expert.intermediate_size={config.whole(experts.width)}",
    ]
    if not experts.expert:
        found.append(f"ffn.expert.activation={config.activation()}")
    found += [f"ffn.expert.{ours}={config.number(key)}" for ours, key in experts.expert.items()]
    found += _router(experts, config, per_token)
    return [*found, *_shared(experts, config)]


def _router(experts: ExpertKeys, config: Settings, per_token: int) -> list[str]:
    found = []
    if experts.norm:
        normed = config.flag(experts.norm) and (experts.norm_alone or per_token > 1)
        found.append(f"ffn.router.norm_topk_prob={_text(normed)}")
    for ours, key in experts.router.items():
        value = config.get(key)
        if ours in ("n_group", "topk_group"):
            value = 1 if value is None or config.get("topk_method") == GREEDY else config.whole(key)
        elif value:
            value = config.number(key)
        found.append(f"ffn.router.{ours}={value or 0.0}")
    if per_token == 1:
        # the task gives such a router no gradient, but the model is as it was trained
        found.append("lint.allow=[top1-normalised]")
    return found


def _shared(experts: ExpertKeys, config: Settings) -> list[str]:
    if experts.shared is None:
        return []
    width = experts.shared(config)
    if not width:
        return ["ffn.shared=null"]
    return [
        f"ffn.shared.intermediate_size={width}",
        f"ffn.shared.activation={config.activation()}",
    ]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

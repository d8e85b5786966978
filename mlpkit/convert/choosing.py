"""Which class of transformers holds a configuration, and its config.json; or why none does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from omegaconf import DictConfig

from mlpkit.build import effective_activation, plain
from mlpkit.build.parts import split
from mlpkit.configs.routers import TopKConfig
from mlpkit.convert.families import FAMILIES, Family
from mlpkit.convert.folders import ConversionError
from mlpkit.convert.settings import HF_ACTIVATIONS
from mlpkit.layers import MAIN, slot_ffns, slots_by_layer
from mlpkit.plugins import registries

GATED, NAIVE, MOE = "mlpkit.ffns:GatedFFN", "mlpkit.ffns:NaiveFFN", "mlpkit.moe:MoE"


class Dense(NamedTuple):
    """A dense FFN as transformers can say it.

    Args:
        gated: Whether it has a gate.
        width: I.
        activation: Hugging Face's word for it.
        bias: Whether its projections have biases.
    """

    gated: bool
    width: int
    activation: str
    bias: bool


class Target(NamedTuple):
    """A class that holds a model.

    Args:
        family: The class's family.
        values: What is its own in ``config.json``.
        notes: What of the configuration matters in training alone and is left out.
    """

    family: Family
    values: dict[str, Any]
    notes: tuple[str, ...]


def refuse(what: str, nearest: str) -> ConversionError:
    """The refusal of a model that no class holds.

    Args:
        what: What no class holds.
        nearest: What can be exported that is closest.
    """
    return ConversionError(
        f"no class of transformers holds {what}; nearest that one does: {nearest}"
    )


def choose_target(config: DictConfig, widths: Callable[[str, str], int]) -> Target:
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
    mixtures = [slot for slot, ffn in used.items() if _target_of(ffn) == MOE]
    if not mixtures:
        return _dense_target(config, used, widths)
    if len(mixtures) > 1 or len(used) > 2:
        raise refuse(f"layers of {len(used)} kinds", "one mixture, and one dense FFN beside it")
    from mlpkit.convert.choosing_mixtures import mixture_target  # it builds on this module

    return mixture_target(config, slots, used, mixtures[0], widths)


def _target_of(component: Any) -> str:
    return str(registries().ffn.get(split(component, {})[0]).target)


def _dense_target(
    config: DictConfig, used: dict[str, Any], widths: Callable[[str, str], int]
) -> Target:
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


def dense_of(component: Any, config: DictConfig, width: int) -> Dense:
    """A dense FFN in transformers' words.

    Args:
        component: Its name or mapping.
        config: The configuration that it stands in.
        width: Its width as it was built.

    Raises:
        ConversionError: It is neither gated nor naive, or has options that no class has.
    """
    name, options = split(component, {})
    spec = registries().ffn.get(name)
    if spec.target not in (GATED, NAIVE):
        raise refuse(f"the FFN {spec.name!r}", "swiglu or gated (llama), or naive (arcee)")
    if options.get("inner_norm") is not None:
        raise refuse("naive with an inner_norm", "naive without one (arcee)")
    chosen = effective_activation(spec, options.get("activation"), plain(config.activation))
    return Dense(
        gated=spec.target == GATED,
        width=width,
        activation=activation_of(chosen),
        bias=bool(options.get("bias", False)),
    )


def activation_of(component: Any) -> str:
    """Hugging Face's word for an activation.

    Args:
        component: Its name or mapping.

    Raises:
        ConversionError: It has none, or the activation has options of its own.
    """
    name, options = split(component, {})
    spec = registries().activation.get(name)
    if spec.name not in HF_ACTIVATIONS or options:
        what = f"the activation {spec.name!r}" + (f" with {options}" if options else "")
        raise refuse(what, f"one of {', '.join(HF_ACTIVATIONS)}")
    return HF_ACTIVATIONS[spec.name]


def notes(config: DictConfig) -> tuple[str, ...]:
    """What of a configuration matters in training alone, and is not exported."""
    found = []
    if config.model.dropout:
        found.append(f"model.dropout={config.model.dropout} is for training and is not exported")
    for slot, ffn in slot_ffns(config).items():
        if not isinstance(ffn, str) and ffn.get("dropout"):
            key = "ffn" if slot == MAIN else f"ffns.{slot}"
            found.append(f"{key}.dropout={ffn.dropout} is for training and is not exported")
    return tuple(found)


def router_options(component: Any) -> dict[str, Any]:
    """All options of a top-k router.

    Raises:
        ConversionError: It is another router.
    """
    name, options = split(component, {})
    if registries().router.get(name).name != "topk":
        raise refuse(f"the router {name!r}", "ffn/router=mixtral (topk)")
    return {**vars(TopKConfig()), **options}

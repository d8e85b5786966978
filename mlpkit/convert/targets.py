"""What a class of transformers holds of a configuration, in its words; or why none does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from omegaconf import DictConfig

from mlpkit.build import effective_activation, plain
from mlpkit.build.parts import split
from mlpkit.configs.routers import TopKConfig
from mlpkit.convert.families import Family
from mlpkit.convert.folders import ConversionError
from mlpkit.convert.settings import HF_ACTIVATIONS
from mlpkit.layers import MAIN, slot_ffns
from mlpkit.plugins import registries

Widths = Callable[[str, str], int]  # of a slot's FFN, or of a part of it: see choose_target
GATED, NAIVE = "mlpkit.ffns:GatedFFN", "mlpkit.ffns:NaiveFFN"


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

"""The configuration of an upcycled model: the source's own, with mixtures in the chosen layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from mlpkit.build import plain
from mlpkit.build.ffns import assemble_ffn
from mlpkit.build.parts import split as name_and_options
from mlpkit.compose import check, compose
from mlpkit.convert.upcycling.filling import Cut
from mlpkit.convert.upcycling.parts import UpcycleError
from mlpkit.layers import DENSE, MAIN, layer_slots, slot_ffns, slots_by_layer
from mlpkit.layers.patterns import compact
from mlpkit.plugins import registries
from mlpkit.schema import holds_experts

OWN = "ffn"  # the only node whose overrides are taken
FIXED = ("expert", "experts")  # what is made from the source's FFN
KEPT = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be built.

    Args:
        config: The upcycled model's configuration.
        cuts: Layer → how its FFN becomes experts.
    """

    config: DictConfig
    cuts: dict[int, Cut]


def plan(source: DictConfig, overrides: Sequence[str], *, split: int, layers: str | None) -> Plan:
    """The configuration of the upcycled model, and how each layer gets there.

    Args:
        source: The dense model's configuration.
        overrides: Of ``ffn`` alone, e.g. ``["ffn=mixtral", "ffn.num_experts=4"]``.
        split: In how many parts the FFN is cut; the shared FFN, if any, is one of them.
        layers: Which layers, e.g. ``"2-"``; None: all.

    Raises:
        UpcycleError: A layer has experts already, or the FFN cannot be cut so.
        ConfigError: An override, or the configuration that comes out, is wrong.
    """
    moe = _mixture(source, overrides)
    before = slots_by_layer(source)
    chosen = _chosen(before, layers)
    ffns = {slot: plain(ffn) for slot, ffn in slot_ffns(source).items()}
    mixtures = {}
    for slot in dict.fromkeys(before[layer] for layer in chosen):
        mixtures[slot] = _experts_of(source, moe, ffns[slot], slot, split)
    names = _names(before, chosen)
    slots = [names[slot, layer in chosen] for layer, slot in enumerate(before)]
    made = {names[slot, True]: mixture for slot, (mixture, _) in mixtures.items()}
    kept = {names[s, False]: ffns[s] for layer, s in enumerate(before) if layer not in chosen}
    config = OmegaConf.create(OmegaConf.to_container(source, resolve=True))
    assert isinstance(config, DictConfig)
    config.ffn = made.pop(MAIN)
    config.ffns = {**kept, **made}
    config.model.layers = compact(slots)
    for key, none in (("match", "none"), ("init_from", None), ("run_dir", None)):
        if key in config:  # the source's own way to its width and weights
            config[key] = none
    check(config)
    return Plan(config=config, cuts={layer: mixtures[before[layer]][1] for layer in chosen})


def _mixture(source: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """The chosen MoE with its options, whose experts are still to be put in."""
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        parts = key.replace("/", ".").split(".")
        if parts[0] != OWN or (len(parts) > 1 and parts[1] in FIXED):
            raise UpcycleError(
                f"{override}: upcycling takes overrides of ffn, and its experts are the run's own "
                "FFN; write ffn=moe ffn.num_experts=8, and --split to make them narrower"
            )
    chosen = [] if any(o.startswith("ffn=") for o in overrides) else ["ffn=moe"]
    sizes = [f"model.{key}={source.model[key]}" for key in KEPT if source.model[key] is not None]
    moe: dict[str, Any] = plain(compose([*sizes, *chosen, *overrides]).ffn)
    spec = registries().ffn.get(moe["name"])
    if not holds_experts(spec):
        raise UpcycleError(f"ffn={spec.name} holds no experts; choose one that does, as ffn=moe")
    for option in ("experts", "latent_size"):
        if moe.get(option):
            raise UpcycleError(
                f"ffn.{option} is {moe[option]!r}: such experts are no parts of the run's FFN; "
                f"add ffn.{option}=null"
            )
    return moe


def _chosen(slots: Sequence[str], layers: str | None) -> list[int]:
    """The layers to convert."""
    if layers is None:
        return list(range(len(slots)))
    picked = layer_slots({layers: "chosen"}, len(slots))
    return [layer for layer, slot in enumerate(picked) if slot == "chosen"]


def _names(before: Sequence[str], chosen: Sequence[int]) -> dict[tuple[str, bool], str]:
    """(slot, whether it becomes a mixture) → the slot's new name; the first mixture is main."""
    names: dict[tuple[str, bool], str] = {}
    for slot in dict.fromkeys(before[layer] for layer in chosen):
        names[slot, True] = MAIN if not names else f"{slot}_moe"
    for layer, slot in enumerate(before):
        if layer not in chosen:
            kept = DENSE if DENSE not in before else f"{MAIN}_{DENSE}"
            names[slot, False] = kept if slot == MAIN else slot
    return names


def _experts_of(
    source: DictConfig, moe: dict[str, Any], ffn: Any, slot: str, split: int
) -> tuple[dict[str, Any], Cut]:
    """A slot's mixture, and how its FFN is cut."""
    name, options = name_and_options(ffn, {})
    spec = registries().ffn.get(name)
    if holds_experts(spec):
        raise UpcycleError(
            f"slot {slot!r} is {spec.name!r} already; leave its layers out (--layers)"
        )
    width = _width(source, ffn)
    if split == 1 and width is None:
        same = {"name": name, **options}
        shared = same if moe.get("shared") is not None else None
        return {**moe, "expert": same, "shared": shared}, Cut.of(1, 1, 1)
    if width is None or spec.width is None:
        raise UpcycleError(f"{spec.name!r} has no width that could be split; leave --split out")
    if split < 1 or width % split:
        raise UpcycleError(
            f"split={split} does not divide the width {width} of the run's {spec.name!r}"
        )
    narrow = width // split
    expert = {"name": name, **options, spec.width: narrow}
    shared, shared_width = None, None
    if moe.get("shared") is not None:
        wanted = name_and_options(moe["shared"], {})[1].get(spec.width) or narrow
        shared_width = _width(source, {"name": name, **options, spec.width: wanted})
        shared = {"name": name, **options, spec.width: shared_width}
    return {**moe, "expert": expert, "shared": shared}, Cut.of(width, narrow, shared_width)


def _width(source: DictConfig, ffn: Any) -> int | None:
    """The units of a dense FFN; None where it tells none."""
    name, options = name_and_options(ffn, {})
    spec = registries().ffn.get(name)
    if spec.width is None:
        return None
    value = options.get(spec.width)
    if type(value) is int:
        return value
    with torch.device("meta"):
        built = assemble_ffn(
            ffn,
            hidden_size=source.model.hidden_size,
            inherited_activation=plain(source.activation),
        )
    found = getattr(getattr(built, "down_proj", None), "in_features", None)
    return int(found) if found is not None else None

"""Traps of any model: heads, widths, the activation, slots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlpkit.layers import key_of, layers_by_slot, slot_ffns
from mlpkit.lint.findings import Finding, dense_ffns, dense_parts, name_of
from mlpkit.plugins import Registries
from mlpkit.schema import option_parameters
from mlpkit.sizing import check_heads, round_up
from mlpkit.specs import FFNSpec, resolve

WIDTH_UNIT = 8


def heads_divide(config: Any, regs: Registries) -> Iterator[Finding]:
    """Attention heads must divide the hidden size, key and value heads the query heads."""
    model = config["model"]
    try:
        check_heads(
            hidden_size=model["hidden_size"],
            num_attention_heads=model["num_attention_heads"],
            num_key_value_heads=model["num_key_value_heads"],
            head_dim=model["head_dim"],
        )
    except ValueError as error:
        yield Finding(code="", message=str(error))


def width_is_valid(config: Any, regs: Registries) -> Iterator[Finding]:
    """An FFN's width must be positive or a rule: counting its parameters shows it."""
    for key, ffn in dense_ffns(config):
        spec = regs.ffn.get(name_of(ffn))
        options = {} if isinstance(ffn, str) else {k: v for k, v in ffn.items() if k != "name"}
        if spec.num_params is None:
            continue
        try:
            resolve(spec.num_params)(config["model"]["hidden_size"], **options)
        except ValueError as error:
            yield Finding(code="", message=f"{key}.{error}")


def width_suits_the_hardware(config: Any, regs: Registries) -> Iterator[Finding]:
    """Matrix engines work on multiples of 8 (16 bytes of bf16); others are padded or slow."""
    for key, ffn in dense_ffns(config):
        width = None if isinstance(ffn, str) else ffn.get("intermediate_size")
        if type(width) is int and width > 0 and width % WIDTH_UNIT:  # a bool is no width
            yield Finding(
                code="odd-width",
                message=f"{key}.intermediate_size is {width}, no multiple of {WIDTH_UNIT}, on "
                f"which matrix products are fast; {round_up(width, WIDTH_UNIT)} is",
                is_error=False,
            )


def activation_is_read(config: Any, regs: Registries) -> Iterator[Finding]:
    """A run's ``activation=`` must reach an FFN that takes one and says nothing itself."""
    if config["activation"] is None:
        return
    slots = slot_ffns(config)
    ffns = [
        part for slot in layers_by_slot(config) for part in dense_parts(key_of(slot), slots[slot])
    ]
    takers = [(key, ffn) for key, ffn in ffns if takes_activation(regs.ffn.get(name_of(ffn)))]
    silent = [key for key, ffn in takers if isinstance(ffn, str) or ffn.get("activation") is None]
    if takers and not silent:
        yield Finding(
            code="unread-activation",
            message=f"activation is set, but {takers[0][0]}.activation is set too and wins; "
            "remove one",
        )
    elif not takers:
        names = " and ".join(dict.fromkeys(repr(name_of(ffn)) for _, ffn in ffns))
        yield Finding(
            code="unread-activation",
            message=f"activation is set, but the ffn {names} takes none; remove activation=",
        )


def takes_activation(spec: FFNSpec) -> bool:
    """Whether an FFN's constructor has an argument ``activation``."""
    return spec.default_activation is not None or "activation" in option_parameters(
        "ffn", resolve(spec.target)
    )


def experts_are_plain(config: Any, regs: Registries) -> Iterator[Finding]:
    """A MoE inside a MoE would route where no record looks."""
    whole = {key_of(slot) for slot in slot_ffns(config)}
    for key, ffn in dense_ffns(config):
        if key not in whole and regs.ffn.get(name_of(ffn)).name == "moe":
            yield Finding(code="", message=f"{key} is a moe; experts are dense FFNs")


def slots_are_used(config: Any, regs: Registries) -> Iterator[Finding]:
    """An FFN that no layer has is written down for nothing."""
    used = layers_by_slot(config)
    for slot in slot_ffns(config):
        if slot not in used:
            yield Finding(
                code="unused-slot",
                message=f"{key_of(slot)} stands in no layer; give it layers in model.layers: "
                f'{{"0": {slot}}}',
                is_error=False,
            )

"""Swapping the FFNs of any torch model for mlpkit's, with the weights that still fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from mlpkit.build import Component, build_ffn, ffn_label, seeded
from mlpkit.build.parts import split
from mlpkit.build.presets import with_preset
from mlpkit.convert.swapping.recognising import (
    Found,
    hidden_size_of,
    likely_places,
    manners,
    recognise,
)
from mlpkit.convert.swapping.report import SwappedLayer, SwapReport
from mlpkit.experts import Experts
from mlpkit.moe import MoE
from mlpkit.plugins import registries
from mlpkit.registry import suggestion
from mlpkit.schema import holds_experts, option_parameters
from mlpkit.specs import resolve

__all__ = ["SwapError", "SwapReport", "SwappedLayer", "swap_ffn"]

Where = str | Callable[[str, nn.Module], bool]


class SwapError(ValueError):
    """A swap that cannot be made; the model is as it was."""

    exit_code = 2


def swap_ffn(
    model: nn.Module,
    config: Component,
    where: Where = "*.mlp",
    *,
    hidden_size: int | None = None,
    seed: int = 0,
) -> SwapReport:
    """Replaces FFNs of a model in place by one of mlpkit's, a MoE too.

    What the configuration does not say is taken from what stands there: H, the width, whether
    there are biases, dtype and device. Weights are carried over where name and shape agree
    (gate, up and down under the names of the field); every expert of a MoE gets them. Balance
    terms of a MoE are collected by ``mlpkit.record_routing(model)``.

    Args:
        model: Any torch model; changed only if everything can be replaced.
        config: The new FFN: its name, or a mapping with ``name`` and options.
        where: Which modules: a pattern with ``*`` on their dotted names (``"*.mlp"``,
            ``"model.layers.1?.mlp"``), or a function of name and module.
        hidden_size: H, where it cannot be told from the model.
        seed: Of new weights, with each place's name.

    Returns:
        What every place kept, got new and lost.

    Raises:
        SwapError: Nothing matches, a match stands inside another, is shared with a place that
            does not match, or does not map one tensor to one of its shape.
        BuildError: The configuration is wrong.
    """
    places = _places(model, where)
    before = _count(model)
    swaps = [_prepare(model, names, module, config, hidden_size, seed) for names, module in places]
    for names, ffn, _ in swaps:
        for name in names:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, ffn)
    layers = tuple(layer for _, _, layer in swaps)
    return SwapReport(layers=layers, parameters=(before, _count(model)))


def _places(model: nn.Module, where: Where) -> list[tuple[list[str], nn.Module]]:
    """The modules that match, each with all its names."""
    names: dict[int, list[str]] = {}
    modules: dict[int, nn.Module] = {}
    matched: set[str] = set()
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
        modules[id(module)] = module
        if name and _matches(where, name, module):
            matched.add(name)
    if not matched:
        raise SwapError(_no_match(model, where))
    for name in sorted(matched):
        parents = [name[:i] for i, letter in enumerate(name) if letter == "."]
        if inside := matched & set(parents):
            raise SwapError(
                f"where={where!r} matches {name!r} and {inside.pop()!r}, which holds it; choose one"
            )
    chosen = [key for key, found in names.items() if matched & {*found}]
    for key in chosen:
        if other := sorted({*names[key]} - matched):
            raise SwapError(
                f"{names[key][0]!r} is the same module as {other[0]!r}, which where={where!r} does "
                "not match; match both, or neither"
            )
    return [(names[key], modules[key]) for key in chosen]


def _matches(where: Where, name: str, module: nn.Module) -> bool:
    return fnmatchcase(name, where) if isinstance(where, str) else bool(where(name, module))


def _no_match(model: nn.Module, where: Where) -> str:
    likely = likely_places(model)
    if not isinstance(where, str):
        return f"where matches no module; FFNs seem to stand at: {', '.join(likely) or 'none'}"
    if likely:
        hint = suggestion(where, likely)
        return (
            f"where={where!r} matches no module{hint}; FFNs seem to stand at: {', '.join(likely)}"
        )
    names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    return (
        f"where={where!r} matches no module{suggestion(where, names)} (the model has: "
        f"{', '.join(names[:8]) or 'no modules'}{' …' if len(names) > 8 else ''})"
    )


def _prepare(
    model: nn.Module,
    names: list[str],
    module: nn.Module,
    config: Component,
    hidden_size: int | None,
    seed: int,
) -> tuple[list[str], nn.Module, SwappedLayer]:
    """The new FFN of a place, filled, and what became of the weights."""
    name, found = names[0], recognise(module)
    size = hidden_size or hidden_size_of(model, module, found)
    if size is None:
        raise SwapError(f"the hidden size of {name!r} cannot be told; give hidden_size=H")
    if wrong := manners(module, size):
        raise SwapError(f"{name!r} ({type(module).__name__}) cannot become an FFN: {wrong}")
    full = complete(config, found)
    with seeded(seed, name):
        ffn = build_ffn(full, hidden_size=size)
    like = next((p for p in module.parameters() if p.is_floating_point()), None)
    if like is not None:
        ffn = ffn.to(like.device, like.dtype)
    carried, initialised = _carry(ffn, found)
    used = {found.origins[key] for key in found.tensors if key in _plain_names(carried)}
    unused = tuple(n for n, _ in module.named_parameters() if n not in used)
    layer = SwappedLayer(
        name=name,
        was=type(module).__name__,
        now=ffn_label(full),
        carried=carried,
        initialised=initialised,
        unused=unused,
        note=_note(model, names, module),
    )
    return names, ffn.train(module.training), layer


def complete(config: Component, found: Found) -> Mapping[str, Any]:
    """The configuration with width and biases of what stands there, where it says nothing.

    Args:
        config: A name, or a mapping with ``name`` and options.
        found: What stands there.
    """
    name, options = with_preset("ffn", *split(config, {}))
    spec = registries().ffn.get(name)
    if holds_experts(spec):
        if not options.get("experts"):
            options["expert"] = complete(options.get("expert") or "swiglu", found)
        return {"name": name, **options}
    known = option_parameters("ffn", resolve(spec.target))
    if spec.width == "intermediate_size" and found.intermediate_size is not None:
        options[spec.width] = options.get(spec.width) or found.intermediate_size
    if "bias" in known and found.tensors:
        options.setdefault("bias", found.bias)
    return {"name": name, **options}


def _carry(ffn: nn.Module, found: Found) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Copies what fits; the names of what was carried, and of what is new with the reason."""
    targets = _targets(ffn)
    carried, initialised = [], []
    for name, parameter in ffn.named_parameters():
        key, stacked = targets.get(name, ("", False))
        value = found.tensors.get(key)
        wanted = parameter.shape[1:] if stacked else parameter.shape
        if value is not None and value.shape == wanted:
            with torch.no_grad():
                parameter.copy_(value)
            carried.append(name)
        elif value is not None:
            initialised.append(f"{name} (wanted {tuple(wanted)}, found {tuple(value.shape)})")
        else:
            initialised.append(name)
    return tuple(carried), tuple(initialised)


def _targets(ffn: nn.Module) -> dict[str, tuple[str, bool]]:
    """Parameter → its name in a dense FFN, and whether experts are stacked in it."""
    if not isinstance(ffn, MoE):
        return {name: (name, False) for name, _ in ffn.named_parameters()}
    stacks: list[tuple[str, nn.Module]] = [("experts", ffn.experts)]
    if not isinstance(ffn.experts, Experts):
        stacks = [(f"experts.{i}", stack) for i, stack in enumerate(ffn.experts)]
    return {
        f"{prefix}.{name}": (name, True)
        for prefix, stack in stacks
        for name, _ in stack.named_parameters()
    }


def _plain_names(carried: tuple[str, ...]) -> set[str]:
    """The names as a dense FFN has them: the last two words."""
    return {".".join(name.split(".")[-2:]) for name in carried}


def _note(model: nn.Module, names: list[str], module: nn.Module) -> str:
    notes = []
    if len(names) > 1:
        notes.append(f"one module, also at {', '.join(names[1:])}")
    own: dict[int, str] = {id(p): n for n, p in module.named_parameters()}
    inside = tuple(f"{name}." for name in names)
    ties = [
        f"{own[id(p)]} = {n}"
        for n, p in model.named_parameters(remove_duplicate=False)
        if id(p) in own and not n.startswith(inside)
    ]
    if ties:
        notes.append(f"no longer tied: {', '.join(ties)}")
    return "; ".join(notes)


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())

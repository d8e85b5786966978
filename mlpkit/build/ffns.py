"""Activations and FFNs from their names."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from torch import nn

from mlpkit.activations import make_activation
from mlpkit.build.parts import (
    BuildError,
    Component,
    construct,
    refuse_unknown,
    require_sizes,
    split,
)
from mlpkit.build.presets import with_preset, with_router_preset
from mlpkit.build.traps import is_meant, new_traps
from mlpkit.configs.moe import expert_types, moe_options
from mlpkit.lint import TrapWarning
from mlpkit.plugins import registries
from mlpkit.schema import holds_experts, option_parameters
from mlpkit.specs import FFNSpec, resolve

KNOWN_PAIRING = "swiglu"  # a gated FFN with SiLU is told by this name, whatever it was called


def build_activation(name: Component, **options: Any) -> nn.Module:
    """A new instance of a registered activation.

    Args:
        name: Its name, or a mapping with ``name`` and options.
        options: Its options.

    Raises:
        UnknownNameError: No activation has the name.
        ValueError: An option it does not have, or a value it refuses.
    """
    name, options = split(name, options)
    return make_activation(registries().activation.get(name), **options)


def build_ffn(
    name: Component,
    *,
    hidden_size: int,
    inherited_activation: Component | None = None,
    **options: Any,
) -> nn.Module:
    """A new instance of a registered FFN, (..., H) -> (..., H).

    One expert per token whose weight is divided by itself gives a ``mlpkit.lint.TrapWarning``,
    unless the router's ``norm_topk_prob`` is spelled out: the task would not train the router.

    Args:
        name: Its name, or a mapping with ``name`` and options; a preset's, such as ``mixtral``,
            gives the options that are not given here.
        hidden_size: H, width of input and output.
        inherited_activation: The run's activation, taken when the FFN's own is None.
        options: Its options; ``activation`` may be a name, a mapping or a module.

    Raises:
        UnknownNameError: No FFN or activation has the name.
        BuildError: An option it does not have, or a value it refuses.
    """
    name, given = split(name, options)
    entry, preset = with_preset("ffn", name, {})
    meant, given = is_meant(given), with_router_preset(given)
    for finding in [] if meant else new_traps(entry, given, preset):
        warnings.warn(finding.message, TrapWarning, stacklevel=2)
    return assemble_ffn(
        {"name": entry, **preset, **given},
        hidden_size=hidden_size,
        inherited_activation=inherited_activation,
    )


def assemble_ffn(
    ffn: Component, *, hidden_size: int, inherited_activation: Component | None = None
) -> nn.Module:
    """``build_ffn`` for the FFN of a checked configuration: no preset's name, and no warning.

    Args:
        ffn: Its name, or a mapping with ``name`` and options.
        hidden_size: H, width of input and output.
        inherited_activation: The run's activation, taken when the FFN's own is None.

    Raises:
        UnknownNameError: No FFN or activation has the name.
        BuildError: An option it does not have, or a value it refuses.
    """
    name, options = split(ffn, {})
    spec = registries().ffn.get(name)
    require_sizes(hidden_size=hidden_size)
    if holds_experts(spec):
        from mlpkit.build.moe import moe_parts  # a dense model loads no MoE code

        refuse_unknown("ffn", spec.name, options, ffn_options(spec))
        options = moe_parts(hidden_size, inherited_activation, options)
    else:
        options = _with_activation(spec, inherited_activation, options)
    module = construct("ffn", spec, {"hidden_size": hidden_size, **options})
    if not isinstance(module, nn.Module):
        raise BuildError(f"ffn {spec.name!r} gave a {type(module).__name__}, not an nn.Module")
    return module


def ffn_options(spec: FFNSpec) -> list[str]:
    """The options that ``build_ffn`` takes for an entry, whose parts may be given by name."""
    own = option_parameters("ffn", resolve(spec.target))
    return list(dict.fromkeys([*moe_options({}), *own] if holds_experts(spec) else own))


def _with_activation(
    spec: FFNSpec, inherited: Component | None, options: dict[str, Any]
) -> dict[str, Any]:
    """The options with the activation built, where the FFN takes one."""
    known = option_parameters("ffn", resolve(spec.target))
    if "activation" not in known:
        return options
    own = options.pop("activation", None)
    chosen = effective_activation(spec, own, inherited)
    if chosen is None:
        if known["activation"].default is inspect.Parameter.empty:
            raise BuildError(f"ffn {spec.name!r} needs an activation; give ffn.activation=NAME")
        return options  # the constructor's own default
    built = chosen if isinstance(chosen, nn.Module) else build_activation(chosen)
    return {**options, "activation": built}


def effective_activation(
    spec: FFNSpec, own: Component | nn.Module | None, inherited: Component | None
) -> Component | nn.Module | None:
    """Which activation an FFN gets: its own, else the run's, else its spec's default."""
    candidates = (own, inherited, spec.default_activation)
    return next((candidate for candidate in candidates if candidate is not None), None)


def ffn_label(ffn: Component, inherited: Component | None = None) -> str:
    """What an FFN is, e.g. ``swiglu``, ``naive[gelu]`` or ``gated[gelu]``.

    A name that its activation makes untrue is not told: ``ffn=swiglu activation=gelu`` is
    ``gated[gelu]``. ``geglu`` is that too, and keeps its name only where it was chosen by it. A
    MoE tells its experts: ``moe[8×swiglu, top 2]``.

    Args:
        ffn: Its name, or its mapping.
        inherited: The run's activation.
    """
    name, options = split(ffn, {})
    ffns = registries().ffn
    spec = ffns.get(name)
    if holds_experts(spec):
        return _mixture_label(spec, options, inherited)
    chosen = effective_activation(spec, options.get("activation"), inherited)
    if chosen is None or spec.default_activation is None:
        return spec.name
    activation, settings = split(chosen, {})
    activation = registries().activation.get(activation).name
    general = spec.family or spec.name
    if not settings:
        for other in (spec, *ffns.list()):
            told = other.name in (spec.name, general, KNOWN_PAIRING)
            same = general in (other.family, other.name) and other.target == spec.target
            if told and same and other.default_activation == activation:
                return other.name
    shown = ", ".join(f"{option}={value}" for option, value in settings.items())
    return f"{general}[{activation}({shown})]" if settings else f"{general}[{activation}]"


def _mixture_label(spec: FFNSpec, options: dict[str, Any], inherited: Component | None) -> str:
    """What a MoE is: its experts, K, and what is not as usual."""
    given = moe_options(options)
    types = expert_types(given["experts"] or given["expert"], given["num_experts"])
    experts = " + ".join(f"{number}×{ffn_label(ffn, inherited)}" for ffn, number in types)
    parts = [experts, f"top {given['num_experts_per_tok']}"]
    if given["shared"] is not None:
        parts.append(f"shared {ffn_label(given['shared'], inherited)}")
    router = split(given["router"], {})[0]
    if router != "topk":
        parts.append(f"router {router}")
    return f"{spec.name}[{', '.join(parts)}]"

"""The parts of a MoE from their names: router, experts, shared FFN, balance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mlpkit.balance import BalanceTerm, BiasRule
from mlpkit.build.ffns import assemble_ffn, build_activation
from mlpkit.build.parts import BuildError, Component, construct, plain, require_sizes, split
from mlpkit.build.presets import with_preset
from mlpkit.configs.moe import expert_types, matched_expert_width, moe_options
from mlpkit.experts import Backend, ExpertGroups, Experts
from mlpkit.plugins import registries
from mlpkit.routers import Router
from mlpkit.specs import resolve

# Options that become parts: what MoE's constructor gets in their place is built from them.
NAMED = ("num_experts", "num_experts_per_tok", "expert", "experts", "backend")


def build_router(
    name: Component,
    *,
    hidden_size: int,
    num_experts: int,
    num_experts_per_tok: int,
    **options: Any,
) -> Router:
    """A new instance of a registered router.

    Args:
        name: Its name, or a mapping with ``name`` and options; a preset's, such as ``mixtral``,
            gives the options that are not given here.
        hidden_size: H.
        num_experts: E.
        num_experts_per_tok: K, at most E.
        options: Its options; ``score`` may be "softmax", or an activation's name or mapping.

    Raises:
        UnknownNameError: No router or activation has the name.
        BuildError: An option it does not have, or a value it refuses.
    """
    name, options = with_preset("router", *split(name, options))
    spec = registries().router.get(name)
    score = options.get("score", "softmax")
    if not isinstance(score, nn.Module) and score != "softmax":
        options["score"] = build_activation(score)
    sizes = {
        "hidden_size": hidden_size,
        "num_experts": num_experts,
        "num_experts_per_tok": num_experts_per_tok,
    }
    require_sizes(**sizes)
    router: Router = construct("router", spec, {**sizes, **options})
    return router


def build_balance(name: str, value: Any) -> BalanceTerm | BiasRule:
    """A balance term or bias rule.

    Args:
        name: Its registered name.
        value: Its coefficient, or a mapping of its options.

    Raises:
        UnknownNameError: No balance has the name.
        BuildError: An option it does not have, or a value it refuses.
    """
    options = dict(value) if hasattr(value, "items") else {"coefficient": value}
    options.pop("name", None)
    term: BalanceTerm | BiasRule = construct("balance", registries().balance.get(name), options)
    return term


def moe_parts(
    hidden_size: int, inherited_activation: Component | None, options: dict[str, Any]
) -> dict[str, Any]:
    """The constructor's arguments from the configuration's options: names become parts.

    Args:
        hidden_size: H.
        inherited_activation: The run's activation, for the experts.
        options: As in ``MoEConfig``; what is missing has its default.

    Returns:
        The arguments of ``MoE``.
    """
    given = moe_options(plain(options))
    router, shared, per_token = given["router"], given["shared"], given["num_experts_per_tok"]
    if not isinstance(router, nn.Module):
        router = build_router(
            router,
            hidden_size=hidden_size,
            num_experts=given["num_experts"],
            num_experts_per_tok=per_token,
        )
    experts = _experts(given, given["latent_size"] or hidden_size, inherited_activation)
    if shared is not None and not isinstance(shared, nn.Module):
        shared = assemble_ffn(
            match_width(shared, hidden_size, per_token, inherited_activation),
            hidden_size=hidden_size,
            inherited_activation=inherited_activation,
        )
    parts = {"router": router, "experts": experts, "shared": shared, "balance": _balance(given)}
    return {name: value for name, value in given.items() if name not in NAMED} | parts


def _experts(
    given: Mapping[str, Any], width: int, inherited_activation: Component | None
) -> Experts | ExpertGroups:
    """The experts of a MoE: a stack, or a group of stacks where there are several types."""
    backend, per_token = _backend(given["backend"]), given["num_experts_per_tok"]
    types = expert_types(given["experts"] or given["expert"], given["num_experts"])
    stacks = []
    for component, number in types:
        matched = match_width(component, width, per_token, inherited_activation)
        copies = [
            assemble_ffn(matched, hidden_size=width, inherited_activation=inherited_activation)
            for _ in range(number)
        ]
        stacks.append(Experts(copies, backend=backend))
    return stacks[0] if len(stacks) == 1 else ExpertGroups(stacks)


def _balance(given: Mapping[str, Any]) -> dict[str, BalanceTerm | BiasRule]:
    """The balance terms and bias rules of a MoE by their names."""
    balance = given["balance"] or {}
    if not isinstance(balance, Mapping):
        raise BuildError(
            f"balance is {balance!r}; give a mapping such as {{'load': 0.01}}, or None"
        )
    return {name: build_balance(name, value) for name, value in balance.items()}


def match_width(
    expert: Component,
    hidden_size: int,
    num_experts_per_tok: int,
    inherited_activation: Component | None = None,
) -> Component:
    """The FFN with its width set, if it has one and says nothing: its dense width over K.

    So K experts together are as wide as the dense FFN, and a token costs the same; a shared FFN
    is as wide as one of them.

    Args:
        expert: The FFN's name or mapping.
        hidden_size: The width it works in.
        num_experts_per_tok: K.
        inherited_activation: The run's activation.
    """
    name, options = split(expert, {})
    spec = registries().ffn.get(name)
    if spec.width != "intermediate_size" or options.get(spec.width) is not None:
        return expert
    with torch.device("meta"):
        dense = assemble_ffn(
            expert, hidden_size=hidden_size, inherited_activation=inherited_activation
        )
    dense_width = getattr(getattr(dense, "down_proj", None), "in_features", None)
    if dense_width is None:
        return expert
    width = matched_expert_width(dense_width, num_experts_per_tok)
    return {"name": name, **options, spec.width: width}


def _backend(backend: Any) -> type[Backend]:
    """The class of a backend's name."""
    if isinstance(backend, str):
        spec = registries().backend.get(backend)
        backend = resolve(spec.target)
    if not isinstance(backend, type):
        raise BuildError(f"backend is {backend!r}; give the name of one")
    return backend

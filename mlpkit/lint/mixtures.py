"""Traps of a mixture of experts: routing, balance, options that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlpkit.layers import key_of, layers_by_slot
from mlpkit.lint.findings import Finding, mixtures, name_of, router_options
from mlpkit.plugins import Registries

LARGE_BALANCE = 0.1  # ten times Switch's: the router then follows the balance more than the task
# What a router reads only with groups, and only when it normalises; with the defaults.
GROUP_OPTIONS = {"group_score": "max", "group_fill": "-inf"}
NORM_OPTIONS = {"norm_p": 1.0, "norm_eps": 0.0, "norm_min": 0.0}


def experts_per_token_fit(config: Any, regs: Registries) -> Iterator[Finding]:
    """A token cannot go to more experts than there are."""
    for key, moe in mixtures(config):
        num_experts, per_token = moe["num_experts"], moe["num_experts_per_tok"]
        if not 1 <= per_token <= num_experts:
            yield Finding(
                code="",
                message=f"{key}.num_experts_per_tok is {per_token} and {key}.num_experts is "
                f"{num_experts}; choose 1 to {num_experts}",
            )


def groups_hold_enough_experts(config: Any, regs: Registries) -> Iterator[Finding]:
    """Groups of experts are equal, and those that a token keeps hold as many as it goes to."""
    for key, moe in mixtures(config):
        num_experts, per_token = moe["num_experts"], moe["num_experts_per_tok"]
        router = router_options(moe, regs)
        groups, kept = router.get("n_group", 1), router.get("topk_group", 1)
        if kept > groups:
            yield Finding(
                code="",
                message=f"{key}.router.topk_group is {kept} and {key}.router.n_group is {groups}; "
                f"choose 1 to {groups}",
            )
        elif num_experts % groups:
            yield Finding(
                code="",
                message=f"{key}.num_experts is {num_experts}, which {key}.router.n_group {groups} "
                "does not divide; change one of them",
            )
        elif groups > 1 and per_token > kept * (num_experts // groups):
            yield Finding(
                code="",
                message=f"{key}.num_experts_per_tok is {per_token}, but a token may choose among "
                f"{kept * (num_experts // groups)} experts only; raise {key}.router.topk_group "
                f"(now {kept}), or lower n_group (now {groups})",
            )


def top1_trains_its_router(config: Any, regs: Registries) -> Iterator[Finding]:
    """One expert with renormalised weights: the weight is 1 whatever the router says."""
    for key, moe in mixtures(config):
        alone = moe["num_experts_per_tok"] == 1
        if alone and router_options(moe, regs).get("norm_topk_prob", False):
            yield Finding(
                code="top1-normalised",
                message=f"{key} routes each token to one expert and divides its weight by itself: "
                "the weight is always 1 and the task gives the router no gradient. Set "
                f"{key}.router.norm_topk_prob=false, or raise {key}.num_experts_per_tok",
            )


def routing_is_causal(config: Any, regs: Registries) -> Iterator[Finding]:
    """In a decoder, where a token goes must not depend on later tokens."""
    for key, moe in mixtures(config):
        spec = regs.router.get(name_of(moe["router"]))
        if not spec.position_wise:
            yield Finding(
                code="non-causal",
                message=f"{key}.router {spec.name!r} lets tokens compete, so a token's experts "
                "depend on later tokens and the validation loss is too good; choose a "
                "token-choice router such as topk",
            )
        if moe.get("capacity_factor") is not None and moe.get("drop_policy") == "probs":
            yield Finding(
                code="non-causal",
                message=f"{key}.drop_policy=probs drops the tokens with small weights, so whether "
                "a token is dropped depends on later ones; choose position",
            )


def router_is_balanced(config: Any, regs: Registries) -> Iterator[Finding]:
    """A router that nothing balances often collapses onto a few experts."""
    for key, moe in mixtures(config):
        if not moe.get("balance") and regs.router.get(name_of(moe["router"])).learned:
            yield Finding(
                code="unbalanced",
                message=f"{key}.balance is empty: nothing keeps the router from using few experts",
                is_error=False,
            )


def bias_rule_has_a_bias(config: Any, regs: Registries) -> Iterator[Finding]:
    """A selection-bias rule needs a router with that bias, and the bias a rule that moves it."""
    for key, moe in mixtures(config):
        has_bias = bool(router_options(moe, regs).get("selection_bias"))
        has_rule = "selection_bias" in (moe.get("balance") or {})
        if has_rule and not has_bias:
            yield Finding(
                code="",
                message=f"{key}.balance.selection_bias moves a bias that the router has not; set "
                f"{key}.router.selection_bias=true, or drop the rule",
            )
        elif has_bias and not has_rule:
            yield Finding(
                code="fixed-bias",
                message=f"{key}.router.selection_bias stays 0: nothing moves it; add "
                f"+{key}.balance.selection_bias=0.001",
                is_error=False,
            )


def balance_trains_a_router(config: Any, regs: Registries) -> Iterator[Finding]:
    """A balance term is a gradient for the router, and some routers have nothing to train."""
    for key, moe in mixtures(config):
        spec = regs.router.get(name_of(moe["router"]))
        # the rule of a bias is no loss, and another lint's
        terms = [name for name in moe.get("balance") or {} if name != "selection_bias"]
        if not spec.learned and terms:
            yield Finding(
                code="",
                message=f"{key}.balance has {', '.join(terms)}, but the router {spec.name!r} has "
                f"nothing that could be trained; set {key}.balance=null",
            )


def capacity_leaves_room(config: Any, regs: Registries) -> Iterator[Finding]:
    """A capacity factor below 1 drops tokens even from a perfectly balanced router."""
    for key, moe in mixtures(config):
        factor = moe.get("capacity_factor")
        if factor is not None and factor < 1:
            yield Finding(
                code="small-capacity",
                message=f"{key}.capacity_factor is {factor}: even perfectly balanced routing loses "
                "tokens; give at least 1",
            )


def coefficient_fits_its_convention(config: Any, regs: Registries) -> Iterator[Finding]:
    """A load coefficient carried from another convention is K or K times the layers off."""
    layers = {key_of(slot): len(found) for slot, found in layers_by_slot(config).items()}
    for key, moe in mixtures(config):
        balance = moe.get("balance") or {}
        per_token = moe["num_experts_per_tok"]
        # what the term is when the load is balanced: the same coefficient means this much more
        balanced = {
            "load": 1,
            "load_hf": per_token,
            "load_minimind": per_token * layers.get(key, 0),
        }
        found = [name for name in balance if name in balanced]
        if len(found) > 1:
            yield Finding(
                code="two-conventions",
                message=f"{key}.balance has {' and '.join(found)}: the same loss on two scales; "
                "keep one",
            )
        for name in found:
            value = balance[name]
            coefficient = value["coefficient"] if hasattr(value, "keys") else value
            if coefficient * balanced[name] > LARGE_BALANCE:
                yield Finding(
                    code="large-balance",
                    message=f"{key}.balance.{name} is {coefficient}: balanced, the term is "
                    f"{balanced[name]} and adds {coefficient * balanced[name]:.3g} to the loss "
                    f"(load_hf counts K times, load_minimind K times the layers); "
                    f"{0.03 / balanced[name]:.2g} is what the default `load` of 0.03 means here",
                    is_error=False,
                )


def options_are_read(config: Any, regs: Registries) -> Iterator[Finding]:
    """An option that another one switches off would be a change that changes nothing."""
    for key, moe in mixtures(config):
        router = router_options(moe, regs)
        switches = (
            (router.get("n_group", 1) == 1, GROUP_OPTIONS, "router.n_group is 1"),
            (not router.get("norm_topk_prob", True), NORM_OPTIONS, "router.norm_topk_prob is off"),
        )
        for is_off, options, reason in switches:
            for option, default in options.items() if is_off else ():
                if router.get(option, default) != default:
                    yield Finding(
                        code="unread-option",
                        message=f"{key}.router.{option} is {router[option]}, but {key}.{reason} "
                        f"and nothing reads it; leave it at {default}",
                        is_error=False,  # families' presets keep them, to be switched on
                    )
        if moe.get("drop_policy", "position") != "position" and moe.get("capacity_factor") is None:
            yield Finding(
                code="",  # the MoE refuses it too, and what is below
                message=f"{key}.drop_policy is set, but without {key}.capacity_factor nothing is "
                "dropped; set it, or leave drop_policy at position",
            )
        if moe.get("shared_combine", "sum") != "sum" and moe.get("shared") is None:
            yield Finding(
                code="",
                message=f"{key}.shared_combine is set, but there is no shared FFN; choose one with "
                "ffn/shared=NAME, or leave it at sum",
            )

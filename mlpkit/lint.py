"""Known traps, as pure functions over a configuration; each names the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mlpkit.plugins import Registries
from mlpkit.schema import option_parameters
from mlpkit.sizing import check_heads
from mlpkit.specs import FFNSpec, resolve


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One trap that a configuration walks into.

    Args:
        code: A word to allow it by, in ``lint.allow``; empty for what cannot be allowed.
        message: The key, what was found, and what to do.
        is_error: Whether it stops the run; otherwise it is a note.
    """

    code: str
    message: str
    is_error: bool = True

    def __str__(self) -> str:
        return self.message


def lint(config: Any, regs: Registries) -> list[Finding]:
    """Everything found, without the errors that ``lint.allow`` names.

    Args:
        config: A composed configuration, or a mapping of the same shape.
        regs: The registries that its names are looked up in.
    """
    allowed = set(config["lint"]["allow"])
    found = [finding for rule in RULES for finding in rule(config, regs)]
    return [f for f in found if not (f.is_error and f.code and f.code in allowed)]


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


def activation_is_read(config: Any, regs: Registries) -> Iterator[Finding]:
    """A run's ``activation=`` must reach an FFN that takes one and says nothing itself."""
    if config["activation"] is None:
        return
    ffns = list(dense_ffns(config))
    takers = [(key, ffn) for key, ffn in ffns if takes_activation(regs.ffn.get(name_of(ffn)))]
    silent = [key for key, ffn in takers if isinstance(ffn, str) or ffn.get("activation") is None]
    if takers and not silent:
        yield Finding(
            code="unread-activation",
            message=f"activation is set, but {takers[0][0]}.activation is set too and wins; "
            "remove one",
        )
    elif not takers:
        yield Finding(
            code="unread-activation",
            message=f"activation is set, but the ffn {name_of(ffns[0][1])!r} takes none; remove "
            "activation=",
        )


def takes_activation(spec: FFNSpec) -> bool:
    """Whether an FFN's constructor has an argument ``activation``."""
    return spec.default_activation is not None or "activation" in option_parameters(
        "ffn", resolve(spec.target)
    )


def experts_per_token_fit(config: Any, regs: Registries) -> Iterator[Finding]:
    """A token cannot go to more experts than there are, nor than its groups hold."""
    for key, moe in mixtures(config, regs):
        num_experts, per_token = moe["num_experts"], moe["num_experts_per_tok"]
        if not 1 <= per_token <= num_experts:
            yield Finding(
                code="",
                message=f"{key}.num_experts_per_tok is {per_token} and {key}.num_experts is "
                f"{num_experts}; choose 1 to {num_experts}",
            )
            continue
        router = moe["router"]
        groups = 1 if isinstance(router, str) else router.get("n_group", 1)
        if groups == 1:
            continue
        kept = router["topk_group"]
        if num_experts % groups:
            yield Finding(
                code="",
                message=f"{key}.num_experts is {num_experts}, which {key}.router.n_group {groups} "
                "does not divide; change one of them",
            )
        elif not per_token <= kept * (num_experts // groups):
            yield Finding(
                code="",
                message=f"{key}.num_experts_per_tok is {per_token}, but a token may choose among "
                f"{kept * (num_experts // groups)} experts only; raise {key}.router.topk_group "
                f"(now {kept}), or lower n_group (now {groups})",
            )


def top1_trains_its_router(config: Any, regs: Registries) -> Iterator[Finding]:
    """One expert with renormalised weights: the weight is 1 whatever the router says."""
    for key, moe in mixtures(config, regs):
        router = moe["router"]
        normalised = True if isinstance(router, str) else router.get("norm_topk_prob", False)
        if moe["num_experts_per_tok"] == 1 and normalised:
            yield Finding(
                code="top1-normalised",
                message=f"{key} routes each token to one expert and divides its weight by itself: "
                "the weight is always 1 and the task gives the router no gradient. Set "
                f"{key}.router.norm_topk_prob=false, or raise {key}.num_experts_per_tok, or allow "
                "it with lint.allow=[top1-normalised]",
            )


def routing_is_causal(config: Any, regs: Registries) -> Iterator[Finding]:
    """In a decoder, where a token goes must not depend on later tokens."""
    for key, moe in mixtures(config, regs):
        router = moe["router"]
        spec = regs.router.get(name_of(router))
        allow = "or allow it with lint.allow=[non-causal]"
        if not spec.position_wise:
            yield Finding(
                code="non-causal",
                message=f"{key}.router {spec.name!r} lets tokens compete, so a token's experts "
                "depend on later tokens and the validation loss is too good; choose a "
                f"token-choice router such as topk, {allow}",
            )
        if moe.get("capacity_factor") is not None and moe.get("drop_policy") == "probs":
            yield Finding(
                code="non-causal",
                message=f"{key}.drop_policy=probs drops the tokens with small weights, so whether "
                f"a token is dropped depends on later ones; choose position, {allow}",
            )


def router_is_balanced(config: Any, regs: Registries) -> Iterator[Finding]:
    """A router that nothing balances often collapses onto a few experts."""
    for key, moe in mixtures(config, regs):
        if not moe.get("balance"):
            yield Finding(
                code="unbalanced",
                message=f"{key}.balance is empty: nothing keeps the router from using few experts",
                is_error=False,
            )


def bias_rule_has_a_bias(config: Any, regs: Registries) -> Iterator[Finding]:
    """A selection-bias rule needs a router with that bias, and the bias a rule that moves it."""
    for key, moe in mixtures(config, regs):
        router = moe["router"]
        has_bias = not isinstance(router, str) and bool(router.get("selection_bias"))
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


def capacity_leaves_room(config: Any, regs: Registries) -> Iterator[Finding]:
    """A capacity factor below 1 drops tokens even from a perfectly balanced router."""
    for key, moe in mixtures(config, regs):
        factor = moe.get("capacity_factor")
        if factor is not None and factor < 1:
            yield Finding(
                code="small-capacity",
                message=f"{key}.capacity_factor is {factor}: even perfectly balanced routing loses "
                "tokens; give at least 1, or allow it with lint.allow=[small-capacity]",
            )


def coefficient_fits_its_convention(config: Any, regs: Registries) -> Iterator[Finding]:
    """A load coefficient carried from another convention is K or the number of layers off."""
    for key, moe in mixtures(config, regs):
        balance = moe.get("balance") or {}
        loads = [name for name in balance if name in ("load", "load_hf", "load_minimind")]
        if len(loads) > 1:
            yield Finding(
                code="two-conventions",
                message=f"{key}.balance has {' and '.join(loads)}: the same loss on two scales; "
                "keep one, or allow it with lint.allow=[two-conventions]",
            )


def experts_are_plain(config: Any, regs: Registries) -> Iterator[Finding]:
    """A MoE inside a MoE would route where no record looks."""
    for key, ffn in dense_ffns(config):
        if "." in key and regs.ffn.get(name_of(ffn)).name == "moe":
            yield Finding(code="", message=f"{key} is a moe; experts are dense FFNs")


def mixtures(config: Any, regs: Registries) -> Iterator[tuple[str, Any]]:
    """The MoE of a configuration with its key; none in a dense one."""
    ffn = config["ffn"]
    if not isinstance(ffn, str) and "num_experts_per_tok" in ffn and "router" in ffn:
        yield "ffn", ffn


def dense_ffns(config: Any) -> Iterator[tuple[str, Any]]:
    """The FFNs that hold weights of their own, with their keys: in a MoE the FFNs inside it."""
    ffn = config["ffn"]
    if isinstance(ffn, str) or "num_experts_per_tok" not in ffn:
        yield "ffn", ffn
        return
    types = ffn.get("experts") or []
    for index, expert in enumerate(types):
        yield f"ffn.experts.{index}", {k: v for k, v in expert.items() if k != "num_experts"}
    parts = ("shared",) if types else ("expert", "shared")
    yield from ((f"ffn.{part}", ffn[part]) for part in parts if ffn.get(part) is not None)


def name_of(component: Any) -> str:
    """The name of a component that is a name or a mapping with one."""
    return str(component if isinstance(component, str) else component["name"])


RULES: tuple[Callable[[Any, Registries], Iterator[Finding]], ...] = (
    heads_divide,
    width_is_valid,
    activation_is_read,
    experts_per_token_fit,
    top1_trains_its_router,
    routing_is_causal,
    router_is_balanced,
    bias_rule_has_a_bias,
    capacity_leaves_room,
    coefficient_fits_its_convention,
    experts_are_plain,
)

"""Known traps, as pure functions over a configuration; each names the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mlpkit.plugins import Registries
from mlpkit.schema import option_parameters
from mlpkit.sizing import check_heads
from mlpkit.specs import resolve


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
    """The FFN's width must be positive or a rule: counting its parameters shows it."""
    ffn = config["ffn"]
    options = {} if isinstance(ffn, str) else {k: v for k, v in ffn.items() if k != "name"}
    spec = regs.ffn.get(ffn if isinstance(ffn, str) else ffn["name"])
    if spec.num_params is None:
        return
    try:
        resolve(spec.num_params)(config["model"]["hidden_size"], **options)
    except ValueError as error:
        yield Finding(code="", message=f"ffn.{error}")


def activation_is_read(config: Any, regs: Registries) -> Iterator[Finding]:
    """A run's ``activation=`` must reach an FFN that takes one and says nothing itself."""
    ffn = config["ffn"]
    if config["activation"] is None:
        return
    spec = regs.ffn.get(ffn if isinstance(ffn, str) else ffn["name"])
    own = None if isinstance(ffn, str) else ffn.get("activation")
    if own is not None:
        yield Finding(
            code="unread-activation",
            message="activation is set, but ffn.activation is set too and wins; remove one",
        )
    elif spec.default_activation is None and not takes_activation(spec.target):
        yield Finding(
            code="unread-activation",
            message=f"activation is set, but the ffn {spec.name!r} takes none; remove activation=",
        )


def takes_activation(target: Any) -> bool:
    """Whether an FFN's constructor has an argument ``activation``, itself or through experts."""
    parameters = option_parameters("ffn", resolve(target))
    return bool({"activation", "expert", "experts"} & set(parameters))


RULES: tuple[Callable[[Any, Registries], Iterator[Finding]], ...] = (
    heads_divide,
    width_is_valid,
    activation_is_read,
)

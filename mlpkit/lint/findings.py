"""What a rule finds, and the FFNs of a configuration that the rules look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mlpkit.layers import key_of, slot_ffns
from mlpkit.plugins import Registries
from mlpkit.schema import schema_of


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One trap that a configuration walks into.

    Args:
        code: A word to allow it by, in ``lint.allow``; empty for what cannot be allowed.
        message: The key, what was found, and what to do instead.
        is_error: Whether it stops the run; otherwise it is a note.
    """

    code: str
    message: str
    is_error: bool = True

    def __str__(self) -> str:
        may_be_allowed = self.is_error and self.code
        return self.message + f", or allow it with lint.allow=[{self.code}]" * bool(may_be_allowed)


def mixtures(config: Any) -> Iterator[tuple[str, Any]]:
    """The MoE of a configuration, slot by slot, with their keys; none in a dense one."""
    for slot, ffn in slot_ffns(config).items():
        if not isinstance(ffn, str) and "num_experts_per_tok" in ffn and "router" in ffn:
            yield key_of(slot), ffn


def dense_ffns(config: Any) -> Iterator[tuple[str, Any]]:
    """The FFNs that hold weights of their own, slot by slot, with their keys."""
    for slot, ffn in slot_ffns(config).items():
        yield from dense_parts(key_of(slot), ffn)


def dense_parts(key: str, ffn: Any) -> Iterator[tuple[str, Any]]:
    """An FFN with its key; of a MoE the FFNs inside it."""
    if isinstance(ffn, str) or "num_experts_per_tok" not in ffn:
        yield key, ffn
        return
    types = ffn.get("experts") or []
    for index, expert in enumerate(types):
        yield f"{key}.experts.{index}", {k: v for k, v in expert.items() if k != "num_experts"}
    parts = ("shared",) if types else ("expert", "shared")
    yield from ((f"{key}.{part}", ffn[part]) for part in parts if ffn.get(part) is not None)


def router_options(moe: Any, regs: Registries) -> dict[str, Any]:
    """The options of a MoE's router, with the defaults of those that are not given."""
    given = {} if isinstance(moe["router"], str) else dict(moe["router"])
    defaults = schema_of("router", regs.router.get(name_of(moe["router"])))()
    return {**vars(defaults), **given}


def name_of(component: Any) -> str:
    """The name of a component that is a name or a mapping with one."""
    return str(component if isinstance(component, str) else component["name"])

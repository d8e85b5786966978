"""Any module in numbers: parameters by part, and those that one token uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any

from torch import nn

from mlpkit.describe.description import aligned, tree
from mlpkit.describe.parts import Part, shapes

DEPTH = 3  # levels of parts below the module; more hides what one looks for


@dataclass(frozen=True, kw_only=True)
class ModuleDescription:
    """A module in numbers.

    Args:
        name: Its class.
        parts: Its parts in the order of its definition, equal neighbours together.
        parameters: A shared one is counted once.
        active_parameters: Those that one token uses, with all experts used equally often.
    """

    name: str
    parts: tuple[Part, ...]
    parameters: int
    active_parameters: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        total = (self.name, f"{self.parameters:,}", f"{self.active_parameters:,}", "")
        rows = [("", "parameters", "active", ""), *tree(self.parts), total]
        columns = 3 if self.active_parameters != self.parameters else 2
        return "\n".join(aligned([row[:columns] for row in rows]))


def describe_module(module: nn.Module) -> ModuleDescription:
    """The parts of any module, one of mlpkit's, of a plugin or of another library.

    Args:
        module: On any device, also without storage.
    """
    seen: set[int] = set()
    shares = {id(p): share for m in module.modules() for p, share in _shares(m)}
    whole = _part(type(module).__name__, module, shares, seen, DEPTH)
    return ModuleDescription(
        name=whole.name,
        parts=whole.parts,
        parameters=whole.parameters,
        active_parameters=whole.active_parameters,
    )


def _shares(module: nn.Module) -> Iterator[tuple[nn.Parameter, Fraction]]:
    """Of a MoE: the experts' parameters, with the share of them that a token uses."""
    router, experts = getattr(module, "router", None), getattr(module, "experts", None)
    number = getattr(router, "num_experts", None)
    chosen = getattr(router, "num_experts_per_tok", None)
    if number and chosen and isinstance(experts, nn.Module):
        for parameter in experts.parameters():
            yield parameter, Fraction(chosen, number)


def _part(
    name: str, module: nn.Module, shares: dict[int, Fraction], seen: set[int], depth: int
) -> Part:
    own = [p for p in module.parameters(recurse=False) if id(p) not in seen]
    seen.update(map(id, own))
    below = [_part(n, m, shares, seen, depth - 1) for n, m in module.named_children()]
    active = sum(p.numel() * shares.get(id(p), Fraction(1)) for p in own)
    return Part(
        name=name,
        detail=f"{type(module).__name__}{'' if below else shapes(module)}",
        parameters=sum(p.numel() for p in own) + sum(part.parameters for part in below),
        active_parameters=round(active) + sum(part.active_parameters for part in below),
        parts=_together([part for part in below if part.parameters]) if depth > 0 else (),
    )


def _together(parts: list[Part]) -> tuple[Part, ...]:
    """Equal neighbours, as the layers of a model, become one with their number."""
    found = []
    for _, group in groupby(parts, key=_kind):
        same = list(group)
        first, count = same[0], len(same)
        if count == 1:
            found.append(first)
            continue
        found.append(
            Part(
                name=f"{first.name}-{same[-1].name}",
                count=count,
                detail=first.detail,
                parameters=count * first.parameters,
                active_parameters=count * first.active_parameters,
                parts=first.parts,
            )
        )
    return tuple(found)


def _kind(part: Part) -> tuple[Any, ...]:
    """What makes two parts equal; those that are not numbered are never."""
    name = "" if part.name.isdigit() else part.name
    return name, part.detail, part.parameters, part.active_parameters, part.parts

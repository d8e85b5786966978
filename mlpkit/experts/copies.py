"""Checks that copies of an FFN differ in nothing but the values of their tensors."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import type_before_parametrizations

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
# What nn.Module keeps for itself; its tensors and children are compared on their own.
INTERNAL = frozenset(vars(nn.Module())) - {"training"}


class CopiesError(ValueError):
    """Copies of an FFN that one template cannot stand for."""

    exit_code = 2


def check_copies(copies: Sequence[nn.Module]) -> None:
    """Refuses copies that differ in more than the values of their parameters and buffers.

    Args:
        copies: E initialised FFNs.

    Raises:
        CopiesError: There is none, two share a tensor, or two differ in type, structure, shape,
            dtype, frozen flags, hooks or a plain attribute; the message names the place.
    """
    if not copies:
        raise CopiesError("experts need at least one copy of an FFN, got none")
    first, *others = copies
    for name, tensor in named_tensors(first).items():
        if is_lazy(tensor):
            raise CopiesError(f"expert tensor {name!r} is lazy; give its layer all its sizes")
    seen = {id(t): name for name, t in named_tensors(first).items()}
    _check_pair(first, first, 0)  # also a single copy may hold what no template can
    for index, other in enumerate(others, start=1):
        _check_pair(first, other, index)
        shared = [name for name, t in named_tensors(other).items() if id(t) in seen]
        if shared:
            raise CopiesError(
                f"copy {index} shares the tensor {shared[0]!r} with another copy; build every "
                "copy, with its activation, on its own"
            )
        seen.update({id(t): name for name, t in named_tensors(other).items()})


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, each under every name it has."""
    parameters = module.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(module.named_buffers(remove_duplicate=False))}


def _check_pair(first: nn.Module, other: nn.Module, index: int) -> None:
    modules, other_modules = (dict(m.named_modules(remove_duplicate=False)) for m in (first, other))
    kinds, other_kinds = (
        {name: type_before_parametrizations(m) for name, m in of.items()}
        for of in (modules, other_modules)
    )
    _refuse_difference("modules", kinds, other_kinds, index)
    tensors, other_tensors = (
        {name: (tuple(t.shape), t.dtype, t.requires_grad) for name, t in named_tensors(m).items()}
        for m in (first, other)
    )
    _refuse_difference("tensors", tensors, other_tensors, index)
    compare = Comparison(first, other)
    for name, module in modules.items():
        for key, ours, theirs in _attributes(module, other_modules[name]):
            place = f"{name}.{key}".lstrip(".")
            if compare.captures(ours):
                raise CopiesError(
                    f"the function in {place!r} holds on to the FFN or a part of it, which no "
                    "copy of it lets go; write it as a method"
                )
            if not compare.same(ours, theirs):
                raise CopiesError(
                    f"copy {index} differs from copy 0 in the plain attribute {place!r} "
                    f"({_short(theirs)}, not {_short(ours)}), and one template keeps the code "
                    "of all; make it a parameter or a buffer, or put such copies into groups "
                    "of their own (ExpertGroups)"
                )


def _refuse_difference(
    what: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], index: int
) -> None:
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            raise CopiesError(
                f"copy {index} differs from copy 0 in its {what}: {name or 'the FFN'!r} is "
                f"{theirs.get(name, 'missing')}, not {ours.get(name, 'missing')}; experts of "
                "different types or widths go into groups of their own (ExpertGroups)"
            )


def _attributes(ours: nn.Module, theirs: nn.Module) -> list[tuple[str, Any, Any]]:
    a, b = vars(ours), vars(theirs)
    names = sorted((a.keys() | b.keys()) - INTERNAL)
    pairs = [(name, a.get(name), b.get(name)) for name in names]
    # Hooks are keyed by a running number, so only their order and their functions are compared.
    hooks = [(name, list(a[name].values()), list(b[name].values())) for name in HOOKS]
    return [*pairs, *hooks]


def _short(value: object) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 40 else text[:37] + "..."


class Comparison:
    """Compares the attributes of two copies, where parts of a copy are equal by their place.

    Args:
        first: One copy.
        other: The other.
    """

    def __init__(self, first: nn.Module, other: nn.Module) -> None:
        self._ours, self._theirs = _places(first), _places(other)
        self._open: set[tuple[int, int]] = set()

    def same(self, a: Any, b: Any) -> bool:
        """Whether two values are equal; False where that cannot be shown."""
        pair = id(a), id(b)
        if pair[0] in self._ours or pair[1] in self._theirs:
            return self._ours.get(pair[0]) == self._theirs.get(pair[1])
        if a is b or pair in self._open:
            return True
        if type(a) is not type(b):
            return False
        self._open.add(pair)
        try:
            return self._same_content(a, b)
        finally:
            self._open.discard(pair)

    def captures(self, value: Any) -> bool:
        """Whether a plain function, which copying leaves as it is, refers to a part of the FFN."""
        if isinstance(value, (list, tuple)):
            return any(map(self.captures, value))
        if not isinstance(value, types.FunctionType):
            return False
        cells, defaults, _ = _captured(value)
        return any(id(held) in self._ours for held in (*cells, *(defaults or ())))

    def _same_content(self, a: Any, b: Any) -> bool:
        if isinstance(a, Tensor):
            return a.shape == b.shape and a.dtype == b.dtype and (a.is_meta or torch.equal(a, b))
        if isinstance(a, Mapping):
            return list(a) == list(b) and all(self.same(a[key], b[key]) for key in a)
        if isinstance(a, (list, tuple)):
            return len(a) == len(b) and all(map(self.same, a, b))
        if isinstance(a, types.FunctionType):
            return a.__code__ is b.__code__ and all(map(self.same, _captured(a), _captured(b)))
        if isinstance(a, types.MethodType):
            return a.__func__ is b.__func__ and self.same(a.__self__, b.__self__)
        if isinstance(a, functools.partial):
            return self.same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords))
        plain = getattr(type(a), "__eq__", None) is object.__eq__ and hasattr(a, "__dict__")
        return self.same(vars(a), vars(b)) if plain else _equal(a, b)


def _captured(function: types.FunctionType) -> tuple[Any, ...]:
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    return cells, function.__defaults__, function.__kwdefaults__


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b) or (a != a and b != b)  # NaN equals itself here
    except (TypeError, ValueError, RuntimeError):
        return False


def _places(module: nn.Module) -> dict[int, str]:
    named = {id(m): f"module {name}" for name, m in module.named_modules()}
    return {**named, **{id(t): f"tensor {name}" for name, t in named_tensors(module).items()}}

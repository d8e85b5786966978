"""From E copies of an FFN to one template without values and one stack for each tensor."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mlpkit.experts.copies import CopiesError, named_tensors


class StackedTensors(nn.Module):
    """Holds the stacked tensors of one module of the FFN; it is never called."""

    def extra_repr(self) -> str:
        """The shapes, E in front."""
        return ", ".join(f"{name}={tuple(t.shape)}" for name, t in own_tensors(self).items())


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers that a module holds itself."""
    tensors = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def hollow(module: nn.Module) -> nn.Module:
    """A copy of a module whose tensors have shapes and no values, ties kept."""
    memo: dict[int, object] = {}
    for tensor in named_tensors(module).values():
        empty = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    return copy.deepcopy(module, memo)


def view_of(template: nn.Module, stacks: dict[str, Tensor], index: int) -> nn.Module:
    """A copy of the template whose tensors are views of one expert's part of the stacks."""
    memo: dict[int, object] = {}
    for name, tensor in named_tensors(template).items():
        if name not in stacks:
            continue  # the second place of a shared module
        view = stacks[name].detach()[index]
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(view, stacks[name].requires_grad) if is_parameter else view
    return copy.deepcopy(template, memo)


def stack_into(root: nn.Module, modules: Sequence[nn.Module]) -> tuple[str, ...]:
    """Stacks every tensor of the copies into a tree of holders with the same names.

    Args:
        root: The holder that stands for the FFN itself.
        modules: E copies, checked.

    Returns:
        The names of the stacks. A tied tensor has one at each of its places, and a module that
        stands at two places has its first.

    Raises:
        CopiesError: The FFN uses a name that the root has for something else.
    """
    first, *others = [dict(m.named_modules(remove_duplicate=False)) for m in modules]
    holders: dict[int, nn.Module] = {id(modules[0]): root}
    stacks: dict[int, Tensor] = {}
    names = []
    for path, module in first.items():
        known = id(module) in holders
        holder = holders.setdefault(id(module), StackedTensors())
        if path and named_tensors(module):
            _attach(holders[id(first[path.rpartition(".")[0]])], path.rpartition(".")[2], holder)
        if known and path:
            continue
        for key, tensor in own_tensors(module).items():
            copies = [tensor, *(own_tensors(other[path])[key] for other in others)]
            stack = stacks.setdefault(id(tensor), _stack(copies, stacks.get(id(tensor))))
            _hold(holder, key, stack, key not in module._non_persistent_buffers_set)
            names.append(f"{path}.{key}".lstrip("."))
    return tuple(names)


def _stack(copies: Sequence[Tensor], known: Tensor | None) -> Tensor:
    if known is not None:
        return known
    stack = torch.stack([tensor.detach() for tensor in copies])
    if not isinstance(copies[0], nn.Parameter):
        return stack
    return nn.Parameter(stack, requires_grad=copies[0].requires_grad)


def _attach(parent: nn.Module, name: str, holder: nn.Module) -> None:
    if parent._modules.get(name) is not holder:
        _refuse_taken(parent, name)
        parent.add_module(name, holder)


def _hold(holder: nn.Module, name: str, stack: Tensor, persistent: bool) -> None:
    _refuse_taken(holder, name)
    if isinstance(stack, nn.Parameter):
        holder.register_parameter(name, stack)
    else:
        holder.register_buffer(name, stack, persistent=persistent)


def _refuse_taken(holder: nn.Module, name: str) -> None:
    if hasattr(holder, name):
        raise CopiesError(
            f"the FFN calls a part {name!r}, a name that {type(holder).__name__} has for "
            "something else; rename that part"
        )

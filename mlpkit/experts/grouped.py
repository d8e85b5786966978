"""The grouped backend: the author's forward runs once, its linears multiply by expert."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor, nn

from mlpkit.experts.backends import Backend, Tensors, UnfitExpertError, call, expert_of_rows
from mlpkit.experts.copies import HOOKS
from mlpkit.experts.operators import multiply
from mlpkit.experts.shapes import computed_in


class GroupedLinear(nn.Module):
    """Takes the place of a Linear whose weight and bias come stacked, with E in front.

    Args:
        linear: The layer whose place it takes; its tensors hold no values.
    """

    counts: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.register_buffer("counts", torch.empty(0, device="meta"), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, in) to (N, out) by (E, out, in); counts come in as a buffer's value."""
        if x.ndim != 2:
            raise UnfitExpertError(f"a linear got {x.ndim} axes; grouped rows have 2")
        rows, weight = _autocast(x, self.weight.transpose(1, 2))
        out = multiply(rows, weight, self.counts)
        if self.bias is None:
            return out
        # As a product with a column of ones the bias needs no operator of its own, and its
        # gradient is summed in a fixed order; an index_add would use atomics on a GPU.
        ones, bias = _autocast(x.new_ones(x.shape[0], 1), self.bias.unsqueeze(1))
        return out + multiply(ones, bias, self.counts)


def _autocast(*tensors: Tensor) -> Iterator[Tensor]:
    # By hand: register_autocast fixes one dtype, and autocast may ask for bfloat16 or float16.
    return iter([tensor.to(computed_in(tensor)) for tensor in tensors])


@final
class Grouped(Backend):
    """Replaces the linears of an FFN by grouped products over the sorted rows.

    Args:
        template: The FFN whose code all experts share.

    Raises:
        UnfitExpertError: A tensor sits outside of a plain Linear, or the code may see that a
            linear was replaced.
    """

    name = "grouped"

    def __init__(self, template: nn.Module) -> None:
        reason = obstacle(template)
        if reason:
            raise UnfitExpertError(reason)
        swapped = copy.deepcopy(template)
        super().__init__(swapped)
        new = {m: GroupedLinear(m) for m in swapped.modules() if type(m) is nn.Linear}
        for module in list(swapped.modules()):
            for name, child in module._modules.items():
                if child in new:
                    module._modules[name] = new[child]
        self._counts = [f"{n}.counts" for n, m in swapped.named_modules() if m in new.values()]

    def __call__(self, tensors: Tensors, rows: Tensor, counts: Tensor) -> Tensor:
        """Runs the experts' linears group by group; see Backend."""
        out = call(self.template, {**tensors, **dict.fromkeys(self._counts, counts)}, rows)
        # On a GPU the answer would have to be waited for, and in a graph it cannot be asked.
        known = counts.is_cpu and not torch.compiler.is_compiling()
        return out if known and _covers(counts, rows) else _zero_rest(out, counts)


def _covers(counts: Tensor, rows: Tensor) -> bool:
    sizes: list[int] = counts.tolist()  # one transfer; a sum would be two operators more
    return sum(sizes) == rows.shape[0]


def _zero_rest(rows: Tensor, counts: Tensor) -> Tensor:
    owned = expert_of_rows(counts, rows.shape[0]) < counts.shape[0]
    return torch.where(owned.unsqueeze(1), rows, torch.zeros_like(rows))


def obstacle(template: nn.Module) -> str:
    """Why the linears of an FFN cannot be replaced, as far as its structure tells; else ""."""
    if type(template) is nn.Linear:
        return "the FFN is itself a Linear"
    for name, module in template.named_modules():
        place = name or "the FFN"
        if any(getattr(module, hooks) for hooks in HOOKS):
            return f"{place} has hooks"
        tensors = [*module._parameters.values(), *module._buffers.values()]
        if type(module) is not nn.Linear and any(t is not None for t in tensors):
            return f"{place} ({type(module).__name__}) holds tensors and is not a plain Linear"
        hidden = [key for key, value in vars(module).items() if _hides(key, value)]
        if hidden:
            return f"{place} keeps a module or tensor in its attribute {hidden[0]!r}"
    return ""


def _hides(key: str, value: Any) -> bool:
    """Whether a plain attribute holds a module or tensor, where a replacement would miss it."""
    if key in ("_modules", "_parameters", "_buffers"):
        return False
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_hides("", item) for item in value)
    return isinstance(value, (nn.Module, Tensor))

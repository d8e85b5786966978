"""The backend contract, and the three backends that call any FFN: loop, padded and gather."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, cast, final

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.func import functional_call, vmap

from mlpkit.experts.shapes import compiles_shapes, rounded

Tensors = Mapping[str, Tensor]


class UnfitExpertError(ValueError):
    """A backend cannot run this FFN; the message is the reason, and the loop runs it instead."""

    exit_code = 2


class Backend(ABC):
    """A way to run E stacked experts over tokens sorted by expert.

    Args:
        template: The FFN whose code all experts share; its own tensors hold no values.

    Raises:
        UnfitExpertError: The backend cannot run this FFN.
    """

    name: ClassVar[str]

    def __init__(self, template: nn.Module) -> None:
        self.template = template

    @abstractmethod
    def __call__(self, tensors: Tensors, rows: Tensor, counts: Tensor) -> Tensor:
        """Runs the experts.

        Args:
            tensors: Every parameter and buffer of the template under its name, E in front.
            rows: (N, H) with N at least 1, sorted by expert.
            counts: (E,) int64, rows of each expert. Their sum is at most N.

        Returns:
            (N, H); zeros for the rows past the last expert's.
        """

    def train(self, mode: bool) -> None:
        """Switches the code between training and evaluation."""
        self.template.train(mode)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def traces_sizes() -> bool:
    """Whether the compiler follows a tensor's value into a Python number."""
    return bool(torch._dynamo.config.capture_scalar_outputs)


def host_sizes(counts: Tensor) -> list[int] | None:
    """The counts as numbers, or None where a compiler traces and would have to break the graph."""
    if torch.compiler.is_compiling() and not traces_sizes():
        return None
    sizes: list[int] = counts.tolist()
    return sizes


def expert_of_rows(counts: Tensor, num_rows: int) -> Tensor:
    """The expert of each sorted row: (N,) int64, E for the rows past the last expert's."""
    position = torch.arange(num_rows, device=counts.device)
    return torch.searchsorted(counts.cumsum(0), position, right=True)


def call(template: nn.Module, tensors: Tensors, rows: Tensor) -> Tensor:
    """Runs the template with these tensors in the place of its own.

    As ``torch.func.functional_call``, whose checks take as long as an expert with one row.
    """
    if torch.compiler.is_compiling():
        # The names cover every place of a tied tensor: torch need not search for ties.
        return cast(Tensor, functional_call(template, dict(tensors), (rows,), tie_weights=False))
    places = [_place(template, name) for name in tensors]
    before = [(holder, key, holder[key]) for holder, key in places]
    try:
        for (holder, key), tensor in zip(places, tensors.values(), strict=True):
            holder[key] = tensor
        return cast(Tensor, template(rows))
    finally:
        for holder, key, tensor in before:
            holder[key] = tensor


def _place(template: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The dictionary of a module that holds a tensor, and its key there."""
    *path, key = name.split(".")
    for part in path:
        template = template._modules[part]  # type: ignore[assignment]
    return template._parameters if key in template._parameters else template._buffers, key


@final
class Loop(Backend):
    """Calls the FFN once for each expert with rows: the reference, right for any module."""

    name = "loop"

    def __call__(self, tensors: Tensors, rows: Tensor, counts: Tensor) -> Tensor:
        """Runs the experts one after the other; see Backend."""
        # unbind once: its backward writes a stack's gradient once and leaves zeros for idle
        # experts. Indexing stack[e] in the loop would fill the whole gradient E times.
        slices = {name: tensor.unbind(0) for name, tensor in tensors.items()}
        sizes = host_sizes(counts)
        if sizes is None:
            return self._everywhere(slices, rows, counts)
        rest = rows.shape[0] - sum(sizes)
        parts = [
            call(self.template, {name: s[expert] for name, s in slices.items()}, part)
            for expert, part in enumerate(torch.split(rows, [*sizes, rest])[:-1])
            if torch.compiler.is_compiling() or len(part)
        ]
        # Under autocast the experts' dtype is not the rows'.
        dtype = parts[0].dtype if parts else rows.dtype
        return torch.cat([*parts, rows.new_zeros(rest, rows.shape[1], dtype=dtype)])

    def _everywhere(
        self, slices: Mapping[str, tuple[Tensor, ...]], rows: Tensor, counts: Tensor
    ) -> Tensor:
        # Shapes that do not depend on the routing, for a full graph, at E times the work; with
        # torch._dynamo.config.capture_scalar_outputs the compiled loop does only its own rows.
        owner = expert_of_rows(counts, rows.shape[0])
        out = torch.zeros_like(rows)
        for expert in range(counts.shape[0]):
            part = call(self.template, {name: s[expert] for name, s in slices.items()}, rows)
            out = torch.where((owner == expert).unsqueeze(1), part, out)
        return out


class _Mapped(Backend):
    """Calls the FFN under vmap, over copies of its tensors along a leading axis."""

    def _map(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Runs (B, ...) tensors on (B, C, H) rows."""

        def one(tensors: dict[str, Tensor], rows: Tensor) -> Tensor:
            return call(self.template, tensors, rows)

        return vmap(one, randomness="different")(dict(tensors), rows)


@final
class Padded(_Mapped):
    """Gives each expert the same number of rows and runs all experts at once.

    Args:
        template: The FFN whose code all experts share.
        grouped: Runs the padded rows instead of vmap, where the FFN allows it: the same products
            of batches, without the time that vmap takes to make them.
    """

    name = "padded"

    def __init__(self, template: nn.Module, *, grouped: Backend | None = None) -> None:
        super().__init__(template)
        self.grouped = grouped

    def __call__(self, tensors: Tensors, rows: Tensor, counts: Tensor) -> Tensor:
        """Runs the experts side by side; see Backend."""
        sizes = host_sizes(counts)
        slots = rows.shape[0] if sizes is None else max(1, *sizes)
        if sizes is not None and compiles_shapes(rows):
            slots = rounded(slots)
        start = counts.cumsum(0) - counts
        # Free slots repeat a real row: zeros would give NaN gradients to an expert that divides
        # by a norm, and a gradient times zero is zero only when it is finite.
        index = start.unsqueeze(1) + torch.arange(slots, device=rows.device)  # (E, C)
        index = index.clamp(max=rows.shape[0] - 1)
        padded = rows.index_select(0, index.flatten())  # (E·C, H)
        if self.grouped is None:
            out = self._map(tensors, rearrange(padded, "(e c) h -> e c h", c=slots)).flatten(0, 1)
        else:
            out = self.grouped(tensors, padded, torch.full_like(counts, slots))
        owner = expert_of_rows(counts, rows.shape[0])
        inside = owner.clamp(max=counts.shape[0] - 1)
        slot = torch.arange(rows.shape[0], device=rows.device) - start[inside]
        place = inside * slots + slot.clamp(max=slots - 1)
        return _only_owned(out.index_select(0, place), owner, counts)

    def train(self, mode: bool) -> None:
        """Switches the code between training and evaluation."""
        super().train(mode)
        if self.grouped is not None:
            self.grouped.train(mode)


@final
class Gather(_Mapped):
    """Gathers each row's own weights: for few tokens, its memory grows with N times an expert."""

    name = "gather"

    def __call__(self, tensors: Tensors, rows: Tensor, counts: Tensor) -> Tensor:
        """Runs each row with its expert's weights; see Backend."""
        owner = expert_of_rows(counts, rows.shape[0])
        inside = owner.clamp(max=counts.shape[0] - 1)
        own = {name: tensor.index_select(0, inside) for name, tensor in tensors.items()}
        out = self._map(own, rows.unsqueeze(1)).squeeze(1)  # (N, 1, H) -> (N, H)
        return _only_owned(out, owner, counts)


def _only_owned(rows: Tensor, owner: Tensor, counts: Tensor) -> Tensor:
    """Zeros in the rows that belong to no expert."""
    return torch.where((owner < counts.shape[0]).unsqueeze(1), rows, torch.zeros_like(rows))

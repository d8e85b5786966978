"""Experts: E copies of any FFN as one template and stacked tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from mlpkit.experts.auto import WIDEST, Auto, row_cost
from mlpkit.experts.backends import Backend, Gather, Loop, Padded, Tensors
from mlpkit.experts.copies import check_copies
from mlpkit.experts.grouped import Grouped
from mlpkit.experts.stacking import StackedTensors, hollow, stack_into, view_of
from mlpkit.experts.witness import verify
from mlpkit.registry import suggestion

Run = Callable[[Tensors, Tensor, Tensor], Tensor]
Exchange = Callable[[Run, Tensors, Tensor, Tensor], Tensor]
BUILTIN: dict[str, type[Backend]] = {b.name: b for b in (Auto, Loop, Grouped, Padded, Gather)}


class UnknownBackendError(LookupError):
    """A backend's name that is none of the built-in ones."""

    exit_code = 2


@final
class Experts(StackedTensors):
    """E copies of one FFN: every tensor stacked with E in front, the code kept once.

    The stacks have the FFN's own names: ``gate_proj.weight (E, I, H)``. They are the only
    storage; frozen flags, ties and buffers are those of the copies. A hook or parametrisation
    belongs on the FFN before it is stacked: the modules seen here hold tensors and are not called.

    Args:
        modules: E initialised copies of an FFN (any ``nn.Module`` with a tensor in and out). They
            are copied, not kept.
        backend: How the experts are run: "auto", "loop", "grouped", "padded", "gather", or a
            Backend class. One that cannot run this FFN gives way to the loop, and
            ``backend_reason`` says why.

    Raises:
        CopiesError: The copies differ in more than the values of their tensors, or a name of
            theirs is taken.
        UnknownBackendError: No backend has the name.
    """

    def __init__(
        self, modules: Sequence[nn.Module], *, backend: str | type[Backend] = "auto"
    ) -> None:
        super().__init__()
        check_copies(modules)
        kind = _kind(backend)
        self.num_experts = len(modules)
        # In a tuple, so that it is no submodule: its tensors are placeholders.
        self._template = (hollow(modules[0]),)
        self.backend_reason = ""
        self._backend: Backend = Loop(self._template[0])
        # How rows reach the process that holds their expert; mlpkit.parallel puts another in.
        self.exchange: Exchange | None = None
        self._names = stack_into(self, modules)
        self._settle(kind)
        self.train(modules[0].training)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Runs each expert on its rows.

        Args:
            rows: (N, H), sorted by expert.
            counts: (E,) int64, the rows of each expert; their sum is at most N.

        Returns:
            (N, H); zeros for the rows past the last expert's.
        """
        if self.exchange is None:  # every expert is here
            return self._run(self.tensors(), rows, counts)
        return self.exchange(self._run, self.tensors(), rows, counts)

    def _run(self, tensors: Tensors, rows: Tensor, counts: Tensor) -> Tensor:
        """Runs experts that are all here, with these tensors; otherwise as forward."""
        if rows.shape[0] == 0:
            return _idle(tensors, rows)
        return self._backend(tensors, rows, counts)

    @property
    def backend_name(self) -> str:
        """The backend in use; "auto" gives its way of running experts in turn: see ``pick``."""
        return self._backend.in_turn.name if isinstance(self._backend, Auto) else self._backend.name

    def pick(self, sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> str:
        """The name of the backend that runs these loads on a CPU.

        Args:
            sizes: Rows of each expert.
            dtype: Of the rows.
        """
        if not isinstance(self._backend, Auto):
            return self._backend.name
        return self._backend.pick(sizes, row_cost(self.tensors()), dtype).name

    def tensors(self) -> dict[str, Tensor]:
        """Every parameter and buffer of the FFN by its name, with E in front."""
        found = {}
        for name in self._names:
            holder: nn.Module = self
            *path, key = name.split(".")
            for part in path:
                holder = holder._modules[part]  # type: ignore[assignment]
            tensor = getattr(holder, key)
            # Experts sharded over devices hold DTensors; a rank computes with its own part.
            found[name] = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        return found

    def expert(self, index: int) -> nn.Module:
        """One expert as the author's module, its tensors views of the stacks.

        Args:
            index: In [0, E).

        Returns:
            A module like one of the copies. What is written into its tensors is written into the
            stacks; gradients of its parameters are its own.

        Raises:
            IndexError: There is no such expert.
        """
        if not 0 <= index < self.num_experts:
            raise IndexError(f"expert {index} of {self.num_experts}; they count from 0")
        return view_of(self._template[0], self.tensors(), index)

    def train(self, mode: bool = True) -> Experts:
        """Switches the experts between training and evaluation."""
        super().train(mode)
        self._template[0].train(mode)
        self._backend.train(mode)
        return self

    def extra_repr(self) -> str:
        """The FFN's class, E, and the backend with the reason for it."""
        reason = f" ({self.backend_reason})" if self.backend_reason else ""
        kind = type(self._template[0]).__name__
        own = super().extra_repr()
        text = f"{kind}, num_experts={self.num_experts}, backend={self.backend_name}{reason}"
        return f"{text}, {own}" if own else text

    def _settle(self, kind: type[Backend]) -> None:
        """Takes the backend that was asked for, or the loop where the witness is against it."""
        template, tensors = self._template[0], self.tensors()
        wanted = Grouped if kind is Auto else kind
        reason = "" if wanted is Loop else verify(wanted, template, tensors)
        if reason:
            self.backend_reason = f"{wanted.name}: {reason}"
        elif kind is not Auto:
            self._backend = kind(template)
        if kind is Auto:
            self._backend = _auto(template, tensors, groupable=not reason)


def _kind(backend: str | type[Backend]) -> type[Backend]:
    if not isinstance(backend, str):
        return backend
    if backend not in BUILTIN:
        raise UnknownBackendError(
            f"unknown backend {backend!r}{suggestion(backend, BUILTIN)} "
            f"(built in: {', '.join(sorted(BUILTIN))}); a plugin's is passed as its class"
        )
    return BUILTIN[backend]


def _auto(template: nn.Module, tensors: Tensors, *, groupable: bool) -> Auto:
    if groupable:
        grouped = Grouped(template)
        return Auto(template, grouped, Padded(template, grouped=grouped))
    narrow = row_cost(tensors) <= WIDEST  # also spares a witness of wide matrices
    fits = narrow and not verify(Padded, template, tensors)
    return Auto(template, Loop(template), Padded(template) if fits else None)


def _idle(tensors: Tensors, rows: Tensor) -> Tensor:
    """No rows, and a gradient of zero for every parameter and the rows."""
    zero = rows.new_zeros(())
    for tensor in tensors.values():
        if tensor.requires_grad:
            zero = zero + 0 * tensor.sum().to(zero.dtype)
    return rows + zero

"""Parallel: what a training loop asks of its processes, and the answer of a single one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self, TypeVar, final

import torch
from torch import Tensor, nn
from torch import distributed as dist

from mlpkit.parallel.layout import Layout
from mlpkit.parallel.ranks import Ranks

Value = TypeVar("Value")
Groups = list[dict[str, Any]]
UNITS = ("layers.*",)  # what of a Decoder is gathered together when its parameters are sharded


class FollowingError(Exception):
    """The end of a process because of another one's error, which that one says.

    Args:
        exit_code: That of the other one's error.
    """

    said_elsewhere = True  # the program prints nothing

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"another process has ended with {exit_code}, and says why")
        self.exit_code = exit_code


class Parallel(ABC):
    """The processes of a run. Every process calls the same methods in the same order.

    Args:
        ranks: Which process this is.
        layout: What each process holds.
    """

    def __init__(self, *, ranks: Ranks, layout: Layout) -> None:
        self.rank, self.local_rank, self.world = ranks.rank, ranks.local_rank, ranks.world
        self.layout = layout
        self.shared: Exception | None = None  # an error that all processes have at the same place

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    @abstractmethod
    def apply(self, model: nn.Module, *, units: Sequence[str] = UNITS) -> nn.Module:
        """Spreads a model over the processes, in place.

        Args:
            model: The same in every process, on its device.
            units: Patterns of the modules whose parameters travel together, where they are
                sharded.

        Returns:
            What is called in training instead of the model. Everything else (evaluation,
            parameters, state dict) still goes by the model itself.

        Raises:
            ParallelError: The processes hold different models, experts do not divide, or a
                pattern matches nothing.
        """

    @abstractmethod
    def accumulating(self, forward: nn.Module, more: bool) -> AbstractContextManager[None]:
        """The context of one forward and backward out of several for a step.

        Args:
            forward: What ``apply`` returned.
            more: Whether further ones follow: the gradients may then wait.
        """

    @abstractmethod
    def rows(self, batch: Tensor) -> Tensor:
        """This process's rows (dimension 0) of a batch; all processes' in order are the batch."""

    @abstractmethod
    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over the processes, a new one, without gradient."""

    @abstractmethod
    def max(self, value: float) -> float:
        """The largest of the processes' numbers: whether any was told to stop, say."""

    def mean(self, value: float) -> float:
        """The mean of the processes' numbers."""
        return self.total(value) / self.world

    def total(self, value: float) -> float:
        """The sum of the processes' numbers, in float64."""
        return float(self.sum(torch.tensor(value, dtype=torch.float64)))

    def reduce_load(self, loads: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tokens of each layer's experts, (E,), over the whole batch.

        Args:
            loads: This process's own, as ``Record.load`` gives them.
        """
        return {name: self.sum(load) for name, load in loads.items()}

    @abstractmethod
    def parameter_groups(self, groups: Groups) -> Groups:
        """An optimizer's groups, split where one fused step cannot take their parameters at once.

        Args:
            groups: As an optimizer takes them, with lists of ``params``.
        """

    @abstractmethod
    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], max_norm: float) -> float:
        """Scales the gradients to a norm of at most ``max_norm`` over the whole model.

        Returns:
            The norm before.
        """

    @abstractmethod
    def full_state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """The whole state dict on the CPU, as one process has it; empty but on the main one."""

    @abstractmethod
    def from_main(self, value: Value) -> Value:
        """The main process's value in all of them.

        Args:
            value: What JSON can say.
        """

    def on_main(self, function: Callable[[], Value]) -> Value | None:
        """Runs a function in the main process; where it fails, all processes fail.

        Returns:
            What it returned; None in the other processes.

        Raises:
            FollowingError: In the others, when it raised something in the main one.
        """
        value, failure = None, None
        if self.is_main:
            try:
                value = function()
            except Exception as error:
                failure = error
        code = self.from_main(int(getattr(failure, "exit_code", 1)) if failure else 0)
        if code:
            self.shared = failure or FollowingError(code)
            raise self.shared
        return value

    @abstractmethod
    def own_group(self) -> dist.ProcessGroup | None:
        """A group for what goes on beside training, such as writing; None: there is none."""

    @abstractmethod
    def wait(self) -> None:
        """Returns when every process has come here."""

    @abstractmethod
    def close(self) -> None:
        """Ends the group; call it once in every process, when all is done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()


@final
class OneProcess(Parallel):
    """A run in one process: everything is as it is, and no process group exists."""

    def __init__(self) -> None:
        super().__init__(ranks=Ranks(), layout=Layout(data=1, shard=1, expert=1))

    def apply(self, model: nn.Module, *, units: Sequence[str] = UNITS) -> nn.Module:
        """The model."""
        return model

    def accumulating(self, forward: nn.Module, more: bool) -> AbstractContextManager[None]:
        """Nothing to wait for."""
        return nullcontext()

    def rows(self, batch: Tensor) -> Tensor:
        """All rows."""
        return batch

    def sum(self, value: Tensor) -> Tensor:
        """The value."""
        return value

    def max(self, value: float) -> float:
        """The value."""
        return value

    def mean(self, value: float) -> float:
        """The value."""
        return value

    def total(self, value: float) -> float:
        """The value."""
        return value

    def parameter_groups(self, groups: Groups) -> Groups:
        """The groups."""
        return groups

    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], max_norm: float) -> float:
        """Clips as torch does."""
        return float(nn.utils.clip_grad_norm_(parameters, max_norm))

    def full_state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """The state dict on the CPU."""
        return {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}

    def from_main(self, value: Value) -> Value:
        """The value."""
        return value

    def on_main(self, function: Callable[[], Value]) -> Value | None:
        """Runs it."""
        return function()

    def own_group(self) -> dist.ProcessGroup | None:
        """None."""
        return None

    def wait(self) -> None:
        """Nobody to wait for."""

    def close(self) -> None:
        """Nothing to end."""

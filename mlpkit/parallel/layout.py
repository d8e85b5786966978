"""Layout: how many processes there are for what, and the checks before any of them waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlpkit.configs.run import ParallelConfig

START = "torchrun --nproc-per-node {} -m mlpkit train …"


class ParallelError(ValueError):
    """A layout that does not fit the processes, the batch or the model."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What each process holds: data x shard of them, and the experts among the same ones.

    Rank r is copy r // shard and shard r % shard. A stack's experts are spread over groups of
    ``expert`` neighbouring ranks, so that their tokens travel the shortest way.

    Args:
        data: Copies of what is no expert.
        shard: Processes that one copy is spread over.
        expert: Processes that the experts of a stack are spread over.
    """

    data: int
    shard: int
    expert: int

    def __str__(self) -> str:
        over = f", experts over {self.expert}" if self.expert > 1 else ""
        return f"{self.world}: data {self.data} x shard {self.shard}{over}"

    @property
    def world(self) -> int:
        """All processes."""
        return self.data * self.shard

    @property
    def expert_shard(self) -> int:
        """Over how many processes an expert's own tensors are spread beyond ``expert``."""
        return max(1, self.shard // self.expert)

    @property
    def expert_data(self) -> int:
        """Copies of each expert."""
        return self.world // (self.expert * self.expert_shard)


def layout_of(config: ParallelConfig, processes: int) -> Layout:
    """The layout of a configuration on the processes that were started.

    Args:
        config: The configuration's ``parallel``.
        processes: How many there are.

    Raises:
        ParallelError: They are not data x shard, or ``expert`` does not fit among them.
    """
    data = config.data or max(1, processes // config.shard)
    layout = Layout(data=data, shard=config.shard, expert=config.expert)
    wanted = f"parallel.data={data} x parallel.shard={config.shard}"
    if layout.world != processes:
        found = "this is one process" if processes == 1 else f"there are {processes} processes"
        raise ParallelError(
            f"{wanted} is {layout.world} and {found}; start "
            f"{START.format(layout.world)}, or give others"
        )
    nested = config.shard % config.expert == 0 or config.expert % config.shard == 0
    if processes % config.expert or not nested:
        raise ParallelError(
            f"parallel.expert={config.expert} with {wanted}: the experts are spread over some of "
            f"the same {processes} {_plural(processes)}; choose a divisor of {processes} that "
            "divides shard, or that shard divides"
        )
    return layout


def check_batch(layout: Layout, *, batch_size: int, gradient_accumulation_steps: int = 1) -> None:
    """Refuses a batch whose micro-batches do not divide evenly among the processes.

    A process with fewer rows would weigh its tokens more than the others do.

    Args:
        layout: The processes.
        batch_size: Rows of a batch, over all processes.
        gradient_accumulation_steps: Into how many micro-batches it is split first.

    Raises:
        ParallelError: They do not divide evenly.
    """
    parts = layout.world * gradient_accumulation_steps
    if layout.world > 1 and batch_size % parts:
        raise ParallelError(
            f"training.batch_size={batch_size} over {layout.world} processes in "
            f"{gradient_accumulation_steps} micro-batches each; choose a multiple of {parts}"
        )


def check_experts(layout: Layout, stacks: Mapping[str, int]) -> None:
    """Refuses stacks that do not divide evenly among ``expert`` processes.

    Args:
        layout: The processes.
        stacks: Name of each stack of experts with parameters to its number of experts.

    Raises:
        ParallelError: There is no stack, or one does not divide.
    """
    if layout.expert == 1:
        return
    if not stacks:
        raise ParallelError(
            f"parallel.expert={layout.expert} and no layer has experts; choose ffn=moe, or "
            "parallel.shard to spread a dense model"
        )
    for name, number in stacks.items():
        if number % layout.expert:
            raise ParallelError(
                f"parallel.expert={layout.expert} and {name} has {number} experts; choose a "
                "number of experts that it divides"
            )


def _plural(processes: int) -> str:
    return "process" if processes == 1 else "processes"

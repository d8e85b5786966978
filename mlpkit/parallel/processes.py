"""ManyProcesses: a run in a process group of torch's."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, cast, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.elastic.multiprocessing.errors import get_error_handler
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from mlpkit.parallel.balance import balance_over
from mlpkit.parallel.contract import (
    UNITS,
    FollowingError,
    Groups,
    Parallel,
    Value,
)
from mlpkit.parallel.gradients import clip_grad_norm
from mlpkit.parallel.layout import Layout, ParallelError, check_experts
from mlpkit.parallel.ranks import Ranks
from mlpkit.parallel.sharding import (
    Meshes,
    expert_stacks,
    mesh_of,
    meshes_of,
    shard_model,
    wait_for_more,
)

# gloo aborted some processes whose groups were destroyed at the same moment, after all their
# work was done: 4 of 10 runs without a barrier, 2 of 12 with one, 0 of 12 one after the other.
STAGGER = 0.1  # seconds
_runs = itertools.count()


def join(
    ranks: Ranks, layout: Layout, device: torch.device, *, timeout: timedelta
) -> ManyProcesses:
    """Joins this process to the others of its run.

    Args:
        ranks: Which process this is.
        layout: What each process holds.
        device: What the model is trained on.
        timeout: How long a process waits for the others.
    """
    if device.type == "cuda":
        torch.cuda.set_device(ranks.local_rank % torch.cuda.device_count())
    # gloo beside nccl: what is on the CPU, such as a count or a flag, needs no GPU to be summed
    backend = "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:nccl"
    store, rank, world = next(rendezvous("env://", timeout=timeout))
    # torchrun's store outlives a group. In a sweep the second run would read the addresses of the
    # first one there, and wait for them until the timeout.
    store = PrefixStore(f"mlpkit run {next(_runs)}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    return ManyProcesses(ranks=ranks, layout=layout, device=device, timeout=timeout)


@final
class ManyProcesses(Parallel):
    """A run in several processes, whose default process group exists.

    Args:
        ranks: Which process this is.
        layout: What each process holds.
        device: The kind of device that the model is on.
        timeout: How long a process waits for the others in a group of its own.
    """

    def __init__(
        self,
        *,
        ranks: Ranks,
        layout: Layout,
        device: torch.device,
        timeout: timedelta | None = None,
    ) -> None:
        super().__init__(ranks=ranks, layout=layout)
        self.device, self.timeout = device, timeout
        self.group: dist.ProcessGroup = dist.group.WORLD  # type: ignore[assignment]
        copies = layout.shard == layout.expert == 1
        self.meshes: Meshes | None = None if copies else meshes_of(layout, device.type)

    def apply(self, model: nn.Module, *, units: Sequence[str] = UNITS) -> nn.Module:
        """DDP for copies alone, otherwise fully_shard with the experts exchanged; see Parallel."""
        stacks = expert_stacks(model)
        check_experts(self.layout, {name: s.num_experts for name, s in stacks.items()})
        self._require_equal(model)
        balance_over(model, self.group)
        if self.meshes is None:
            copies = DistributedDataParallel(model, gradient_as_bucket_view=True)
            # Buffers are equal anyway: a bias moves by the counts of all processes. (The
            # constructor's argument for this has another name in each of torch's versions.)
            copies.broadcast_buffers = False
            return copies
        shard_model(model, self.layout, self.meshes, units)
        return model

    def accumulating(self, forward: nn.Module, more: bool) -> AbstractContextManager[None]:
        """Gradients are exchanged once a step; see Parallel."""
        if isinstance(forward, DistributedDataParallel):
            return forward.no_sync() if more else nullcontext()
        wait_for_more(forward, more)
        return nullcontext()

    def rows(self, batch: Tensor) -> Tensor:
        """A block of neighbouring rows; see Parallel."""
        return batch.tensor_split(self.world)[self.rank]

    def sum(self, value: Tensor) -> Tensor:
        """See Parallel."""
        total = value.detach().clone()
        dist.all_reduce(total)
        return total

    def max(self, value: float) -> float:
        """See Parallel."""
        largest = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return float(largest)

    def parameter_groups(self, groups: Groups) -> Groups:
        """One group for each mesh; see Parallel."""
        split: Groups = []
        for group in groups:
            by_mesh: dict[Any, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                by_mesh.setdefault(mesh_of(parameter), []).append(parameter)
            split += [{**group, "params": params} for params in by_mesh.values()]
        return split

    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], max_norm: float) -> float:
        """See Parallel."""
        return clip_grad_norm(parameters, max_norm)

    def full_state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """Gathered to the main process; see Parallel."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return cast(dict[str, Tensor], get_model_state_dict(model, options=options))

    def from_main(self, value: Value) -> Value:
        """Sent as JSON, since pickle would run what it is given; see Parallel."""
        text = json.dumps(value).encode() if self.is_main else b""
        size = torch.tensor([len(text)])
        dist.broadcast(size, 0)
        data = torch.zeros(int(size), dtype=torch.uint8)
        if self.is_main:
            data = torch.tensor(list(text), dtype=torch.uint8)
        dist.broadcast(data, 0)
        sent: Value = json.loads(bytes(data.tolist()))
        return sent

    def own_group(self) -> dist.ProcessGroup | None:
        """By gloo, which needs no GPU to send words and files; see Parallel."""
        group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=self.timeout)
        return group

    def wait(self) -> None:
        """See Parallel."""
        dist.barrier()

    def close(self) -> None:
        """Waits for the others, then leaves one after the other on each machine."""
        dist.barrier()
        if self.device.type == "cpu":
            time.sleep(STAGGER * self.local_rank)
        dist.destroy_process_group()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Closes after success; after an error leaves the group, so that the others end too."""
        if error is None or error is self.shared:
            self.close()
        elif isinstance(error, Exception) and not isinstance(error, FollowingError):
            get_error_handler().record_exception(error)  # torchrun shows the first one

    def _require_equal(self, model: nn.Module) -> None:
        """Refuses to spread a model that is not the main process's own."""
        mine = checksums(model)
        main = self.from_main(mine)
        differ = [name for name in {**main, **mine} if main.get(name) != mine.get(name)]
        if self.max(len(differ)):
            what = f"here {differ[0]!r} is" if differ else "another process's values are"
            raise ParallelError(
                f"the processes built different models: {what} not as on rank 0; start all with "
                "the same configuration, plugins and versions"
            )


def checksums(model: nn.Module) -> dict[str, int]:
    """The sum of the bytes of each tensor of a state dict: exact, whatever the order of adding."""
    return {
        name: int(tensor.detach().reshape(-1).view(torch.uint8).sum(dtype=torch.int64))
        for name, tensor in model.state_dict().items()
    }

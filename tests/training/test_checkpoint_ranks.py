"""Checkpoints of several processes: written together, failing together, read by any number."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch import distributed as dist
from torch import multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from mlpkit.training.checkpoints import CheckpointError, CheckpointStore, open_checkpoint
from mlpkit.training.checkpoints.reading import read_tensors


def whole() -> dict[str, Tensor]:
    return {"rows": torch.arange(40.0).view(10, 4), "copy": torch.ones(3), "n": torch.tensor(5.0)}


def rank(number: int, root: Path) -> None:
    """One of two processes."""
    dist.init_process_group("gloo", init_method=f"file://{root}/meet", rank=number, world_size=2)
    mesh = init_device_mesh("cpu", (2,))

    def shared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**tensors, "rows": distribute_tensor(tensors["rows"], mesh, [Shard(0)])}

    for background in (False, True):
        folder = root / str(background)
        group = dist.new_group(backend="gloo")
        with CheckpointStore(folder, background=background, group=group) as store:
            for step in (1, 2):
                store.save(step, shared(whole()), {})
        found = shared({name: torch.zeros_like(t) for name, t in whole().items()})
        read_tensors(open_checkpoint(folder / "step_2").path, found)
        assert torch.equal(found["rows"].full_tensor(), whole()["rows"])
    for place, where in ((0, "state"), (1, "shard")):

        def stage(name: str, place: int = place, where: str = where) -> None:
            if number == place and name == where:
                raise OSError(28, "No space left on device")

        with pytest.raises(CheckpointError, match=r"step 3 .*[Nn]o space .*is step_2, and resume"):
            CheckpointStore(root / "False", stage=stage).save(3, shared(whole()), {})
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # destroying gloo's groups while a peer still talks can abort


@pytest.mark.slow
def test_two_processes_write_fail_and_read_together_and_one_reads_it_too(tmp_path: Path) -> None:
    context = mp.get_context("spawn")
    processes = [context.Process(target=rank, args=(number, tmp_path)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    for name in ("False", "True"):
        found = {key: torch.zeros_like(tensor) for key, tensor in whole().items()}
        read_tensors(open_checkpoint(tmp_path / name / "step_2").path, found)
        assert all(torch.equal(found[key], tensor) for key, tensor in whole().items())
        assert sorted(p.name for p in (tmp_path / name).iterdir()) == ["step_1", "step_2"]

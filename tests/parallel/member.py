"""A member of a run that ends well or badly, as its argument says; see test_parallel_faults."""

from __future__ import annotations

import os
import sys
import time

import torch
from torch import nn

from mlpkit.configs.run import ParallelConfig
from mlpkit.parallel import Parallel, start

CPU = torch.device("cpu")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x) * 1.0


def step(parallel: Parallel) -> None:
    torch.manual_seed(0)
    model = Model()
    parallel.apply(model)
    model(torch.ones(2, 4)).sum().backward()
    assert parallel.clip_grad_norm(model.parameters(), 1.0) > 1.0


def misbehave(how: str) -> None:
    if how == "raise":
        raise ValueError("the text ran out on rank 1")
    if how == "die":
        os.kill(os.getpid(), 9)
    if how == "leave":
        os._exit(0)
    if how == "hang":
        time.sleep(600)


def main(how: str) -> None:
    torch.set_num_threads(1)
    # a busy machine may well take seconds for what is meant to end well
    seconds = 60.0 if how in ("well", "again") else 5.0
    for number in range(3 if how == "again" else 1):
        with start(ParallelConfig(shard=2, timeout=seconds), CPU) as parallel:
            step(parallel)
            if parallel.rank == 1:
                misbehave(how)
            parallel.mean(1.0)
        print("done", number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

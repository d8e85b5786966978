"""Two processes under DDP whose tokens go to different experts: no hang, equal gradients."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = """
import datetime, os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from mlpkit.build import build_ffn

rank, backend = int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
torch.manual_seed(0)
moe = build_ffn(
    {
        "name": "moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "expert": {"name": "swiglu", "intermediate_size": 16},
        "router": {"name": "forced", "experts": [0, 1] if rank == 0 else [2, 3]},
        "backend": backend,
    },
    hidden_size=8,
).double()
# find_unused_parameters stays off: every expert takes part, also one without tokens
ddp = DistributedDataParallel(moe)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for step in range(5):
    torch.manual_seed(10 * step + rank)
    x = torch.randn(6, 8, dtype=torch.float64)
    ddp(x).square().mean().backward()
    gate = moe.experts.gate_proj.weight.grad
    assert all(p.grad is not None for p in moe.parameters() if p.requires_grad)
    assert gate[0:2].abs().max() > 0 and gate[2:4].abs().max() > 0, "the other rank's gradient"
    optimizer.step()
    optimizer.zero_grad()
gathered = [torch.empty_like(moe.experts.gate_proj.weight) for _ in range(2)]
dist.all_gather(gathered, moe.experts.gate_proj.weight.detach())
assert torch.equal(gathered[0], gathered[1]), "the ranks drifted apart"
dist.barrier()
dist.destroy_process_group()
print("done", rank)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("backend", ["loop", "grouped"])
def test_ranks_with_disjoint_experts_do_not_hang(backend: str, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), backend],
            env={**os.environ, **address, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank, worker in enumerate(workers):
            out, err = worker.communicate(timeout=240)
            assert worker.returncode == 0, err
            assert f"done {rank}" in out
    finally:
        for worker in workers:
            worker.kill()

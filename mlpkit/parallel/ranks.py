"""Ranks: which process this is, as torchrun or Slurm says."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from mlpkit.parallel.layout import ParallelError

# What torch.distributed reads, and what Slurm calls it. The step's variables exist only under
# srun: in a batch script or an interactive allocation a plain command is one process.
SLURM = {
    "RANK": "SLURM_PROCID",
    "LOCAL_RANK": "SLURM_LOCALID",
    "WORLD_SIZE": "SLURM_STEP_NUM_TASKS",
}
FIRST_PORT, PORTS = 20_000, 10_000  # below the range that systems hand out by themselves


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among all of a run.

    Args:
        rank: Its number, from 0.
        local_rank: Its number among those of the same machine.
        world: How many there are.
    """

    rank: int = 0
    local_rank: int = 0
    world: int = 1


def ranks(environment: MutableMapping[str, str] | None = None) -> Ranks:
    """Which process this is: torchrun's variables, else Slurm's, else the only one.

    Slurm's are put into the environment under torchrun's names, where torch looks for them.

    Args:
        environment: The variables; None: this process's own.

    Raises:
        ParallelError: A variable is missing or is no number.
    """
    environment = os.environ if environment is None else environment
    if "RANK" not in environment and "SLURM_STEP_NUM_TASKS" in environment:
        environment.update(from_slurm(environment))
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return Ranks()
    rank, world = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    local = _number(environment, "LOCAL_RANK") if "LOCAL_RANK" in environment else rank
    if not 0 <= rank < world:
        raise ParallelError(f"RANK={rank} with WORLD_SIZE={world}; RANK counts from 0")
    return Ranks(rank=rank, local_rank=local, world=world)


def from_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """What torchrun would set, for a step that srun (or submitit through it) started.

    Args:
        environment: The variables of the step.

    Returns:
        Those of them that are not set yet; the address is the step's first machine, and the port
        comes from the job and step, the same in all processes and another in every step.

    Raises:
        ParallelError: A variable of Slurm's is missing.
    """
    found = {name: str(_number(environment, key)) for name, key in SLURM.items()}
    job, step = (int(environment.get(f"SLURM_{key}_ID", "0")) for key in ("JOB", "STEP"))
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    found["MASTER_ADDR"] = first_host(nodes) or "127.0.0.1"
    found["MASTER_PORT"] = str(FIRST_PORT + (job * 31 + step) % PORTS)
    return {name: value for name, value in found.items() if name not in environment}


def first_host(nodes: str) -> str:
    """The first machine of Slurm's list: ``gpu[07-09,12],login1`` gives ``gpu07``.

    Args:
        nodes: The list; empty gives an empty name.
    """
    match = re.match(r"([^\[,]*)(?:\[([^\],-]*)[^\]]*\])?([^,]*)", nodes)
    return "".join(part or "" for part in match.groups()) if match else ""


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except (KeyError, ValueError) as error:
        raise ParallelError(
            f"the environment's {name} is {environment.get(name)!r} and must be a number; start "
            "the processes with torchrun or srun"
        ) from error

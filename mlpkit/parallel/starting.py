"""start: this process among those of its run."""

from __future__ import annotations

from datetime import timedelta

import torch

from mlpkit.configs.run import ParallelConfig
from mlpkit.parallel.contract import OneProcess, Parallel
from mlpkit.parallel.layout import layout_of
from mlpkit.parallel.ranks import ranks


def start(config: ParallelConfig, device: torch.device) -> Parallel:
    """Joins this process to the others of its run.

    Args:
        config: The configuration's ``parallel``.
        device: What the model is trained on; of several GPUs a process takes the one with its
            local rank.

    Returns:
        ``OneProcess`` where neither torchrun nor Slurm started several; otherwise the group, to
        be used as a context: it is closed at the end, and an error is recorded for torchrun.

    Raises:
        ParallelError: The processes are not those of the layout.
    """
    here = ranks()
    layout = layout_of(config, here.world)
    if here.world == 1:
        return OneProcess()
    # torch's sharding takes seconds to import, and a run in one process does without
    from mlpkit.parallel.processes import join

    return join(here, layout, device, timeout=timedelta(seconds=config.timeout))

"""One of the processes of some runs: trains what it is told to, and writes down what it saw.

The jobs are a JSON list in a file. A job has ``overrides`` and ``run_dir``, and perhaps ``load``:
end as soon as the run is where it starts, ``told``: which rank gets a signal at which stage of
which save, and the signal, or ``swept``: it is one of a sweep, below that directory. Each rank
writes a list with what its jobs gave: the ``metrics`` or ``score``, the ``exit_code`` and ``error``
they failed with, what was ``shown``, and with ``load`` a ``hash`` of each tensor.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from torch.distributed.tensor import DTensor

from mlpkit.compose import compose
from mlpkit.parallel import ranks
from mlpkit.sweep.running import Plan, _attempt
from mlpkit.training import StoppedError, launch, train
from mlpkit.training.checkpoints import no_stage
from mlpkit.training.loop import Run
from mlpkit.training.snapshot import snapshot


def digest(tensor: Tensor) -> str:
    """The sha256 of a tensor's bytes, shape and type; of a spread one those of the whole."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    said = f"{tuple(whole.shape)} {whole.dtype}".encode()
    return hashlib.sha256(said + whole.detach().contiguous().numpy().tobytes()).hexdigest()


def hashes(run: Run) -> dict[str, str]:
    """The hash of each tensor that a checkpoint would hold."""
    tensors = snapshot(run.model, run.optimizer)
    # gathered in the same order everywhere
    return {name: digest(tensors[name]) for name in sorted(tensors)}


def signaller(rank: int, name: str, save: int, number: int) -> Callable[[str], None]:
    """Sends a rank a signal at a stage of a save: "shard" or "writing", which all ranks have."""
    if ranks().rank != rank:
        return no_stage
    saves = 0

    def stage(reached: str) -> None:
        nonlocal saves
        saves += reached == "shard"
        if (reached, saves) == (name, save):
            os.kill(os.getpid(), number)
            if number == signal.SIGKILL:
                time.sleep(60)  # another thread than the main one lives on for a moment

    return stage


def work(
    overrides: Sequence[str],
    run_dir: str,
    load: bool = False,
    told: Any = None,
    swept: bool = False,
) -> Any:
    """One job."""
    if swept:  # as one of a sweep, below a directory
        os.chdir(run_dir)
        plan = Plan(folder=None, token="", names=(), alone=False)
        return {"score": _attempt(compose(list(overrides)), overrides, plan, waits=False)}
    found: dict[str, Any] = {}
    shown = io.StringIO()

    def only_load(run: Run, *rest: Any) -> Any:
        found["hash"] = hashes(run)
        raise StoppedError("it is loaded")

    with pytest.MonkeyPatch.context() as patch:
        if load:
            patch.setattr(launch, "record", only_load)
        try:
            result = train(
                compose(list(overrides)),
                run_dir=Path(run_dir),
                console=Console(file=shown, width=300),
                stage=signaller(*told) if told else no_stage,
            )
            found["metrics"] = result["metrics"]
        except Exception as error:
            found["exit_code"] = getattr(error, "exit_code", 1)
            found["error"] = f"{type(error).__name__}: {error}"
    return {**found, "shown": shown.getvalue()}


def main(jobs: Path) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    found = []
    for job in json.loads(jobs.read_text()):
        found.append(work(**job))
        jobs.with_name(f"{ranks().rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""One of the processes of some runs: trains what it is told to, and writes down what it saw.

The jobs are a JSON list in a file. A job has ``overrides`` and ``run_dir``, and perhaps ``load``:
end as soon as the run is where it starts, or ``kill``: a rank that dies, the stage of a save at
which it does, and in which save. Each rank writes a list with what its jobs gave: the ``metrics``,
the ``exit_code`` and ``error`` they failed with, what was ``shown``, and with ``load`` a ``hash``
of each tensor.
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
from mlpkit.training import launch, train
from mlpkit.training.checkpoints import no_stage
from mlpkit.training.loop import Run
from mlpkit.training.snapshot import snapshot


class LoadedError(Exception):
    """A run is where it starts."""

    def __init__(self, hashes: dict[str, str]) -> None:
        super().__init__("loaded")
        self.hashes = hashes


def digest(tensor: Tensor) -> str:
    """The sha256 of a tensor's bytes, shape and type; of a spread one those of the whole."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    said = f"{tuple(whole.shape)} {whole.dtype}".encode()
    return hashlib.sha256(said + whole.detach().contiguous().numpy().tobytes()).hexdigest()


def loaded(run: Run, *rest: Any) -> Any:
    tensors = snapshot(run.model, run.optimizer)
    # gathered in the same order everywhere
    raise LoadedError({name: digest(tensors[name]) for name in sorted(tensors)})


def killer(rank: int, name: str, save: int) -> Callable[[str], None]:
    """Ends a rank at a stage of a save."""
    if ranks().rank != rank:
        return no_stage
    seen = {name: 0}

    def stage(reached: str) -> None:
        seen[reached] = seen.get(reached, 0) + (reached != "writing" or seen.get("shard") == save)
        if reached == name and seen[name] >= (1 if name == "writing" else save):
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # another thread than the main one lives on for a moment

    return stage


def work(overrides: Sequence[str], run_dir: str, load: bool = False, kill: Any = None) -> Any:
    shown = io.StringIO()
    console = Console(file=shown, width=300)
    stage = killer(*kill) if kill else no_stage
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        if load:
            patch.setattr(launch, "record", loaded)
        try:
            config = compose(list(overrides))
            result = train(config, run_dir=Path(run_dir), console=console, stage=stage)
            found["metrics"] = result["metrics"]
        except LoadedError as error:
            found["hash"] = error.hashes
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

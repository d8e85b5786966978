"""Tensors into a folder, by torch's distributed checkpoint."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

Stage = Callable[[str], None]
# What every rank gets when one fails; a BaseException, with what each rank says in ``failures``.
WriteError = CheckpointException


def write_tensors(
    folder: Path, tensors: dict[str, Tensor], *, stage: Stage, group: Any = None
) -> None:
    """Writes tensors (of every rank: each its own shards) into a folder.

    Args:
        folder: An empty folder.
        tensors: Name to tensor or DTensor.
        stage: Called at "shard" when a file of tensors is opened, at "writing" after each piece,
            and at "metadata" before the list of tensors is written.
        group: The process group whose ranks write together; None: the default, if there is one.
    """
    writer = _Writer(folder, stage)
    if dist.is_available() and dist.is_initialized():
        save(tensors, storage_writer=writer, process_group=group)
        return
    # ``save`` does the same for a single process, and warns that it is one
    planner = DefaultSavePlanner()
    planner.set_up_planner(tensors, is_coordinator=True)
    writer.set_up_storage_writer(True)
    local = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([local])
    (plan,) = writer.prepare_global_plan(plans)
    results = writer.write_data(planner.finish_plan(plan), planner).wait()
    writer.finish(metadata, [results])


class _Writer(FileSystemWriter):
    """torch's writer on files that report each step."""

    def __init__(self, folder: Path, stage: Stage) -> None:
        super().__init__(folder, overwrite=False)
        self.fs, self._stage = _Files(stage), stage

    def storage_meta(self) -> None:
        """Nothing: torch's own would put this machine's path into the file."""

    def finish(self, metadata: Any, results: Any) -> None:
        """Writes the list of tensors."""
        self._stage("metadata")
        super().finish(metadata, results)


class _Files(FileSystem):
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Generator[io.IOBase, None, None]:
        """Opens a file that must not be there yet."""
        assert mode == "wb"
        self._stage("shard")
        with _Watched(path, self._stage) as stream:
            yield stream


class _Watched(io.FileIO):
    """A new file that reports what was written to it."""

    def __init__(self, path: Path, stage: Stage) -> None:
        super().__init__(path, "x")
        self._stage = stage

    def write(self, data: Any) -> int:
        view, done = memoryview(data).cast("B"), 0
        while done < len(view):  # the system may take less than it was given
            done += super().write(view[done:])
        self._stage("writing")
        return done

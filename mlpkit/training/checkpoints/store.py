"""CheckpointStore: the checkpoints of one run, each whole or not there at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch import distributed as dist

from mlpkit.compose import first_line
from mlpkit.training.checkpoints.manifest import (
    STATE,
    STEP,
    CheckpointError,
    read_json,
    sync_folder,
    verify,
    write_json,
    write_manifest,
)
from mlpkit.training.measures import free_bytes

if TYPE_CHECKING:
    from mlpkit.training.checkpoints.writing import Stage

UNFINISHED = ".tmp-"  # begins the name of whatever is not, or no longer, a checkpoint


class Checkpoint(NamedTuple):
    """A verified checkpoint.

    Args:
        path: Its folder.
        step: The optimizer steps behind it.
        state: What it says beside the tensors.
    """

    path: Path
    step: int
    state: dict[str, Any]


def no_stage(name: str) -> None:
    """Does nothing at a stage of writing."""


class CheckpointStore:
    """The checkpoints of one run.

    A checkpoint is written as ``.tmp-step_N``, gets its manifest, is brought to the disk and
    renamed once; that rename is the only moment at which anything changes for a reader.

    Args:
        folder: Where; made when it is needed.
        keep_last: How many of the newest are kept, at least 2; the best is kept beside them.
        background: Whether writing goes on beside training; never two at once.
        group: With several processes, the group that they write together in; None: the default.
            In the background it must be one that training does not use.
        stage: Called with the name of each stage of a save: "begin", "shard", "writing" (often),
            "metadata", "state", "manifest", "rename", "committed", "pruned".
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_last: int = 2,
        background: bool = False,
        group: Any = None,
        stage: Stage = no_stage,
    ) -> None:
        self.folder, self.keep_last, self.group, self.stage = folder, keep_last, group, stage
        self._pool = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._pending: Future[None] | None = None

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Writes a checkpoint; in the background what is written is the state of now.

        Args:
            step: The optimizer steps behind it.
            tensors: Name to tensor or DTensor; every process gives its own part.
            state: Plain values; ``val_bpb`` in it makes it a candidate for the best.

        Raises:
            CheckpointError: This one cannot be written, or (in the background) the last could not.
        """
        self.wait()
        record = {"step": step, **state}
        if self._pool is None:
            self._write(step, dict(tensors), record)
            return
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._pending = self._pool.submit(self._write, step, copies, record)

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.wait()
        except CheckpointError:
            if error is None:  # otherwise it would hide the first error
                raise
        finally:
            if self._pool is not None:
                self._pool.shutdown()

    def wait(self) -> None:
        """Waits for what is written in the background.

        Raises:
            CheckpointError: It could not be written.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def steps(self) -> list[int]:
        """The steps that there are checkpoints of, the newest first; they are not verified."""
        if not self.folder.is_dir():
            return []
        found = (STEP.fullmatch(child.name) for child in self.folder.iterdir())
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, and what was wrong with the ones after it."""
        wrong: list[str] = []
        for step in self.steps():
            try:
                return open_checkpoint(self.folder / f"step_{step}"), wrong
            except CheckpointError as error:
                wrong.append(str(error))
        return None, wrong

    def sweep(self) -> list[str]:
        """Removes what a killed process left unfinished; returns the names."""
        if not self.folder.is_dir():
            return []
        left = sorted(c for c in self.folder.iterdir() if c.name.startswith(UNFINISHED))
        for child in left:
            _remove(child)
        return [child.name for child in left]

    def _write(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        # torch.distributed.checkpoint takes a second to import: a run without it does without
        from mlpkit.training.checkpoints.writing import WriteError, write_tensors

        temporary = self.folder / f"{UNFINISHED}step_{step}"
        try:
            self._on_main(lambda: self._begin(temporary))
            write_tensors(temporary, tensors, stage=self.stage, group=self.group)
            self._on_main(lambda: self._seal(temporary, state))
            self._on_main(lambda: self._commit(temporary, self.folder / f"step_{step}"))
        except (Exception, WriteError) as error:
            needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            message = self._explain(error, step, needed)  # before the space is free again
            if self._is_main():
                shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointError(message) from error

    def _on_main(self, function: Callable[[], None]) -> None:
        """Runs a function in one process; the others wait, and fail where it fails."""
        failure: Exception | None = None
        if self._is_main():
            try:
                function()
            except Exception as error:
                failure = error
        if _distributed():
            said = [failure and first_line(failure)]
            dist.broadcast_object_list(said, group=self.group, group_src=0)
            if said[0] and failure is None:
                raise CheckpointError(f"rank 0: {said[0]}")
        if failure is not None:
            raise failure

    def _begin(self, folder: Path) -> None:
        self.stage("begin")
        if folder.exists():
            _remove(folder)
        folder.mkdir(parents=True)

    def _seal(self, folder: Path, state: dict[str, Any]) -> None:
        self.stage("state")
        write_json(folder / STATE, state)
        self.stage("manifest")
        write_manifest(folder)

    def _commit(self, temporary: Path, final: Path) -> None:
        if final.exists():  # a damaged one that was skipped: nothing else takes a step twice
            _discard(final)
        self.stage("rename")
        os.rename(temporary, final)
        sync_folder(self.folder)
        self.stage("committed")
        self._prune()
        self.stage("pruned")

    def _prune(self) -> None:
        steps = self.steps()
        scores = {step: self._score(step) for step in steps}
        known = {step: score for step, score in scores.items() if score is not None}
        keep = {*steps[: self.keep_last], *([min(known, key=lambda s: known[s])] if known else [])}
        for step in steps:
            if step not in keep:
                _discard(self.folder / f"step_{step}")

    def _score(self, step: int) -> float | None:
        try:
            score = read_json(self.folder / f"step_{step}", STATE).get("val_bpb")
        except CheckpointError:
            return None
        return float(score) if isinstance(score, int | float) else None

    def _explain(self, error: BaseException, step: int, needed: int) -> str:
        kept = next((s for s in self.steps() if s != step), None)
        before = (
            "there is none before it"
            if kept is None
            else f"the last good checkpoint is step_{kept}, and resume=auto goes on from it"
        )
        said = f"the checkpoint of step {step} could not be written to {self.folder}"
        error = _root(error)
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            free = free_bytes(self.folder)
            why = f"no space is left: it needs {needed:,} bytes, {free:,} are free"
        else:
            why = f"{type(error).__name__}: {first_line(error)}"
        return f"{said}: {why}; {before}"

    def _is_main(self) -> bool:
        return not _distributed() or dist.get_rank(self.group) == 0


def open_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint whose every byte is as it was written.

    Raises:
        CheckpointError: It is damaged, unfinished, or none.
    """
    verify(path)
    state, match = read_json(path, STATE), STEP.fullmatch(path.name)
    if match is None or state.get("step") != int(match[1]):
        raise CheckpointError(f"{path} says that it is of step {state.get('step')}; rename it back")
    return Checkpoint(path, int(match[1]), state)


def _root(error: BaseException) -> BaseException:
    """What is behind an error: the first rank's, and there what the system said."""
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    for _ in range(10):
        behind = error.__cause__ or error.__context__
        if isinstance(error, OSError) or behind is None:
            break
        error = behind
    return error


def _discard(folder: Path) -> None:
    """Removes a checkpoint: it is none from the first moment on, and never half of one."""
    gone = folder.with_name(f"{UNFINISHED}old-{folder.name}")
    if gone.exists():
        _remove(gone)
    os.rename(folder, gone)
    _remove(gone)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()

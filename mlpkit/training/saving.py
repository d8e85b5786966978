"""What a run puts into its checkpoints, and takes out of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlpkit.compose import first_line
from mlpkit.training.checkpoints import CheckpointError, CheckpointStore
from mlpkit.training.checkpoints.manifest import STATE
from mlpkit.training.preamble import fingerprints
from mlpkit.training.progress import Stopwatch
from mlpkit.training.resume import Start
from mlpkit.training.run_directory import RunDirectory
from mlpkit.training.snapshot import restore, snapshot

if TYPE_CHECKING:
    from mlpkit.training.loop import Run


def open_store(run: Run, directory: RunDirectory) -> CheckpointStore:
    """A run's checkpoints, without what a killed process left unfinished."""
    store = CheckpointStore(
        directory.checkpoints,
        keep_last=run.options.keep_last,
        background=run.options.checkpoint_async,
        group=run.parallel.own_group(),
        stage=run.stage,
    )
    for name in store.sweep() if run.parallel.is_main else ():
        run.say(f"removed    {directory.checkpoints / name}, which was not finished")
    return store


def save_run(run: Run, directory: RunDirectory, store: CheckpointStore) -> None:
    """Writes a checkpoint of a run, if it wants any.

    What is random in a step, and which text it sees, are functions of (seed, step): the step is
    all that there is to say of them.

    Raises:
        CheckpointError: It cannot be written.
    """
    if not run.options.checkpoint_every:
        return
    state = {
        "val_bpb": run.val_bpb,
        "unscored": run.unscored,
        "meter": run.meter.state(),
        "seconds": run.watch.seconds,
        "data": fingerprints(run.dataset),
        "mixture": run.mixture.state() if run.mixture else None,
    }
    if run.parallel.is_main:
        directory.sync_metrics()
    store.save(run.step, snapshot(run.model, run.optimizer), state)


def restore_run(run: Run, start: Start) -> None:
    """Puts a run where it starts: after it, every number is as if it had never been interrupted.

    Raises:
        CheckpointError: The checkpoint is of another model.
    """
    run.start = start
    for note in start.notes:
        run.say(f"resume     {note}")
    if start.checkpoint is None:
        return
    restore(start.checkpoint.path, run.model, run.optimizer)
    run.step = start.checkpoint.step
    try:
        restore_state(run, start.checkpoint.state)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"checkpoint {start.checkpoint.path} has a {STATE} that no run wrote: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error


def restore_state(run: Run, state: Mapping[str, Any]) -> None:
    """Takes up the plain values of a checkpoint; a manifest does not say who wrote them.

    Args:
        run: The run, with its tensors restored.
        state: What ``save_run`` wrote.

    Raises:
        LookupError, TypeError, ValueError, AttributeError, RuntimeError: It is something else.
    """
    meter = {name: state["meter"][name] for name in run.meter.state()}
    for name, value in {**meter, "seconds": state["seconds"]}.items():
        if not isinstance(value, int | float):
            raise TypeError(f"{name} is {value!r}, and no number")
    run.unscored = bool(state["unscored"])
    run.meter.restore(meter)
    run.watch = Stopwatch(state["seconds"])
    if run.mixture:
        run.mixture.restore(state["mixture"])


def farewell(run: Run, directory: RunDirectory, store: CheckpointStore) -> str:
    """What a stopped run says."""
    store.wait()
    steps = store.steps()
    kept = f"step_{steps[0]} is in {directory.checkpoints}" if steps else "there is no checkpoint"
    return (
        f"stopped by {run.signals.heard} after step {run.step} of {run.options.max_steps}, "
        f"{kept}; the same command with run_dir={directory.path} resume=auto goes on"
    )

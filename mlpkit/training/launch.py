"""From a configuration to a run and its record."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from rich.console import Console

from mlpkit.build import build_data, build_model
from mlpkit.compose import check
from mlpkit.data import Dataset
from mlpkit.data.batches import tokens_per_epoch
from mlpkit.model import Decoder
from mlpkit.parallel import FollowingError, check_batch, layout_of, ranks, start
from mlpkit.training.checkpoints import CheckpointStore, no_stage
from mlpkit.training.loop import NonFiniteLossError, Run
from mlpkit.training.measures import failure, require_space
from mlpkit.training.memory import require_memory
from mlpkit.training.preamble import fingerprints, provenance
from mlpkit.training.precision import choose_precision
from mlpkit.training.progress import clock
from mlpkit.training.resume import Start, find_start, goes_on, open_directory
from mlpkit.training.run_directory import CHECKPOINTS, RunDirectory, hide_environment
from mlpkit.training.saving import restore_run
from mlpkit.training.signals import StoppedError
from mlpkit.training.snapshot import bytes_needed
from mlpkit.training.starting import load_initial

if TYPE_CHECKING:
    from mlpkit.training.checkpoints.writing import Stage


def train(
    config: DictConfig,
    *,
    run_dir: Path | None = None,
    overrides: Sequence[str] = (),
    console: Console | None = None,
    match: Mapping[str, Any] | None = None,
    stage: Stage = no_stage,
) -> dict[str, Any]:
    """Trains the model of a configuration.

    Everything that can be wrong in the configuration or the data is found before the run
    directory is made. A first SIGTERM, SIGINT or SIGUSR1 ends the run after its step, with a
    checkpoint; a second one at once. Under torchrun or srun every process calls this, and the
    first one shows and writes everything.

    Args:
        config: A composed configuration.
        run_dir: Where to write; None: the configuration's, or outputs/<date>/<time>.
        overrides: What was overridden, for the record.
        console: Where to show progress; None: standard output.
        match: How the FFN's width was solved for a budget, for the record.
        stage: Called at each stage of writing a checkpoint, see ``CheckpointStore``.

    Returns:
        The result record, as in result.json; of a run that was finished before, that one.

    Raises:
        ValueError: Something in the configuration, the data or a checkpoint is wrong.
        NonFiniteLossError: The loss or a gradient became NaN or infinite.
        StoppedError: A signal came.
        FollowingError: Another process failed, and says why.
    """
    check(config)
    options, here = config.training, ranks()
    require_even_batch(config, here.world)
    description = require_memory(config)
    shown = (console or Console()) if here.rank == 0 else Console(quiet=True, force_terminal=False)
    precision = choose_precision(options.device, options.precision)
    dataset, model, initial = prepare(config, run_dir)
    with start(config.parallel, precision.device) as parallel:
        parts = (config, model.to(precision.device), dataset, precision, description, shown)
        run = Run(*parts, parallel=parallel, stage=stage)
        try:
            return attempt(run, run_dir, overrides, match, initial)
        except (StoppedError, NonFiniteLossError) as error:
            ended = error  # in all processes after the same step, so that the group can be closed
    raise ended if parallel.is_main else FollowingError(ended.exit_code)


def require_even_batch(config: DictConfig, processes: int) -> None:
    """Refuses a batch that does not divide among the processes.

    Args:
        config: A composed configuration.
        processes: How many were started.

    Raises:
        ParallelError: It does not, or they are not those of the layout.
    """
    check_batch(
        layout_of(config.parallel, processes),
        batch_size=config.training.batch_size,
        gradient_accumulation_steps=config.training.gradient_accumulation_steps,
    )


def prepare(
    config: DictConfig, run_dir: Path | None
) -> tuple[Dataset, Decoder, dict[str, str] | None]:
    """Makes the text and the model, with the weights of ``init_from`` unless a checkpoint comes.

    Args:
        config: A composed configuration.
        run_dir: Where the run will write; None: as the configuration says.

    Returns:
        The tokens, the model, and where its weights came from; None: it has its initial values.

    Raises:
        DataError: There is not enough text.
        InitialWeightsError: The weights cannot be read, or are of another model.
        DiskSpaceError: The disk has no room for what the run will write.
    """
    dataset = build_data(config)
    tokens_per_epoch(dataset, sequence_length=config.training.sequence_length)  # is there one?
    model = build_model(config, tokenizer=dataset.tokenizer)
    place = run_dir or Path(config.run_dir or "outputs")
    present = len(CheckpointStore(place / CHECKPOINTS).steps())
    ready = goes_on(config, present=present)
    initial = None if ready else load_initial(config, model, dataset.tokenizer)
    require_space(place, bytes_needed(model, config.training, present=present))
    return dataset, model, initial


def attempt(
    run: Run,
    run_dir: Path | None,
    overrides: Sequence[str],
    match: Mapping[str, Any] | None,
    initial: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Takes the directory, finds where to start, and runs."""
    config, parallel = run.config, run.parallel
    opened = parallel.on_main(lambda: open_directory(config, run_dir))
    directory = opened or RunDirectory(Path())
    try:
        directory.path = Path(parallel.from_main(str(directory.path)))
        data = fingerprints(run.dataset)
        found = parallel.on_main(lambda: find_start(config, directory, data).plain())
        begin = Start.of(parallel.from_main(found or {}))
        if begin.finished:
            run.say(f"finished before, after {begin.before['step']} steps: {directory.path}")
            return dict(begin.before)
        restore_run(run, begin)
        return record(run, directory, overrides, match, initial)
    finally:
        directory.close()


def record(
    run: Run,
    directory: RunDirectory,
    overrides: Sequence[str],
    match: Mapping[str, Any] | None = None,
    initial: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Runs, and keeps result.json true whatever happens."""
    layout = run.parallel.layout
    result = {
        "status": "running",
        "pid": os.getpid(),
        "overrides": list(overrides),
        **provenance(run.config, run.dataset, run.precision, run.description, run.model),
        "parallel": {"processes": layout.world, **asdict(layout)},
        "match": match,
        "init_from": initial,
        **run.start.history(),
    }
    run.parallel.on_main(lambda: _write_beginning(run, directory, result))
    with run.signals:
        try:
            result["metrics"] = run.run(directory)
            result["status"] = "ok"
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt | StoppedError)
            result.update(status="stopped" if stopped else "failed", **failure(error))
            raise
        finally:
            result.update(step=run.step, seconds=round(run.watch.seconds, 3))
            if run.parallel.is_main:
                _write_end(run, directory, result)
        run.say(f"done in {clock(run.watch.seconds)}: {directory.path}")
        run.signals.listen(run.parallel)
    if run.signals.heard:  # too late to stop this run, and in time for the next of a sweep
        raise StoppedError(f"stopped by {run.signals.heard}, when the run was finished")
    return result


def _write_beginning(run: Run, directory: RunDirectory, result: Mapping[str, Any]) -> None:
    # the result first: with it, whatever fails next can be run again in this directory
    directory.write_result(hide_environment(result, run.config))
    directory.write_config(run.config)
    directory.write_tokenizer(run.dataset.tokenizer)
    directory.cut_metrics(step=run.step, scored=not run.unscored, source=run.start.source)


def _write_end(run: Run, directory: RunDirectory, result: Mapping[str, Any]) -> None:
    try:
        directory.write_result(hide_environment(result, run.config))
    except OSError as error:
        if result["status"] == "ok":
            raise
        # a full disk: what has ended the run is the message, and the record reads as lost
        run.say(f"result.json could not be written: {error}")

"""``mlpkit train``: Hydra's command line around the training loop."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from mlpkit.compose import ConfigError, compose, conf_dir, explain, install, quote_null
from mlpkit.plugins import plugin_versions
from mlpkit.sweep import SWEEP_ROOT, Job, expand, job_id

SWEEP_FLAGS = {"-m", "--multirun", "hydra.mode=MULTIRUN"}
# flags with which Hydra shows something and trains nothing
SHOWING = ("-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "-i", "--info", "-sc")
SHOWING_ONE = ("-c", "--cfg", "-i", "--info")  # Hydra refuses these in a sweep
# flags whose value is the next argument
VALUED = {
    *("-c", "--cfg", "--package", "--experimental-rerun"),
    *("-cp", "--config-path", "-cn", "--config-name", "-cd", "--config-dir"),
}


def run(arguments: list[str]) -> int:
    """Trains, or shows what Hydra's own flags ask for."""
    install()
    if "-p" in arguments:  # to Hydra it is --package, and the plugin would be missed in silence
        raise ConfigError("-p stands before the verb: mlpkit -p FILE_OR_MODULE train …")
    flags, overrides = split(arguments)
    arguments = [*overrides, *flags]  # this way round: -i takes a value or none
    jobs: list[Job] = []
    sweeps = bool(SWEEP_FLAGS & set(arguments))
    if sweeps and any(a.startswith(SHOWING_ONE) for a in flags):
        raise ConfigError(f"{' '.join(flags)}: one job at a time is shown; leave out -m")
    own_sweeper = any(a.startswith("hydra/sweeper=") for a in overrides)
    if not any(a.startswith(SHOWING) for a in arguments) and not own_sweeper:
        jobs = checked_jobs(overrides, sweeps=sweeps)
    failure: list[BaseException] = []

    def run_one(config: DictConfig) -> float | None:
        try:
            return task(config)
        except Exception as error:  # Hydra would print a message of its own beside ours
            if HydraConfig.get().mode != RunMode.RUN:
                raise
            failure.append(error)
            return None

    code = _hand_to_hydra(task if sweeps else run_one, arguments, overrides)
    if failure:
        raise failure[0]
    return code or (summarise(jobs) if sweeps and jobs else 0)


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Hydra's flags with their values, and the overrides, wherever they stand among each other.

    Hydra's own parser refuses ``a=1 -m b=2``: argparse takes the positional arguments of one place.
    """
    flags: list[str] = []
    overrides: list[str] = []
    for previous, argument in zip(["", *arguments], arguments, strict=False):
        is_value = previous in VALUED or (previous in ("-i", "--info") and "=" not in argument)
        (flags if argument.startswith("-") or is_value else overrides).append(argument)
    return flags, overrides


def _hand_to_hydra(function: Any, arguments: list[str], overrides: list[str]) -> int:
    sys.argv = ["mlpkit train", *(quote_null(a) for a in arguments)]
    full, os.environ["HYDRA_FULL_ERROR"] = os.environ.get("HYDRA_FULL_ERROR"), "1"
    try:  # with that variable Hydra raises, and the caller prints one message
        hydra.main(version_base="1.3", config_path=conf_dir(), config_name="config")(function)()
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, overrides)) from error
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 2 if error.code else 0
    finally:
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full
    return 0


def checked_jobs(overrides: list[str], *, sweeps: bool) -> list[Job]:
    """Composes every job before the first one starts, so that a typing error costs nothing.

    Raises:
        ConfigError: A job's configuration is wrong; in a sweep it says which.
    """
    jobs = expand(overrides) if sweeps else [overrides]
    found = []
    for number, job in enumerate(jobs):
        where = f"job {number} ({' '.join(job)}): " if sweeps else ""
        try:
            config = compose(job)
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from error
        if sweeps and config.run_dir:
            raise ConfigError(
                f"{where}run_dir is {config.run_dir!r}, but the jobs of a sweep have directories "
                f"of their own below {SWEEP_ROOT}; leave it out"
            )
        found.append(Job(tuple(job), job_id(config, plugin_versions())))
    return found


def task(config: DictConfig) -> float | None:
    """One run, or one job of a sweep; returns its validation bits per byte.

    A job of Hydra's own sweeper that fails is reported at once and returns None, so that the
    others run; an optimizer's sweeper gets the error.
    """
    # torch takes seconds to import: only what trains pays for it
    from rich.console import Console

    from mlpkit.training import train

    console, state = Console(), HydraConfig.get()
    overrides = [o.replace("'null'", "null") for o in state.overrides.task]
    if state.mode == RunMode.RUN:
        return float(train(config, overrides=overrides, console=console)["metrics"]["val_bpb"])
    path = SWEEP_ROOT / job_id(config, plugin_versions())
    console.rule(f"job {state.job.num}: {' '.join(overrides)}", align="left", style="dim")
    if (done := finished_metrics(path)) is not None:
        console.print(f"done before, val_bpb {done['val_bpb']:.4f}: {path}")
        return float(done["val_bpb"])
    try:
        result = train(config, run_dir=path, overrides=overrides, console=console)
    except (Exception, SystemExit) as error:
        if "BasicSweeper" not in state.sweeper._target_:
            raise
        print(f"mlpkit: job {state.job.num} failed: {error}", file=sys.stderr, flush=True)
        return None
    return float(result["metrics"]["val_bpb"])


def finished_metrics(path: Path) -> dict[str, Any] | None:
    """The metrics of a finished run in a directory; None when there is none."""
    from mlpkit.training.run_directory import RunDirectoryError, read_result

    try:
        result = read_result(path)
    except RunDirectoryError:
        return None
    return dict(result["metrics"]) if result["status"] == "ok" else None


def summarise(jobs: list[Job]) -> int:
    """Prints what became of each job; 1 if any did not finish."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("job", "overrides", "val_bpb", "run"):
        table.add_column(column, overflow="fold", justify="left")
    found = [finished_metrics(SWEEP_ROOT / job.id) for job in jobs]
    for number, (job, metrics) in enumerate(zip(jobs, found, strict=True)):
        shown = "failed" if metrics is None else f"{metrics['val_bpb']:.4f}"
        overrides = " ".join(job.overrides).replace("'", "")
        table.add_row(str(number), overrides, shown, str(SWEEP_ROOT / job.id))
    console = Console(markup=False, highlight=False)
    console.print(table)
    finished = [metrics for metrics in found if metrics is not None]
    if note := budget_note([metrics["parameters"] for metrics in finished]):
        console.print(note)
    console.print(f"{len(finished)} ok, {len(jobs) - len(finished)} failed")
    return 0 if len(finished) == len(jobs) else 1


def budget_note(parameters: list[int]) -> str:
    """A warning when models of a sweep differ in size by more than 2 %; empty otherwise."""
    if not parameters or max(parameters) <= 1.02 * min(parameters):
        return ""
    return (
        f"note: the models have {min(parameters):,} to {max(parameters):,} parameters; a better "
        "score may come from size alone"
    )

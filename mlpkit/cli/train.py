"""``mlpkit train``: Hydra's command line around one run, or around a sweep of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from mlpkit.compose import ConfigError, conf_dir, explain, install, quote_null
from mlpkit.sweep import checked_jobs, settled

SWEEP_FLAGS = {"-m", "--multirun", "hydra.mode=MULTIRUN"}
# flags with which Hydra shows something and trains nothing
SHOWING_ONE = {"-c", "--cfg", "-i", "--info"}  # Hydra refuses these in a sweep
SHOWING = {*SHOWING_ONE, "-h", "--help", "--hydra-help", "--version", "-sc", "--shell-completion"}
CONFIG_FLAGS = {"-cp", "--config-path", "-cn", "--config-name", "-cd", "--config-dir"}
# flags whose value is the next argument
VALUED = {"-c", "--cfg", "--package", "--experimental-rerun", *CONFIG_FLAGS}
SETTLED_LATER = (
    "mlpkit: this is what was composed; the model of init_from and the widths of match come after "
    "it, and stand in the run's config.yaml"
)


def run(arguments: list[str]) -> int:
    """Trains, or shows what Hydra's own flags or ``dry_run`` ask for."""
    install()
    install_launchers()
    if "-p" in arguments:  # to Hydra it is --package, and the plugin would be missed in silence
        raise ConfigError("-p stands before the verb: mlpkit -p FILE_OR_MODULE train …")
    flags, overrides = split(arguments)
    sweeps = bool(SWEEP_FLAGS & {*flags, *overrides})
    shown = {flag_name(flag) for flag in flags}
    if sweeps and shown & SHOWING_ONE:
        raise ConfigError(f"{' '.join(flags)}: one job at a time is shown; leave out -m")
    if shown & SHOWING:
        if shown & SHOWING_ONE:  # what is shown is also right
            (job,) = checked_jobs(overrides, sweeps=False)
            if job.config.init_from or job.config.match != "none":
                print(SETTLED_LATER, file=sys.stderr)
        return to_hydra(run_one, flags, overrides)
    return run_sweep(flags, overrides) if sweeps else run_single(flags, overrides)


def run_single(flags: list[str], overrides: list[str]) -> int:
    """One run, or what it would be."""
    jobs = checked_jobs(overrides, sweeps=False)
    if jobs[0].config.dry_run:
        return dry_run(jobs)
    failure: list[BaseException] = []

    def caught(config: DictConfig) -> None:
        try:
            run_one(config)
        except Exception as error:  # Hydra would print a message of its own beside ours
            failure.append(error)

    code = to_hydra(caught, flags, overrides)
    if failure:
        raise failure[0]
    return code


def run_one(config: DictConfig) -> None:
    """Trains once, in its own directory."""
    # torch takes seconds to import: only what trains pays for it
    from mlpkit.sweep.running import overrides_of
    from mlpkit.training import train

    overrides = overrides_of(HydraConfig.get())
    config, match = settled(config, overrides)
    train(config, overrides=overrides, match=match)


def run_sweep(flags: list[str], overrides: list[str]) -> int:
    """A sweep, by Hydra's own sweeper or by an optimizer's."""
    from mlpkit.sweep.conducting import conduct
    from mlpkit.sweep.running import Plan, SweepStopped, run_job

    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError(
            "torchrun is for one run, and -m starts its own: leave out -m, or ask for tasks with "
            "hydra/launcher=submitit_slurm hydra.launcher.tasks_per_node=8"
        )
    chosen = dict(o.split("=", 1) for o in overrides if o.startswith("hydra/"))
    alone = chosen.get("hydra/launcher", "basic") == "basic"
    if chosen.get("hydra/sweeper", "basic") != "basic":
        if any(o.startswith("dry_run=") and o != "dry_run=false" for o in overrides):
            raise ConfigError("dry_run cannot list what an optimizer has yet to choose; drop it")
        plan = Plan(folder=None, token="", names=(), alone=alone)
        try:
            return to_hydra(partial(run_job, plan=plan), flags, overrides)
        except SweepStopped as stopped:
            return stopped.exit_code
    jobs = checked_jobs(overrides, sweeps=True)
    if jobs[0].config.dry_run:
        return dry_run(jobs)

    def launch(task: Callable[[Any], Any], further: Sequence[str]) -> None:
        to_hydra(task, flags, [*overrides, *further])

    return conduct(jobs, [*flags, *overrides], launch, alone=alone)


def install_launchers() -> None:
    """Makes the launchers with a process for each job known, where their extra is installed."""
    with suppress(ImportError):
        from mlpkit.sweep.launchers import register

        register()


def dry_run(jobs: Sequence[Any]) -> int:
    """Shows what would run."""
    from mlpkit.sweep.planning import show_plan

    show_plan(jobs)
    return 0


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


def flag_name(flag: str) -> str:
    """A flag without its value: ``--cfg`` of ``--cfg=job``, ``-c`` of ``-cjob``."""
    name = flag.partition("=")[0]
    short = name[:2] in ("-c", "-i") and name not in CONFIG_FLAGS
    return name[:2] if short else name


def to_hydra(function: Callable[[Any], Any], flags: list[str], overrides: list[str]) -> int:
    """Hands over to Hydra's command line; returns an exit code.

    Raises:
        ConfigError: Hydra or OmegaConf refuses something.
    """
    # this way round: -i takes a value or none
    sys.argv = ["mlpkit train", *(quote_null(o) for o in overrides), *flags]
    full, os.environ["HYDRA_FULL_ERROR"] = os.environ.get("HYDRA_FULL_ERROR"), "1"
    try:  # with that variable Hydra raises, and the caller prints one message
        main = hydra.main(version_base="1.3", config_path=conf_dir(), config_name="config")
        main(function)()
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

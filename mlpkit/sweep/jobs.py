"""The jobs of a multirun: their list, their check, and an identity by what is run alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from mlpkit import __version__
from mlpkit.compose import ConfigError, compose, first_line, install, own_hydra, quote_null
from mlpkit.layers import MAIN, slots_by_layer
from mlpkit.plugins import plugin_versions
from mlpkit.sweep.matching import match_budget
from mlpkit.sweep.source import from_source, initial_weights

SWEEP_ROOT = Path("multirun")
# What a run does not depend on: where it lies, and how a sweep goes about it.
HOW = ("run_dir", "dry_run", "keep_going", "rerun", "resume")
PASSING = (*HOW, "experiment")
ASIDE = ("hydra/", "hydra.", *(f"{key}=" for key in HOW))


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job of a sweep.

    Args:
        overrides: What it overrides.
        id: Its directory's name below ``SWEEP_ROOT``.
        config: Its configuration, with widths solved.
        match: How the widths came about; None without a budget.
    """

    overrides: tuple[str, ...]
    id: str
    config: DictConfig
    match: Mapping[str, Any] | None

    @property
    def path(self) -> Path:
        """Its directory."""
        return SWEEP_ROOT / self.id


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of a sweep, in the order in which they run.

    Args:
        overrides: As on the command line, e.g. ``["ffn=naive,swiglu", "seed=range(3)"]``.

    Raises:
        ConfigError: An override cannot be read.
    """
    axes, given = parsed(overrides)
    (jobs,) = BasicSweeper.split_arguments([*axes, *given], None)  # of two the later one holds
    return [list(job) for job in jobs]


def parsed(overrides: Sequence[str]) -> tuple[list[Override], list[Override]]:
    """The axes that a configuration has by itself, as an experiment does, and the overrides.

    Args:
        overrides: As on the command line.

    Raises:
        ConfigError: An override cannot be read.
    """
    install()
    try:
        with own_hydra():
            loader = GlobalHydra.instance().config_loader()  # glob() needs to list groups
            parser = OverridesParser.create(config_loader=loader)
            given = parser.parse_overrides([quote_null(o) for o in overrides])
            return parser.parse_overrides(_own_axes(given)), given
    except HydraException as error:
        raise ConfigError(f"{' '.join(overrides)}: {first_line(error)}") from error


def _own_axes(given: Sequence[Override]) -> list[str]:
    if not any(o.key_or_group == "experiment" for o in given):  # nothing else brings any
        return []
    single = [str(o.input_line) for o in given if not o.is_sweep_override()]
    try:
        hydra = hydra_compose("config", overrides=single, return_hydra_config=True).hydra
    except HydraException:  # what is wrong is told when its job is composed
        return []
    return [f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()]


def require_values(overrides: Sequence[str]) -> None:
    """Refuses a single run of an experiment that leaves an axis open.

    Raises:
        ConfigError: It does.
    """
    if not any(o.startswith("experiment=") for o in overrides):
        return
    axes, given = parsed(overrides)
    chosen = {override.get_key_element() for override in given}
    left = [o.get_key_element() for o in axes if o.get_key_element() not in chosen]
    if left:
        raise ConfigError(
            f"{' '.join(overrides)} is {len(expand(overrides))} jobs; add -m, or give a value to "
            f"{', '.join(left)}"
        )


def checked_jobs(overrides: Sequence[str], *, sweeps: bool) -> list[Job]:
    """Composes every job before the first one starts, so that a typing error costs nothing.

    Args:
        overrides: As on the command line.
        sweeps: Whether they are expanded; otherwise they are one job's.

    Raises:
        ConfigError: A job's configuration is wrong; in a sweep it says which.
    """
    if not sweeps:
        require_values(overrides)
    jobs = expand(overrides) if sweeps else [list(overrides)]
    found = []
    for number, job in enumerate(jobs, start=1):
        own = " ".join(o for o in job if not all(o in other for other in jobs)) or " ".join(job)
        where = f"job {number} of {len(jobs)} ({own}): " if sweeps else ""
        try:
            found.append(checked_job(job))
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from error
        if sweeps and found[-1].config.run_dir:
            raise ConfigError(
                f"{where}run_dir is {found[-1].config.run_dir!r}, but the jobs of a sweep have "
                f"directories of their own below {SWEEP_ROOT}; leave it out"
            )
    return found


def checked_job(overrides: Sequence[str]) -> Job:
    """One job, composed, checked and matched.

    Raises:
        ConfigError: Its configuration is wrong.
    """
    config, match = settled(compose(overrides), overrides)
    return Job(
        overrides=tuple(o for o in overrides if not o.startswith(ASIDE)),
        id=job_id(config, plugin_versions()),
        config=config,
        match=match,
    )


def settled(
    config: DictConfig, overrides: Sequence[str]
) -> tuple[DictConfig, dict[str, Any] | None]:
    """What a job trains: the model of ``init_from``, then widths for the budget; and its match.

    Args:
        config: Its composed configuration; it stays as it is.
        overrides: What the user gave.

    Raises:
        ConfigError: They do not go together.
    """
    return match_budget(from_source(config, overrides))


def job_id(config: DictConfig, plugins: Mapping[str, str]) -> str:
    """Twelve hex digits that name a job by what it runs: configuration and versions, not paths.

    Patterns that give each layer the same slot are one, and a slot that no layer has is nothing.

    Args:
        config: The job's composed configuration, with widths solved.
        plugins: The loaded plugins with their versions.
    """
    content = OmegaConf.to_container(config, resolve=True)
    assert isinstance(content, dict)
    for key in PASSING:
        content.pop(key, None)
    if content["init_from"] is not None:
        content["init_from"] = initial_weights(content["init_from"])
    if content["match"] == "none":  # what is not matched is not matched to anything
        del content["match"], content["match_to"]
    slots = slots_by_layer(content)
    used = {slot: ffn for slot, ffn in content.pop("ffns").items() if slot in slots}
    content["model"].pop("layers")
    if MAIN not in slots:
        content.pop("ffn")
    if set(slots) != {MAIN}:
        content["ffns"], content["model"]["layers"] = used, slots
    return digest([content, __version__, dict(plugins)])


def sweep_id(jobs: Sequence[Job]) -> str:
    """Twelve hex digits that name a sweep by its jobs, in whatever order they were asked for."""
    return digest(sorted({job.id for job in jobs}))


def digest(content: Any) -> str:
    """The first twelve hex digits of the sha256 of plain values."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def labels(jobs: Sequence[Job]) -> list[str]:
    """A short name for each job: the overrides that not all of them share."""
    common = shared(jobs)
    return [
        " ".join(o for o in job.overrides if o not in common).replace("'", "") or "(as it is)"
        for job in jobs
    ]


def shared(jobs: Sequence[Job]) -> list[str]:
    """The overrides that all jobs have, in the order of the first; of one job none."""
    if len({job.id for job in jobs}) == 1:
        return []
    return [o for o in jobs[0].overrides if all(o in job.overrides for job in jobs)]

"""The jobs of a multirun: their list, and an identity that depends on what is run alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from mlpkit import __version__
from mlpkit.compose import ConfigError, first_line, install, own_hydra, quote_null
from mlpkit.layers import MAIN, slots_by_layer

SWEEP_ROOT = Path("multirun")


class Job(NamedTuple):
    """One job of a sweep.

    Args:
        overrides: What it overrides.
        id: Its directory's name below ``SWEEP_ROOT``.
    """

    overrides: tuple[str, ...]
    id: str


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of a sweep, in the order in which they run.

    Args:
        overrides: As on the command line, e.g. ``["ffn=naive,swiglu", "seed=range(3)"]``.

    Raises:
        ConfigError: An override cannot be read.
    """
    install()
    try:
        with own_hydra():
            loader = GlobalHydra.instance().config_loader()  # glob() needs to list groups
            parser = OverridesParser.create(config_loader=loader)
            parsed = parser.parse_overrides([quote_null(o) for o in overrides])
            (jobs,) = BasicSweeper.split_arguments(parsed, None)
    except HydraException as error:
        raise ConfigError(f"{' '.join(overrides)}: {first_line(error)}") from error
    return [list(job) for job in jobs]


def job_id(config: DictConfig, plugins: Mapping[str, str]) -> str:
    """Twelve hex digits that name a job by what it runs: configuration and versions, not paths.

    Patterns that give each layer the same slot are one, and a slot that no layer has is nothing.

    Args:
        config: The job's composed configuration.
        plugins: The loaded plugins with their versions.
    """
    content = OmegaConf.to_container(config, resolve=True)
    assert isinstance(content, dict)
    content.pop("run_dir", None)
    slots = slots_by_layer(content)
    used = {slot: ffn for slot, ffn in content.pop("ffns").items() if slot in slots}
    content["model"].pop("layers")
    if MAIN not in slots:
        content.pop("ffn")
    if set(slots) != {MAIN}:
        content["ffns"], content["model"]["layers"] = used, slots
    text = json.dumps([content, __version__, dict(plugins)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]

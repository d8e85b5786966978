"""Runs, the variants that they make, and what is said about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Something to say, before it is said in a language.

    Args:
        key: Which sentence it is; ``mlpkit.report.verdicts.STATEMENTS`` lists them all.
        values: What the sentence is about: names, numbers, lists of names.
    """

    key: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run directory, as far as it could be read.

    Args:
        path: The directory.
        id: Its name, unique in a report.
        status: ``ok``, ``running``, ``failed``, ``stopped``, ``lost`` (said to run, its process is
            gone), ``broken`` (cannot be read) or ``missing`` (listed by a sweep, not begun).
        config: The resolved configuration, nested; empty if it could not be read.
        overrides: As typed, ``key=value``.
        result: The content of result.json; empty if it could not be read.
        steps: The lines of metrics.jsonl that could be read, in their order.
        sample: What the model wrote at the end.
        mixture: The analysis of its MoE layers.
        error: Why it ended, in one line.
        log_tail: The last lines of its log.
        problems: What could not be read, one line each.
    """

    path: Path
    id: str
    status: str
    config: Mapping[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[Mapping[str, Any], ...] = ()
    sample: str | None = None
    mixture: Mapping[str, Any] | None = None
    error: str | None = None
    log_tail: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def seed(self) -> int | None:
        """The seed, from the configuration or else the result."""
        seed = self.config.get("seed", self.result.get("seed"))
        return seed if isinstance(seed, int) else None

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The final numbers; empty unless it finished."""
        return _mapping(self.result.get("metrics"))

    @property
    def model(self) -> Mapping[str, Any]:
        """Parameters and FLOPs of the model."""
        return _mapping(self.result.get("model"))

    @property
    def match(self) -> Mapping[str, Any] | None:
        """The record of how its width was matched to a budget; None if it was not asked for."""
        match = self.result.get("match")
        return match if isinstance(match, Mapping) else None

    @property
    def data(self) -> Mapping[str, Any]:
        """Name and fingerprints of data and tokenizer."""
        return _mapping(self.result.get("data"))

    @property
    def data_label(self) -> str:
        """The data by the name of its source and its fingerprint; empty if neither is known."""
        known = (self.data.get(key) for key in ("name", "fingerprint"))
        return " ".join(str(value) for value in known if value is not None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Something that the variants differ in.

    Args:
        key: Its name, as typed: ``ffn``, ``router``, ``training.learning_rate``.
        values: The values in order of appearance; "" stands for "nothing was said".
    """

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Runs that differ in nothing but their seed.

    Args:
        name: Short and unique: ``swiglu``, ``moe · router=mixtral``.
        ffn: What the FFN is, whatever it was called: ``gated[gelu]``.
        key: (config key, value) of what differs between the variants of the report.
        levels: Axis → value, "" where nothing was said.
        runs: All runs, whatever became of them.
        ok: The finished ones that count: one per seed, with a finite score.
        group: Index of the group in which it may be ranked.
    """

    name: str
    ffn: str
    key: tuple[tuple[str, Any], ...]
    levels: Mapping[str, str]
    runs: tuple[Run, ...]
    ok: tuple[Run, ...]
    group: int = 0

    @property
    def seeds_ok(self) -> tuple[int, ...]:
        """Seeds of the runs that count."""
        return tuple(run.seed for run in self.ok if run.seed is not None)

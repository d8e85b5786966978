"""Going on: which checkpoint a run starts from, and whether it is the same run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from mlpkit.training.checkpoints import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    open_checkpoint,
)
from mlpkit.training.run_directory import (
    RESULT,
    RunDirectory,
    RunDirectoryError,
    load_config,
    plain_config,
    read_result,
)

AUTO = "auto"
# What may change when a run goes on: where and how it runs, how long, and what it shows. Of the
# text the paths alone: its fingerprints must agree.
FREE = (
    *("run_dir", "resume", "init_from", "keep_going", "rerun", "dry_run", "match", "match_to"),
    *("parallel", "lint", "experiment", "data.path", "data.tokenizer"),
    *("training.max_steps", "training.eval_every", "training.eval_tokens", "training.log_every"),
    *("training.checkpoint_every", "training.keep_last", "training.checkpoint_async"),
    *("training.sample_tokens", "training.device", "training.compile"),
)


class ResumeError(ValueError):
    """A run that cannot go on as it is asked to."""

    exit_code = 2


class Start(NamedTuple):
    """Where a run starts.

    Args:
        checkpoint: What it goes on from; None: from the first step.
        source: The run directory that the checkpoint is in; None: the run's own.
        before: The record of what went before in the same directory.
        notes: What a person should know.
        initial: Which weights the run once started from; None: initial values.
    """

    checkpoint: Checkpoint | None = None
    source: Path | None = None
    before: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()
    initial: Mapping[str, str] | None = None

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.before.get("status") == "ok" and self.checkpoint is None

    def history(self) -> dict[str, Any]:
        """What a record says of before: when it first started, and the steps it went on from."""
        if self.checkpoint is None:
            return {}
        return {
            **({"started": self.before["started"]} if "started" in self.before else {}),
            "init_from": self.initial,
            "resumed": [*self.before.get("resumed", ()), self.checkpoint.step],
        }

    def plain(self) -> dict[str, Any]:
        """As JSON can say it, for the other processes."""
        checkpoint = self.checkpoint and [str(self.checkpoint.path), *self.checkpoint[1:]]
        source = None if self.source is None else str(self.source)
        return {**self._asdict(), "checkpoint": checkpoint, "source": source}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Start:
        """What ``plain`` was made from."""
        at, source = plain["checkpoint"], plain["source"]
        known = {
            "checkpoint": at and Checkpoint(Path(at[0]), at[1], at[2]),
            "source": source and Path(source),
            "notes": tuple(plain["notes"]),
        }
        return cls(**{**plain, **known})


def goes_on(config: DictConfig, *, present: int) -> bool:
    """Whether a run goes on from a checkpoint, and from no other weights.

    Args:
        config: The composed configuration.
        present: How many checkpoints its directory has.
    """
    return config.resume is not None and (config.resume != AUTO or present > 0)


def open_directory(config: DictConfig, run_dir: Path | None) -> RunDirectory:
    """The directory of a run, new or (resume=auto) as it was left, with its lock.

    Args:
        config: The composed configuration.
        run_dir: Where; None: the configuration's, or outputs/<date>/<time>.

    Raises:
        ResumeError: resume=auto without a directory, or a checkpoint to go on from in its own.
        RunDirectoryError: The directory cannot be used.
    """
    chosen = run_dir or (Path(config.run_dir) if config.run_dir else None)
    if config.resume == AUTO and chosen is None:
        raise ResumeError("resume=auto goes on in a run directory; say which: run_dir=PATH")
    if config.resume not in (None, AUTO) and chosen is not None:
        source = Path(config.resume).absolute().parent.parent
        if chosen.absolute() == source:
            raise ResumeError(
                f"resume={config.resume} lies in run_dir={chosen}; resume=auto goes on there from "
                "its newest checkpoint, and from any other leave out run_dir or choose a new one"
            )
    return RunDirectory.create(chosen, resume=config.resume == AUTO)


def find_start(config: DictConfig, directory: RunDirectory, data: Mapping[str, str]) -> Start:
    """Where a run starts.

    Args:
        config: The composed configuration.
        directory: Its directory, which is locked.
        data: The fingerprints of its text and tokenizer.

    Raises:
        ResumeError: It would not be the same run; says by which keys.
        CheckpointError: A named checkpoint, or every one, cannot be used.
    """
    if config.resume is None:
        return Start()
    if config.resume == AUTO:
        return _newest(config, directory, data)
    checkpoint = open_checkpoint(Path(config.resume))
    source = checkpoint.path.absolute().parent.parent
    notes = _require_same(config, source, checkpoint, data)
    return Start(checkpoint, source, {}, (_going_on(checkpoint), *notes), _initial(source))


def _newest(config: DictConfig, directory: RunDirectory, data: Mapping[str, str]) -> Start:
    if not (directory.path / RESULT).exists():
        return Start(notes=("resume=auto: nothing is there yet; starting at step 0",))
    before = read_result(directory.path, locked=True)
    store, finished = CheckpointStore(directory.checkpoints), before["status"] == "ok"
    if finished and int(before.get("step", 0)) >= config.training.max_steps:
        _require_same(config, directory.path, None, data)
        return Start(before=before)
    checkpoint, wrong = store.newest()
    if checkpoint is None and wrong:
        raise CheckpointError(
            f"none of the {len(wrong)} checkpoints of {directory.path} can be used: "
            f"{'; '.join(wrong)}; to start at step 0 remove {directory.checkpoints}"
        )
    if checkpoint is None and finished:
        raise ResumeError(
            f"{directory.path} is finished after {before.get('step')} steps and has no checkpoint "
            "to go on from; choose a new run_dir"
        )
    if checkpoint is None:
        return Start(notes=("no checkpoint yet: starting at step 0",))
    notes = [f"skipped a checkpoint: {text}" for text in wrong]
    changes = _require_same(config, directory.path, checkpoint, data)
    said = (*notes, _going_on(checkpoint), *changes)
    return Start(checkpoint, None, before, said, before.get("init_from"))


def _initial(source: Path) -> Mapping[str, str] | None:
    try:
        found: Mapping[str, str] | None = read_result(source).get("init_from")
    except RunDirectoryError:  # a checkpoint whose run is gone, but for its configuration
        return None
    return found


def _going_on(checkpoint: Checkpoint) -> str:
    return f"going on after step {checkpoint.step}: {checkpoint.path}"


def _require_same(
    config: DictConfig, source: Path, checkpoint: Checkpoint | None, data: Mapping[str, str]
) -> list[str]:
    """Refuses another run than the one in a directory; returns the changes that are allowed."""
    old, new = (dict(_flat(plain_config(c))) for c in (load_config(source), config))
    changes = {k: (old.get(k), new.get(k)) for k in {*old, *new} if old.get(k) != new.get(k)}
    other = sorted(key for key in changes if not _is_free(key))
    if other:
        said = ", ".join(f"{key}: {changes[key][0]} → {changes[key][1]}" for key in other)
        raise ResumeError(
            f"{source} is another run ({said}); give what it was started with, or a new run_dir"
        )
    if checkpoint is not None:
        _require_data(source, checkpoint.state.get("data"), data)
        if checkpoint.step > config.training.max_steps:
            raise ResumeError(
                f"training.max_steps={config.training.max_steps}, and {checkpoint.path} is past "
                f"it; ask for at least {checkpoint.step}"
            )
    shown = sorted(key for key in changes if key.startswith(("training.", "parallel")))
    return [f"changed {key}: {changes[key][0]} → {changes[key][1]}" for key in shown]


def _require_data(source: Path, before: Any, now: Mapping[str, str]) -> None:
    if before != dict(now):
        raise ResumeError(
            f"the text or its tokenizer is not the one that {source} has seen ({before} → "
            f"{dict(now)}); give the old one, or a new run_dir"
        )


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in FREE)


def _flat(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in a nested mapping; null is like no key."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    elif content is not None:
        yield path, content

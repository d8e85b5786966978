"""Runs grouped into variants, and variants into groups that may be ranked together."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from mlpkit.report.naming import (
    Subject,
    level,
    name_variants,
    typed_overrides,
    varying_keys,
)
from mlpkit.report.records import Axis, Run, Statement, Variant

# What may differ between runs of one variant: the seed, paths, and what is watched, kept or
# allowed, none of which changes what is trained. The fingerprint of the data stands for its path.
PATHS = ("run_dir", "resume", "data.path", "data.cache_dir")
WATCHING = (
    *("training.log_every", "training.checkpoint_every", "training.sample_tokens"),
    *("training.keep_last", "training.checkpoint_async", "parallel.timeout"),
    *("keep_going", "rerun", "dry_run"),
)
SAYING = ("lint.", "hydra.", "experiment.")
FINGERPRINTS = {"data.fingerprint": "fingerprint", "data.tokenizer_fingerprint": "tokenizer"}


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested configuration as dotted key → value; an empty mapping is a value.

    Args:
        config: The nested one.
        prefix: Put in front of every key.
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def identity(run: Run) -> dict[str, Any]:
    """What makes a run the variant that it is, as dotted key → value; empty without configuration.

    Args:
        run: The run.
    """
    if not run.config:
        return {}
    flat = flatten(run.config)
    for key in ("seed", *PATHS, *WATCHING):
        flat.pop(key, None)
    flat = {key: value for key, value in flat.items() if not key.startswith(SAYING)}
    if "/" in str(flat.get("data.tokenizer")):
        del flat["data.tokenizer"]
    flat |= {key: run.data.get(name) for key, name in FINGERPRINTS.items()}
    # an option that is null is the same as one that an older version did not have
    return {key: value for key, value in flat.items() if value is not None}


def make_variants(
    runs: Sequence[Run], *, metric: str = "val_bpb"
) -> tuple[list[Variant], tuple[Axis, ...], list[Statement]]:
    """Groups runs by their configuration apart from seed and paths.

    Args:
        runs: All runs.
        metric: What a finished run must have, finite.

    Returns:
        The variants in order of appearance, what they differ in, and warnings about doubled runs.
    """
    members = _members(runs)
    subjects = [_subject(group) for group in members]
    named = name_variants(subjects)
    keys = varying_keys([subject.config for subject in subjects if subject.config])
    variants, warnings = [], []
    for group, subject, name, levels in zip(
        members, subjects, named.names, named.levels, strict=True
    ):
        ok, doubled = counted(group, metric=metric)
        warnings += [replace(w, values={"variant": name, **w.values}) for w in doubled]
        variants.append(
            Variant(
                name=name,
                ffn=_ffn_label(group, subject),
                key=tuple((key, subject.config.get(key)) for key in keys),
                levels=levels,
                runs=tuple(group),
                ok=ok,
            )
        )
    return _grouped(variants), named.axes, warnings


def counted(runs: Iterable[Run], *, metric: str) -> tuple[tuple[Run, ...], list[Statement]]:
    """The finished runs that count: one per seed, the last one started, with a finite score.

    Two runs of one seed are one observation: counted twice they would feign certainty.

    Args:
        runs: Those of one variant.
        metric: The score.

    Returns:
        They by seed, and a statement for each seed that was there more than once.
    """
    by_seed: dict[int, list[Run]] = {}
    for run in runs:
        if run.status == "ok" and run.seed is not None and is_number(run.metrics.get(metric)):
            by_seed.setdefault(run.seed, []).append(run)
    chosen, doubled = [], []
    for seed, several in sorted(by_seed.items()):
        last = max(several, key=lambda run: str(run.result.get("started", "")))
        chosen.append(last)
        if len(several) > 1:
            ids = [run.id for run in several]
            doubled.append(
                Statement(key="doubled", values={"seed": seed, "runs": ids, "counted": last.id})
            )
    return tuple(chosen), doubled


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value from a file can be calculated with: finite, and not a truth value."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def ranking_identity(variant: Variant) -> dict[str, Any]:
    """What variants must share to be ranked: data, tokenizer and number of tokens.

    Args:
        variant: One of them.
    """
    run = (variant.ok or variant.runs)[0]
    data = run.data
    return {
        "data": data.get("fingerprint", data.get("name")),
        "tokenizer": data.get("tokenizer"),
        "tokens": run.metrics.get("tokens", planned_tokens(run.config)),
    }


def planned_tokens(config: Mapping[str, Any]) -> int | None:
    """The tokens that a configuration trains on: steps · batch · sequence; None if it says not.

    Args:
        config: The nested configuration of a run.
    """
    training = config.get("training")
    keys = ("max_steps", "batch_size", "sequence_length")
    factors = [training.get(key) if isinstance(training, Mapping) else None for key in keys]
    known = [factor for factor in factors if isinstance(factor, int)]
    return math.prod(known) if len(known) == len(keys) else None


def _members(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs of equal identity; one that says too little joins those that it may belong to."""
    found: dict[str, list[Run]] = {}
    homes: dict[str, list[Run]] = {}
    for run in runs:
        if run.config and run.data:
            group = found.setdefault(_text(identity(run)), [])
            group.append(run)
            for hint in _hints(run):
                homes.setdefault(hint, group)
    for run in runs:
        if not (run.config and run.data):
            hints = _hints(run)
            group = next((homes[hint] for hint in hints if hint in homes), [])
            if not group:
                found[f"alone {run.id}"] = group
                homes |= dict.fromkeys(hints, group)
            group.append(run)
    return list(found.values())


def _hints(run: Run) -> list[str]:
    """What is known of a run without fingerprints, or without configuration, the better first."""
    known = {key: value for key, value in identity(run).items() if key not in FINGERPRINTS}
    typed = [f"typed {_typed(run)}"] if run.overrides and (run.data or not known) else []
    return [*([_text(known)] if known else []), *typed]


def _text(known: Mapping[str, Any]) -> str:
    return json.dumps(known, sort_keys=True, default=str)


def _typed(run: Run) -> str:
    typed = typed_overrides(run.overrides)
    return " ".join(f"{key}={typed[key]}" for key in sorted(typed) if key not in ("seed", *PATHS))


def _subject(runs: Sequence[Run]) -> Subject:
    config, overrides = identity(runs[0]), typed_overrides(runs[0].overrides)
    ignored = ("seed", *PATHS, *WATCHING)
    overrides = {key: value for key, value in overrides.items() if key not in ignored}
    found = Subject(config, overrides, "")
    ffn = level(found, "ffn", "ffn") or str(runs[0].result.get("ffn") or runs[0].id)
    return found._replace(ffn=ffn)


def _ffn_label(runs: Sequence[Run], subject: Subject) -> str:
    said = next((run.result["ffn"] for run in runs if run.result.get("ffn")), None)
    return str(said or subject.ffn)


def _grouped(variants: Sequence[Variant]) -> list[Variant]:
    """Gives each variant its group: the one with the most finished variants is 0."""
    texts = [_text(ranking_identity(variant)) for variant in variants]
    finished = Counter(text for v, text in zip(variants, texts, strict=True) if v.ok)
    order = sorted(dict.fromkeys(texts), key=lambda text: -finished[text])
    return [replace(v, group=order.index(text)) for v, text in zip(variants, texts, strict=True)]

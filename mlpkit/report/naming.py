"""Short names for variants, from what was typed and what differs in their configurations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mlpkit.report.records import Axis

FFN = "ffn"
NOTHING = ("", "null", "None", "~")  # values that mean "nothing was said"


class Subject(NamedTuple):
    """What is to be named.

    Args:
        config: Dotted key → value.
        overrides: Key → value, as typed.
        ffn: What its FFN is called where nothing was typed.
    """

    config: Mapping[str, Any]
    overrides: Mapping[str, str]
    ffn: str


class Names(NamedTuple):
    """The names of some variants.

    Args:
        names: One per variant, unique.
        levels: One per variant: axis → value, "" where nothing was said.
        axes: What they differ in.
    """

    names: list[str]
    levels: list[dict[str, str]]
    axes: tuple[Axis, ...]


def name_variants(subjects: Sequence[Subject]) -> Names:
    """Names variants by the least that tells them apart: the FFN, then ``key=value``.

    What was typed comes first, since it is what the user thinks in; where it does not tell them
    apart, as for runs started from Python, the configuration does.

    Args:
        subjects: The variants, all different.
    """
    typed = typed_axes(subjects)
    paths = typed | configured_axes(subjects, typed)
    short = _shortened(list(paths))
    levels = [
        {short[key]: level(subject, key, path) for key, path in paths.items()}
        for subject in subjects
    ]
    names = _names(subjects, levels, {short[key]: key for key in typed})
    axes = tuple(
        Axis(key=key, values=tuple(dict.fromkeys(found[key] for found in levels)))
        for key in short.values()
    )
    return Names(_unique(names), levels, axes)


def typed_axes(subjects: Sequence[Subject]) -> dict[str, str]:
    """Overrides that differ between the variants, and make a difference: key → path in the config.

    Args:
        subjects: The variants.
    """
    changed = varying_keys([s.config for s in subjects if s.config])
    typed = dict.fromkeys(key for s in subjects for key in s.overrides)
    paths = {}
    for key in sorted(typed, key=lambda key: key != FFN):  # stable: the FFN, then as typed
        path = _path(key)
        if not any(_is_below(name, path) for name in changed) and any(s.config for s in subjects):
            continue
        if len({level(subject, key, path) for subject in subjects}) > 1:
            paths[key] = path
    return paths


def configured_axes(subjects: Sequence[Subject], typed: Mapping[str, str]) -> dict[str, str]:
    """Keys of the configuration that tell apart what the typed axes leave equal.

    Args:
        subjects: The variants.
        typed: The axes so far.
    """
    found: dict[str, str] = {}

    def distinct(axes: Mapping[str, str]) -> int:
        return len({tuple(level(s, k, p) for k, p in axes.items()) for s in subjects})

    known = [s.config for s in subjects if s.config]
    # a component's name says more than its options, some of which only follow from it
    keys = sorted(varying_keys(known), key=lambda key: not key.endswith(".name"))
    for key in keys:
        axis = {key.removesuffix(".name"): key.removesuffix(".name")}
        if distinct({**typed, **found, **axis}) > distinct({**typed, **found}):
            found |= axis
    return found


def varying_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Dotted keys whose values are not the same in all configurations, in order of appearance.

    Args:
        configs: Dotted key → value.
    """
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({repr(c.get(key)) for c in configs}) > 1]


def level(subject: Subject, key: str, path: str) -> str:
    """A variant's value on an axis: what was typed, else the configuration's; "" is nothing.

    Args:
        subject: The variant.
        key: The axis, as typed.
        path: Where it is in the configuration.
    """
    if key in subject.overrides:
        value: Any = subject.overrides[key]
    elif path in subject.config:
        value = subject.config[path]
    else:
        value = subject.config.get(f"{path}.name", "")
    text = str(value).strip("'\"")
    return "" if text in NOTHING else text


def typed_overrides(overrides: Sequence[str]) -> dict[str, str]:
    """Overrides as key → value; ``~key`` says nothing, and of two the last one holds.

    Args:
        overrides: As typed, ``key=value``, ``+key=value``.
    """
    pairs = (o.lstrip("+").partition("=") for o in overrides if not o.startswith("~"))
    return {key: value for key, _, value in pairs}


def _path(key: str) -> str:
    """``ffn/router`` is at ``ffn.router``, ``ffn@ffns.dense`` at ``ffns.dense``."""
    return key.partition("@")[2] or key.replace("/", ".")


def _is_below(key: str, path: str) -> bool:
    return key == path or key.startswith(f"{path}.")


def _shortened(keys: Sequence[str]) -> dict[str, str]:
    """The last word of each key, or as many as make it the only one."""
    words = {key: re.split(r"[./@]", key) for key in keys}
    short = {}
    for key, parts in words.items():
        own = (".".join(parts[-n:]) for n in range(1, len(parts) + 1))
        others = [other for other in keys if other != key]
        short[key] = next(
            (tail for tail in own if not any(_ends(words[other], tail) for other in others)), key
        )
    return short


def _ends(parts: Sequence[str], tail: str) -> bool:
    return ".".join(parts) == tail or ".".join(parts).endswith(f".{tail}")


def _names(
    subjects: Sequence[Subject], levels: Sequence[Mapping[str, str]], typed: Mapping[str, str]
) -> list[str]:
    """The FFN and what was typed beside it; all levels where that is not enough."""
    brief = []
    for subject, found in zip(subjects, levels, strict=True):
        said = {a: v for a, v in found.items() if a not in typed or typed[a] in subject.overrides}
        brief.append(_name(subject, said))
    return [
        name if brief.count(name) == 1 else _name(subject, found)
        for name, subject, found in zip(brief, subjects, levels, strict=True)
    ]


def _name(subject: Subject, levels: Mapping[str, str]) -> str:
    first = levels.get(FFN) or subject.ffn
    others = (f"{key}={value}" for key, value in levels.items() if value and key != FFN)
    return " · ".join([first, *others])


def _unique(names: Sequence[str]) -> list[str]:
    """Variants that differ in nothing that can be named are numbered."""
    seen: dict[str, int] = {}
    numbered = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        numbered.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return numbered

"""Patterns over layers: from a pattern to the slot of each layer, and back to a short one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from mlpkit.registry import suggestion

KEY = "model.layers"
MAIN = "main"  # the slot of `ffn`; the others are those of `ffns`
DENSE = "dense"  # the slot that from_hf gives the layers without experts
PERIOD = ("every", "offset", "slot", "others")
# One layer, a range with both ends, or one to the last layer; several with commas between.
SPAN = re.compile(r"\s*([0-9]+)\s*(?:(-)\s*([0-9]+)?)?\s*\Z")
FORMS = (
    'give a mapping such as {"0-1": dense, "2-": main} or {every: 2, others: dense}, a list with '
    "a slot for each layer, or null"
)
Pattern = Mapping[Any, Any] | Sequence[Any] | None


class LayerPatternError(ValueError):
    """A pattern that does not say which slot each layer has."""

    exit_code = 2


def layer_slots(
    pattern: Pattern, num_layers: int, known: Collection[str] | None = None
) -> list[str]:
    """The slot of every layer: a layer that the pattern does not name has ``main``.

    Args:
        pattern: None; a mapping of layers to slots, each layer at most once; a mapping with
            ``every``; or a list with one slot for each layer. Layers count from 0.
        num_layers: How many layers there are, at least 1.
        known: The slots that exist; None: any name may stand there.

    Raises:
        LayerPatternError: Something else, a layer that does not exist or is named twice, a list
            of another length, or an unknown slot.
    """
    if pattern is None:
        return [MAIN] * num_layers
    if isinstance(pattern, Mapping):
        periodic = any(key in PERIOD for key in pattern)
        slots = (_periodic if periodic else _selected)(pattern, num_layers)
    elif isinstance(pattern, Sequence) and not isinstance(pattern, str):
        slots = list(pattern)
        if len(slots) != num_layers:
            raise LayerPatternError(
                f"{KEY} lists {len(slots)} slots and model.num_layers is {num_layers}; make them "
                "equal"
            )
    else:
        raise LayerPatternError(f"{KEY} is {pattern!r}; {FORMS}")
    names = [str(slot) for slot in slots]
    if known is not None:
        _check_known(names, known)
    return names


def _check_known(slots: Sequence[str], known: Collection[str]) -> None:
    for slot in slots:
        if slot not in known:
            raise LayerPatternError(
                f"{KEY} names the slot {slot!r}{suggestion(slot, known)} (slots: "
                f"{', '.join(known)}); add it with +ffn@ffns.{slot}=NAME"
            )


def _selected(pattern: Mapping[Any, Any], num_layers: int) -> list[str]:
    """The slots of a mapping of layers to slots."""
    owner: dict[int, str] = {}
    found: dict[int, str] = {}
    for key, slot in pattern.items():  # YAML and the command line read 0 as a number
        selector = str(key)
        for layer in _layers(selector, num_layers):
            if layer in owner:
                raise LayerPatternError(
                    f"{KEY} names layer {layer} twice, in {owner[layer]!r} and {selector!r}; "
                    "take it out of one"
                )
            owner[layer], found[layer] = selector, slot
    return [found.get(layer, MAIN) for layer in range(num_layers)]


def _layers(selector: str, num_layers: int) -> Iterator[int]:
    """The layers of ``"3"``, ``"0-1"``, ``"2-"``, or several of these with commas."""
    for part in selector.split(","):
        match = SPAN.match(part)
        if match is None:
            raise LayerPatternError(
                f"{KEY} has the key {selector!r}; write a layer (3), a range (0-1), all from a "
                "layer on (2-), or several with commas; layers count from 0"
            )
        first, dash, last = match.groups()
        start = int(first)
        end = int(last) if last else num_layers - 1 if dash else start
        if last and end < start:
            raise LayerPatternError(f"{KEY} has the key {selector!r}, which ends before it starts")
        if max(start, end) >= num_layers:
            raise LayerPatternError(
                f"{KEY} has the key {selector!r}, and model.num_layers is {num_layers}: the layers "
                f"are 0 to {num_layers - 1}"
            )
        yield from range(start, end + 1)


def _periodic(pattern: Mapping[Any, Any], num_layers: int) -> list[str]:
    """The slots of a mapping with ``every``: one layer of so many has ``slot``."""
    foreign = [key for key in pattern if key not in PERIOD]
    every: Any = pattern.get("every")
    if foreign or not _whole(every) or every < 1:
        found = f"the key {foreign[0]!r}" if foreign else f"every: {every!r}"
        raise LayerPatternError(
            f"{KEY} has {found}; a period is {{every: N, others: SLOT}}, with N at least 1, and "
            "may have slot and offset"
        )
    offset = pattern.get("offset", every - 1)
    if not _whole(offset) or not 0 <= offset < every:
        raise LayerPatternError(f"{KEY}.offset is {offset!r}; give 0 to {every - 1} (every - 1)")
    slot, others = pattern.get("slot", MAIN), pattern.get("others", MAIN)
    if slot == others:
        raise LayerPatternError(
            f"{KEY} gives every layer the slot {slot!r}; name another with slot or others"
        )
    return [slot if layer % every == offset else others for layer in range(num_layers)]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def span_text(layers: Sequence[int]) -> str:
    """Layers in ascending order as a selector: ``0-1,4``."""
    runs = groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(group) for _, group in runs)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def compact(slots: Sequence[str]) -> dict[str, Any] | None:
    """A short pattern that gives these slots: None, a period, or a mapping."""
    several = sorted({*slots} - {MAIN})
    if not several:
        return None
    spans = {slot: span_text([i for i, s in enumerate(slots) if s == slot]) for slot in several}
    if max(text.count(",") for text in spans.values()) > 1 and len(several) == 1:
        (slot,) = several
        for every in range(2, len(slots) // 2 + 1):
            for offset in reversed(range(every)):
                place = {} if offset == every - 1 else {"offset": offset}
                for roles in ({"others": slot}, {"slot": slot}):
                    period = {"every": every, **place, **roles}
                    if layer_slots(period, len(slots)) == list(slots):
                        return period
    return {text: slot for slot, text in spans.items()}

"""What can be said about the experts of one variant, with the numbers that it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mlpkit.figures.experts import category_label, layer_label
from mlpkit.report.records import Run, Statement

# Below 200 choices the largest of many lifts is chance: at 1/8 one standard deviation is 0.19.
AT_LEAST = 200
LIFT = 2.0  # what is worth a sentence
MOST_CATEGORIES = 3

Layers = Mapping[str, Mapping[str, Any]]


class Range(NamedTuple):
    """The least and the greatest value over the seeds; written as one where they look equal."""

    low: float
    high: float


def over(values: Sequence[float]) -> Range:
    """The range of values, at least one."""
    return Range(min(values), max(values))


class Specialist(NamedTuple):
    """The expert of a run that takes a category most eagerly.

    Args:
        layer: The layer's name.
        expert: Its number.
        lift: How many times as often as uniform.
        choices: Choices of the category that fell on it.
        of: Choices of the category in that layer.
        ceiling: The most that is possible, E / K.
    """

    layer: str
    expert: int
    lift: float
    choices: int
    of: int
    ceiling: float


def specialists(mixture: Mapping[str, Any], *, at_least: int = AT_LEAST) -> dict[str, Specialist]:
    """Category to the expert, of all layers, that takes it most eagerly.

    Args:
        mixture: The analysis of a run.
        at_least: How many choices a category must have in a layer.
    """
    best: dict[str, Specialist] = {}
    for name, layer in mixture["layers"].items():
        if not layer["categories"]:
            continue
        counts, lifts = layer["categories"]["counts"], layer["categories"]["lift_over_uniform"]
        ceiling = layer["num_experts"] / layer["num_experts_per_tok"]
        for number, category in enumerate(mixture["categories"]):
            of = sum(row[number] for row in counts)
            if of < at_least:
                continue
            expert = max(range(len(lifts)), key=lambda e: lifts[e][number])
            found = Specialist(
                name, expert, lifts[expert][number], counts[expert][number], of, ceiling
            )
            if category not in best or found.lift > best[category].lift:
                best[category] = found
    return best


def warnings(name: str, runs: Sequence[Run]) -> list[Statement]:
    """What is wrong with the routing of a variant; empty if nothing is.

    Args:
        name: The variant.
        runs: Its runs with an analysis.
    """
    found = [*_dead_router(name, runs)]
    dead = [_total(run, lambda layer: len(layer["dead_experts"])) for run in runs]
    if any(dead):
        total = _total(runs[0], lambda layer: int(layer["num_experts"]))
        seeds = [run.seed for run, count in zip(runs, dead, strict=True) if count]
        values = {"span": over(dead), "total": total, "seeds": seeds}
        found.append(Statement(key="dead_experts", values={"variant": name, **values}))
    for key, measure in (("dropped", "dropped_share"), ("unrouted", "unrouted_share")):
        worst = [max(layer[measure] for layer in _layers(run).values()) for run in runs]
        if max(worst) > 0:
            found.append(Statement(key=key, values={"variant": name, "span": over(worst)}))
    return found


def findings(runs: Sequence[Run]) -> list[Statement]:
    """What the experts of a variant do.

    Args:
        runs: Its runs with an analysis, at least one.
    """
    found = [_balance(runs)]
    if all(run.mixture and run.mixture["categories"] for run in runs):
        found += [_explained(runs), *_specialists(runs)]
    found += _pair(runs[0])
    return found


def _dead_router(name: str, runs: Sequence[Run]) -> Iterator[Statement]:
    dead = [
        (run.seed, layer_label(layer), values["gradient"]["ratio"] or 0.0)
        for run in runs
        for layer, values in _layers(run).items()
        if values["gradient"]["dead"]
    ]
    if dead:
        seeds, layers, ratios = zip(*dead, strict=True)
        values = {
            "variant": name,
            "layers": list(dict.fromkeys(layers)),
            "seeds": list(dict.fromkeys(seeds)),
            "ratio": max(ratios),
        }
        yield Statement(key="dead_router", values=values)


def _balance(runs: Sequence[Run]) -> Statement:
    def worst(run: Run, measure: str) -> float:
        return max(float(layer[measure]) for layer in _layers(run).values())

    ratios = [1 + worst(run, "max_violation") for run in runs]
    shares = [worst(run, "max_violation_share") for run in runs]
    values = {"runs": len(runs), "span": over(ratios), "share": over(shares)}
    return Statement(key="balance", values=values)


def _explained(runs: Sequence[Run]) -> Statement:
    best = []
    for run in runs:
        layers = _layers(run)
        share = {name: layer["categories"]["explained_share"] for name, layer in layers.items()}
        layer = max(share, key=lambda name: share[name])
        best.append((share[layer], layer_label(layer)))
    shares = [share for share, _ in best]
    layers_named = list(dict.fromkeys(layer for _, layer in best))
    return Statement(key="explained", values={"span": over(shares), "layers": layers_named})


def _specialists(runs: Sequence[Run]) -> Iterator[Statement]:
    """The categories that the weakest run still has the most eager expert for."""
    per_run = [specialists(run.mixture or {}) for run in runs]
    lowest = {
        category: min(found[category].lift for found in per_run)
        for category in per_run[0]
        if all(category in found for found in per_run)
    }
    best = sorted(lowest, key=lambda category: -lowest[category])[:MOST_CATEGORIES]
    best = [category for category in best if lowest[category] >= LIFT]
    if not best:
        yield Statement(key="no_specialist", values={"at_least": AT_LEAST, "lift": LIFT})
    for category in best:
        yield _specialist(category, runs, [found[category] for found in per_run])


def _specialist(category: str, runs: Sequence[Run], found: Sequence[Specialist]) -> Statement:
    first = found[0]
    values: dict[str, Any] = {"category": category_label(category), "runs": len(runs)}
    values["span"] = over([specialist.lift for specialist in found])
    values |= first._asdict() | {"layer": layer_label(first.layer), "seed": runs[0].seed}
    if len(runs) == 1:
        return Statement(key="specialist", values=values)
    places = [(layer_label(s.layer), s.expert) for s in found]
    if len(set(places)) == 1:
        return Statement(key="specialist_same", values=values)
    named = [
        f"{layer}·{expert} ({s.lift:.2f}×)"
        for (layer, expert), s in zip(places, found, strict=True)
    ]
    return Statement(key="specialist_differs", values={**values, "places": named})


def _pair(run: Run) -> Iterator[Statement]:
    """The pair of experts that share far more tokens than their loads let expect, if any does."""
    pairs = [
        (share / chance, name, i, j, share, chance)
        for name, layer in _layers(run).items()
        for i, j, share, chance in _shares(layer)
    ]
    if pairs and max(pairs)[0] >= LIFT:
        _, name, first, second, share, chance = max(pairs)
        values = {"layer": layer_label(name), "first": first, "second": second, "seed": run.seed}
        yield Statement(key="pair", values={**values, "share": share, "chance": chance})


def _shares(layer: Mapping[str, Any]) -> Iterator[tuple[int, int, float, float]]:
    """Pairs of experts, the share of the first's tokens that the second has, and that by load.

    By load each of the K - 1 other choices falls on an expert in proportion to its load.
    """
    load, others = layer["load"], layer["choices_per_token"] - 1
    for i, row in enumerate(layer["co_activation"]["conditional"]):
        rest = sum(load) - load[i]
        for j, share in enumerate(row):
            expected = min(others * load[j] / rest, 1.0) if rest else 0.0
            if i != j and load[i] >= AT_LEAST and expected > 0:
                yield i, j, share, expected


def _layers(run: Run) -> Layers:
    mixture: Mapping[str, Any] = run.mixture or {}
    layers: Layers = mixture["layers"]
    return layers


def _total(run: Run, count: Callable[[Mapping[str, Any]], int]) -> int:
    return sum(count(layer) for layer in _layers(run).values())

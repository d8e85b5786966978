"""How a score falls with tokens, FLOPs and seconds: curves over seeds, and when a target is met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlpkit.report.records import Run, Variant
from mlpkit.report.variants import is_number, planned_tokens

Cost = Literal["step", "tokens", "flops", "seconds"]


class Curve(NamedTuple):
    """A variant's score over its training, at the steps that all its seeds have.

    Args:
        name: The variant.
        steps: (P,) optimizer steps, ascending.
        x: (P,) the cost until then, mean over seeds.
        mean: (P,) the score, mean over seeds.
        low: (P,) the lowest seed.
        high: (P,) the highest seed.
        num_seeds: How many seeds.
    """

    name: str
    steps: NDArray[np.int64]
    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    num_seeds: int


def curve(
    variant: Variant, *, x: Cost = "tokens", metric: str = "val_bpb", same_text: bool = False
) -> Curve | None:
    """A variant's curve over its finished runs.

    Args:
        variant: The variant.
        x: The cost; ``seconds`` are those of training steps, without validation.
        metric: A key of metrics.jsonl: ``val_bpb``, ``val_loss``, ``loss``.
        same_text: Leave out a last validation that took more text than those before it.

    Returns:
        None where the runs have no step in common that has both score and cost.
    """
    found = (points(run, x=x, metric=metric, same_text=same_text) for run in variant.ok)
    runs = [steps for steps in found if steps]  # one whose metrics are lost hides no other
    steps = sorted(set(runs[0]).intersection(*runs[1:])) if runs else []
    if not steps:
        return None
    values = np.array([[run[step] for step in steps] for run in runs])  # (seeds, P, 2)
    costs, scores = values[..., 0], values[..., 1]
    return Curve(
        name=variant.name,
        steps=np.array(steps, np.int64),
        x=costs.mean(0),
        mean=scores.mean(0),
        low=scores.min(0),
        high=scores.max(0),
        num_seeds=len(runs),
    )


def points(
    run: Run, *, x: Cost = "tokens", metric: str = "val_bpb", same_text: bool = False
) -> dict[int, tuple[float, float]]:
    """One run's curve, also of an unfinished one: step → (cost, score).

    Args:
        run: The run.
        x: The cost.
        metric: A key of metrics.jsonl.
        same_text: As for ``curve``.
    """
    lines = [line for line in run.steps if is_number(line.get(metric))]
    if same_text and lines and _took_all_text(run, lines[-1], metric):
        lines = lines[:-1]
    found = ((line["step"], _cost(run, line, x), float(line[metric])) for line in lines)
    return {step: (cost, score) for step, cost, score in found if cost is not None}


def first_reached(x: Sequence[float], scores: Sequence[float], target: float) -> float | None:
    """Where a falling curve first meets a target, on straight lines between its points.

    Args:
        x: (P,) ascending.
        scores: (P,).
        target: What to reach, or go below.

    Returns:
        None if it is never reached; the first x if the curve starts there.
    """
    for index, score in enumerate(scores):
        if score <= target:
            if index == 0:
                return float(x[0])
            before = scores[index - 1]
            share = (before - target) / (before - score)
            return float(x[index - 1] + share * (x[index] - x[index - 1]))
    return None


def target_of(baseline: Variant, *, metric: str = "val_bpb") -> float | None:
    """The baseline's last score, on the text that its earlier validations had too.

    A run's last validation takes all of the text, the earlier ones its beginning. The two differ by
    more than variants do, so that a curve is compared with a point of its own kind.

    Args:
        baseline: The variant to catch up with.
        metric: The score.
    """
    found = curve(baseline, x="step", metric=metric, same_text=True)
    return None if found is None else float(found.mean[-1])


def cost_to_target(
    variant: Variant, target: float | None, *, x: Cost, metric: str = "val_bpb"
) -> float | None:
    """What a variant's mean curve takes to reach a score.

    Args:
        variant: The variant.
        target: The score; None: none.
        x: In what to count.
        metric: The score's name.

    Returns:
        None if it is not reached, or not known.
    """
    found = curve(variant, x=x, metric=metric, same_text=True)
    if found is None or target is None:
        return None
    return first_reached(found.x.tolist(), found.mean.tolist(), target)


def _took_all_text(run: Run, line: Any, metric: str) -> bool:
    """Whether a line is the final validation, and that took more text than the others."""
    training = run.config.get("training")
    looked_at = training.get("eval_tokens") if isinstance(training, dict) else None
    there = run.metrics.get("val_tokens")
    if not (is_number(looked_at) and is_number(there) and looked_at < there):
        return False
    return bool(line[metric] == run.metrics.get(metric))


def _cost(run: Run, line: Any, x: Cost) -> float | None:
    if x == "step":
        return float(line["step"])
    if x == "seconds":
        seconds = line.get("seconds")
        return float(seconds) if is_number(seconds) else None
    logged = line.get("tokens")
    tokens = float(logged) if is_number(logged) else _tokens_at(run, line["step"])
    if tokens is None or x == "tokens":
        return tokens
    each = run.model.get("training_flops_per_token")
    if not is_number(each):
        flops, whole = run.metrics.get("training_flops"), run.metrics.get("tokens")
        each = flops / whole if is_number(flops) and is_number(whole) and whole else None
    return None if each is None else float(tokens * each)


def _tokens_at(run: Run, step: int) -> float | None:
    """Tokens after a step, for runs that do not log them."""
    whole, training = planned_tokens(run.config), run.config.get("training")
    if whole is None or not isinstance(training, dict) or not training.get("max_steps"):
        return None
    return float(step * whole / training["max_steps"])

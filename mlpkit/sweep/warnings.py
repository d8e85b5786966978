"""What is wrong with a sweep as an experiment, said before it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mlpkit.lint import lint
from mlpkit.plugins import registries
from mlpkit.report.budgets import LIMIT

if TYPE_CHECKING:
    from mlpkit.sweep.planning import PlannedJob

MANY_EPOCHS = 4  # Muennighoff 2023, arXiv:2305.16264: repeated tokens are worth less from there on


def warnings_of(planned: Sequence[PlannedJob]) -> list[str]:
    """All warnings, each once.

    Args:
        planned: The jobs with what they cost.
    """
    rules = (unmatched, unequal, same_runs, single_seeds, epochs, findings)
    return list(dict.fromkeys(text for rule in rules for text in rule(planned)))


def unmatched(planned: Sequence[PlannedJob]) -> Iterator[str]:
    """FFNs that the budget could not be met with."""
    for entry in planned:
        match = entry.job.match or {}
        if "unmatched" in match:
            yield f"{entry.name} is not matched: {match['unmatched']}"
        elif abs(match.get("residual", 0.0)) > LIMIT:
            yield (
                f"{entry.name} misses the budget by {match['residual']:+.1%} even with width "
                f"{match['width']}: {match['actual']:,} {match['kind']} of {match['target']:,}"
            )


def unequal(planned: Sequence[PlannedJob]) -> Iterator[str]:
    """Budgets that differ by more than 2 %: of tokens, and without a match of the model."""
    budgets = {"tokens": [p.tokens for p in planned]}
    if not any(p.job.match for p in planned):
        budgets |= {
            "parameters": [p.description.parameters for p in planned],
            "active parameters": [p.description.active_parameters for p in planned],
            "FLOPs per token": [p.description.training_flops_per_token for p in planned],
        }
    for what, values in budgets.items():
        low, high = min(values), max(values)
        if high > (1 + LIMIT) * low:
            yield (
                f"the jobs have {low:,} to {high:,} {what}: a better score may come from that "
                f"alone{'' if what == 'tokens' else '; match=params, active_params or flops'}"
            )


def same_runs(planned: Sequence[PlannedJob]) -> Iterator[str]:
    """Jobs that are the same run, whatever they are called."""
    found = defaultdict(list)
    for number, entry in enumerate(planned, start=1):
        found[entry.key].append((number, entry))
    for group in found.values():
        if len(group) > 1:
            numbers = " and ".join(str(number) for number, _ in group)
            names = ", ".join(dict.fromkeys(entry.name for _, entry in group))
            model = group[0][1].description.ffn
            yield f"jobs {numbers} are the same model and run ({model}): {names}"


def single_seeds(planned: Sequence[PlannedJob]) -> Iterator[str]:
    """Variants with one seed, whose differences may be chance."""
    seeds: dict[str, set[int]] = defaultdict(set)
    for entry in planned:
        seeds[entry.replicate].add(entry.job.config.seed)
    single = sum(len(found) == 1 for found in seeds.values())
    if len(seeds) > 1 and single:
        which = "every variant has" if single == len(seeds) else f"{single} variants have"
        yield f"{which} a single seed: no difference can be told from chance; try seed=0,1,2"


def epochs(planned: Sequence[PlannedJob]) -> Iterator[str]:
    """Data that is seen too often."""
    most = max(p.epochs for p in planned)
    if most > MANY_EPOCHS:
        yield f"{most:.1f} epochs over the data: more than {MANY_EPOCHS}, and models memorise it"


def findings(planned: Sequence[PlannedJob]) -> Iterator[str]:
    """What the lint has to say, with the jobs that it says it of."""
    found: dict[str, list[str]] = defaultdict(list)
    for entry in planned:
        for finding in lint(entry.job.config, registries()):
            found[str(finding)].append(entry.name)
    for text, names in found.items():
        where = "" if len(names) == len(planned) else f" ({'; '.join(dict.fromkeys(names))})"
        yield f"{text}{where}"

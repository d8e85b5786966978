"""What a comparison says: verdict, warnings and notes as statements, before any language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlpkit.report.budgets import LIMIT
from mlpkit.report.effects import HIGHER_IS_BETTER, fit_variants
from mlpkit.report.records import Group, Row, Run, Statement
from mlpkit.report.statistics import tied_with

NOTABLE = 1.05  # speeds and memory closer than this differ by measuring alone

# Every statement with the names of its values. Ratios are to the baseline (1.5: half as much
# again); "variants" and "runs" are lists of names, "group" the index of a group. Differences are in
# units of "metric", percent in percent of the baseline's score.
STATEMENTS: dict[str, tuple[str, ...]] = {
    # why a row has no verdict (Row.reasons)
    "no_score": (),
    "single_seed": ("variant", "seeds"),
    "baseline_without_score": ("baseline",),
    "no_common_seed": ("baseline",),
    "no_freedom": (),
    "zero_noise": ("difference",),
    "unmatched_budget": ("measure", "ratio", "limit"),
    "no_width": ("reason",),
    "unknown_budget": ("measure",),
    # what a row costs, and what is unusual about it (Row.notes)
    "slower": ("ratio",),
    "faster": ("ratio",),
    "more_memory": ("ratio",),
    "more_parameters": ("ratio",),
    "better_per_token_worse_per_second": ("ratio",),
    "target_not_reached": ("baseline",),
    "failed_runs": ("failed", "total", "error"),
    "unfinished_runs": ("statuses",),
    # what weakens the comparison (Comparison.warnings)
    "one_seed": ("group",),
    "two_seeds": ("group",),
    "missing_seeds": ("variants",),
    "unequal_noise": ("group", "variant", "sd", "others", "p"),
    "unmatched": ("variants", "measure", "limit"),
    "several_groups": ("count", "differs"),
    "identical": ("variants",),
    "doubled": ("variant", "seed", "runs", "counted"),
    "damaged": ("run", "problem"),
    "mixed": ("what", "values"),
    "no_finished_run": (),
    # the verdict (Comparison.verdict)
    "runs": ("ok", "failed", "other", "total"),
    "group": ("group", "variants", "data", "tokenizer", "tokens"),
    "best": (
        *("group", "metric", "variant", "baseline", "difference", "low", "high", "percent", "p"),
        "seeds",
    ),
    "tied": ("group", "variant", "variants"),
    "none_better": ("group", "metric", "baseline"),
    "better": ("group", "variants", "baseline"),
    "worse": ("group", "variants", "baseline"),
    "indistinguishable": ("group", "variants", "baseline"),
    "not_comparable": ("group", "variants", "baseline"),
    "no_verdict": ("group", "variants", "baseline", "why"),
    "cost": ("group", "variant", "baseline", "speed", "memory", "parameters"),
    "noise": ("group", "metric", "sd", "df", "detectable"),
}


def notes(row: Row, baseline: Row) -> tuple[Statement, ...]:
    """What a row costs beside the baseline, and what is unusual about it.

    Args:
        row: The row.
        baseline: The baseline's.
    """
    said = [*_costs(row, baseline), *_progress(row, baseline)] if row is not baseline else []
    runs = row.variant.runs
    failed = [run for run in runs if run.status == "failed"]
    if failed:
        error = next((run.error for run in failed if run.error), "")
        values = {"failed": len(failed), "total": len(runs), "error": error}
        said.append(Statement(key="failed_runs", values=values))
    others = Counter(run.status for run in runs if run.status not in ("ok", "failed"))
    if others:
        said.append(Statement(key="unfinished_runs", values={"statuses": dict(others)}))
    return tuple(said)


def _costs(row: Row, baseline: Row) -> list[Statement]:
    """Speed, memory and size as ratios, where they differ by more than measuring does."""
    said = []
    speed = ratio(row.tokens_per_second, baseline.tokens_per_second)
    if speed and (speed < 1 / NOTABLE or speed > NOTABLE):
        key = "slower" if speed < 1 else "faster"
        said.append(Statement(key=key, values={"ratio": max(speed, 1 / speed)}))
    memory = ratio(row.peak_memory_bytes, baseline.peak_memory_bytes)
    if memory and memory > NOTABLE:
        said.append(Statement(key="more_memory", values={"ratio": memory}))
    size = ratio(row.parameters, baseline.parameters)
    if size and size > 1 + LIMIT:
        said.append(Statement(key="more_parameters", values={"ratio": size}))
    return said


def _progress(row: Row, baseline: Row) -> list[Statement]:
    """Whether what is better per token is also better per second."""
    missed = row.tokens_to_target is None and baseline.tokens_to_target is not None
    if missed and row.verdict in ("worse", "not_comparable"):
        return [Statement(key="target_not_reached", values={"baseline": baseline.variant.name})]
    later = ratio(row.time_to_target, baseline.time_to_target)
    if row.verdict == "better" and later and later > 1:
        return [Statement(key="better_per_token_worse_per_second", values={"ratio": later})]
    return []


def ratio(value: float | None, other: float | None) -> float | None:
    """One number over another; None where one is not known or not above 0."""
    return value / other if value and other and value > 0 and other > 0 else None


def verdict_of(
    rows: Sequence[Row], groups: Sequence[Group], *, metric: str
) -> tuple[Statement, ...]:
    """The result in sentences: how many runs, then group by group what is better and what is not.

    Args:
        rows: All rows.
        groups: All groups.
        metric: What is compared.
    """
    said = [_say("runs", **_count(rows))] if rows else []
    for group in groups:
        own = [row for row in rows if row.variant.group == group.index]
        if len(groups) > 1:
            said.append(_say("group", group=group.index, variants=_names(own), **group.identity))
        said += _group_verdict(own, group, metric)
    return tuple(said)


def _group_verdict(rows: Sequence[Row], group: Group, metric: str) -> list[Statement]:
    by_verdict = {
        verdict: [row for row in rows if row.verdict == verdict]
        for verdict in ("better", "worse", "indistinguishable", "not_comparable", "no_verdict")
    }
    said = []
    if better := by_verdict["better"]:
        said += _best(better, rows, group, metric)
    elif by_verdict["worse"] or by_verdict["indistinguishable"]:
        values = {"group": group.index, "metric": metric, "baseline": group.baseline}
        said.append(_say("none_better", **values))
    for verdict, found in by_verdict.items():
        if not found or (verdict == "better" and len(found) == 1):
            continue  # the one better variant has been named
        values = {"group": group.index, "variants": _names(found), "baseline": group.baseline}
        if verdict == "no_verdict":
            values["why"] = sorted({reason.key for row in found for reason in row.reasons})
        said.append(_say(verdict, **values))
    noise = group.noise
    if noise.sd is not None:
        values = {"sd": noise.sd, "df": noise.df, "detectable": noise.detectable}
        said.append(_say("noise", group=group.index, metric=metric, **values))
    return said


def _best(better: Sequence[Row], rows: Sequence[Row], group: Group, metric: str) -> list[Statement]:
    """The best variant, what it cannot be told from, and what it costs."""
    sign = -1 if metric in HIGHER_IS_BETTER else 1
    best = min(better, key=lambda row: sign * _change(row))
    base = next(row for row in rows if row.verdict == "baseline")
    found = best.difference
    assert found is not None
    assert base.metric is not None
    who = {"group": group.index, "variant": best.variant.name}
    said = [
        _say(
            "best",
            **who,
            baseline=group.baseline,
            metric=metric,
            difference=found.mean,
            low=found.low,
            high=found.high,
            percent=100 * found.mean / base.metric.mean,
            p=found.p_holm,
            seeds=best.n_ok,
        )
    ]
    if tied := _tied(best, rows, metric):
        said.append(_say("tied", **who, variants=tied))
    cost = {
        "speed": ratio(best.tokens_per_second, base.tokens_per_second),
        "memory": ratio(best.peak_memory_bytes, base.peak_memory_bytes),
        "parameters": ratio(best.parameters, base.parameters),
    }
    if any(value and not 1 / NOTABLE < value < NOTABLE for value in cost.values()):
        said.append(_say("cost", **who, baseline=group.baseline, **cost))
    return said


def _tied(best: Row, rows: Sequence[Row], metric: str) -> list[str]:
    """The names of what cannot be told from the best variant."""
    ranked = ("baseline", "better", "worse", "indistinguishable")
    fitted = fit_variants([row.variant for row in rows], metric=metric)
    assert fitted is not None
    model, index = fitted
    among = [index[row.variant.name] for row in rows if row.verdict in ranked]
    names = list(index)
    return [names[i] for i in tied_with(model, index[best.variant.name], among)]


def warnings_of(
    rows: Sequence[Row], groups: Sequence[Group], runs: Sequence[Run]
) -> tuple[Statement, ...]:
    """What weakens the comparison.

    Args:
        rows: All rows.
        groups: All groups.
        runs: All runs.
    """
    if not any(row.n_ok for row in rows):
        said = [_say("no_finished_run")]
    else:
        said = [warning for group in groups for warning in _group_warnings(rows, group)]
    if len(groups) > 1:
        keys = {key for group in groups for key in group.identity}
        differs = sorted(k for k in keys if len({repr(g.identity.get(k)) for g in groups}) > 1)
        said.append(_say("several_groups", count=len(groups), differs=differs))
    said += [_say("mixed", what=what, values=values) for what, values in _mixed(runs)]
    damaged = (
        (run.id, problem) for run in runs if run.status != "missing" for problem in run.problems
    )
    return (*said, *(_say("damaged", run=run, problem=problem) for run, problem in damaged))


def _group_warnings(rows: Sequence[Row], group: Group) -> list[Statement]:
    own = [row for row in rows if row.variant.group == group.index]
    finished = [row for row in own if row.n_ok]
    if len(own) < 2 or not finished:
        return []
    said = []
    seeds = {seed for row in finished for seed in row.variant.seeds_ok}
    if (most := max(row.n_ok for row in finished)) <= 2:
        said.append(_say("one_seed" if most == 1 else "two_seeds", group=group.index))
    missing = {r.variant.name: sorted(seeds - {*r.variant.seeds_ok}) for r in finished}
    if any(missing.values()):
        said.append(_say("missing_seeds", variants={k: v for k, v in missing.items() if v}))
    if noisy := group.noise.noisiest:
        values = {"variant": noisy.variant, "sd": noisy.sd, "others": noisy.others_sd}
        said.append(_say("unequal_noise", group=group.index, **values, p=noisy.p))
    unmatched = [row for row in own if row.verdict == "not_comparable"]
    if unmatched:
        measure = next(r.values["measure"] for r in unmatched[0].reasons if "measure" in r.values)
        values = {"variants": _names(unmatched), "measure": measure, "limit": LIMIT}
        said.append(_say("unmatched", **values))
    return [*said, *(_say("identical", variants=same) for same in _identical(finished))]


def _identical(rows: Iterable[Row]) -> list[list[str]]:
    """Variants whose runs have exactly the same scores: the same model under several names."""
    found: dict[Any, list[str]] = {}
    for row in rows:
        scores = tuple((run.seed, run.metrics.get("val_loss")) for run in row.variant.ok)
        found.setdefault(scores, []).append(row.variant.name)
    return [names for names in found.values() if len(names) > 1]


def _mixed(runs: Iterable[Run]) -> list[tuple[str, list[str]]]:
    """Versions and machines in which the finished runs differ."""
    results = [run.result for run in runs if run.status == "ok"]
    found = {
        what: {str(result[what]) for result in results if result.get(what) is not None}
        for what in ("mlpkit", "torch", "python", "computing", "threads", "plugins")
    }
    git = (result.get("git") for result in results)
    found["git"] = {str(g.get("commit")) for g in git if isinstance(g, Mapping)}
    return [(what, sorted(values)) for what, values in found.items() if len(values) > 1]


def _count(rows: Sequence[Row]) -> dict[str, int]:
    ok, failed = sum(row.n_ok for row in rows), sum(row.n_failed for row in rows)
    total = sum(len(row.variant.runs) for row in rows)
    return {"ok": ok, "failed": failed, "other": total - ok - failed, "total": total}


def _change(row: Row) -> float:
    return row.difference.mean if row.difference else 0.0


def _names(rows: Iterable[Row]) -> list[str]:
    return [row.variant.name for row in rows]


def _say(statement: str, /, **values: Any) -> Statement:
    return Statement(key=statement, values=values)

"""Runs compared: variants in rows, each against the baseline of those it may be ranked with."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mlpkit.report.budgets import budget_reasons, match_residual, model_number
from mlpkit.report.curves import Cost, cost_to_target, target_of
from mlpkit.report.effects import HIGHER_IS_BETTER, fit_variants, scores_of
from mlpkit.report.naming import FFN, varying_keys
from mlpkit.report.noisiest import noisiest
from mlpkit.report.records import (
    Comparison,
    Difference,
    Estimate,
    Group,
    Noise,
    Row,
    Run,
    Statement,
    Variant,
)
from mlpkit.report.statistics import Fit, decide, difference, estimate, holm, noise
from mlpkit.report.variants import identity, is_number, make_variants, ranking_identity
from mlpkit.report.verdicts import notes, verdict_of, warnings_of

METRICS = ("val_bpb", "val_loss", "val_perplexity", "tokens_per_second")


class ComparisonError(LookupError):
    """A baseline or metric that the runs do not have."""

    exit_code = 2


def compare(
    runs: Iterable[Run], *, baseline: str | None = None, metric: str = "val_bpb"
) -> Comparison:
    """Compares runs.

    Only finished runs count, one per seed; what failed is shown and never filled in. Variants with
    the same data, tokenizer and number of tokens are a group, ranked in it against one baseline.

    Args:
        runs: From ``find_runs``, in any state.
        baseline: The name of a variant, or of its FFN; None: the FFN that budgets were matched to,
            else the dense swiglu, else the first variant.
        metric: What is compared: a key of ``METRICS``.

    Raises:
        ComparisonError: There is no such variant or metric.
    """
    if metric not in METRICS:
        raise ComparisonError(f"unknown metric {metric!r}; known: {', '.join(METRICS)}")
    listed = list(runs)
    variants, axes, doubled = make_variants(listed, metric=metric)
    require_known(baseline, variants)
    parts = [
        compare_group([v for v in variants if v.group == index], baseline=baseline, metric=metric)
        for index in range(1 + max((v.group for v in variants), default=-1))
    ]
    groups = tuple(group for group, _ in parts)
    rows = tuple(row for _, rows in parts for row in rows)
    configs = [identity(row.variant.runs[0]) for row in rows]
    keys = varying_keys([config for config in configs if config])
    known = next((config for config in configs if config), {})
    return Comparison(
        metric=metric,
        rows=rows,
        baseline=groups[0].baseline if groups else "",
        groups=groups,
        axes=axes,
        common={key: value for key, value in known.items() if key not in keys},
        varying={key: tuple(config.get(key) for config in configs) for key in keys},
        failures=tuple(run for row in rows for run in row.variant.runs if run.status != "ok"),
        warnings=(*doubled, *warnings_of(rows, groups, listed)),
        verdict=verdict_of(rows, groups, metric=metric),
    )


def compare_group(
    variants: Sequence[Variant], *, baseline: str | None, metric: str
) -> tuple[Group, tuple[Row, ...]]:
    """Compares the variants of one group, each with the baseline.

    Args:
        variants: At least one.
        baseline: As for ``compare``; a group without that variant takes its own default.
        metric: What is compared.

    Returns:
        The group, and its rows by score, those without one last.
    """
    base = choose_baseline(variants, baseline)
    lower = metric not in HIGHER_IS_BETTER
    fitted = fit_variants(variants, metric=metric)
    found = {v.name: _difference(fitted, v, base) for v in variants if v is not base}
    reasons = {v.name: _reasons(v, base, found[v.name]) for v in variants if v is not base}
    tested = {n: d.p for n, d in found.items() if d and d.p is not None and not reasons[n]}
    for name, p in zip(tested, holm(list(tested.values())), strict=True):
        if (known := found[name]) is not None:
            found[name] = replace(known, p_holm=p)
    target = target_of(base, metric=metric) if lower and metric != "val_perplexity" else None
    rows = [_row(v, metric=metric, target=target) for v in variants]
    rows = [_judged(r, found, reasons, lower_is_better=lower) for r in rows]
    base_row = next(row for row in rows if row.variant is base)
    rows = [replace(row, notes=notes(row, base_row)) for row in rows]
    group = Group(
        index=base.group,
        identity=ranking_identity(base) | {"data": (base.ok or base.runs)[0].data_label},
        names=tuple(row.variant.name for row in _by_score(rows, lower)),
        baseline=base.name,
        noise=_noise(fitted, variants, base, metric=metric),
        target=target,
    )
    return group, tuple(_by_score(rows, lower))


def _noise(
    fitted: tuple[Fit, Mapping[str, int]] | None,
    variants: Sequence[Variant],
    base: Variant,
    *,
    metric: str,
) -> Noise:
    if fitted is None:
        return Noise()
    own = scores_of([base], metric=metric).scores
    return replace(noise(fitted[0], own), noisiest=noisiest(*scores_of(variants, metric=metric)))


def choose_baseline(variants: Sequence[Variant], wanted: str | None) -> Variant:
    """The variant that the others are compared with.

    Args:
        variants: Those of a group.
        wanted: The name of a variant or of its FFN; None: what ``match_to`` says, else swiglu.
    """
    runs = [variant.runs[0] for variant in variants]
    matched = [str(run.config.get("match_to")) for run in runs if run.match]
    for name in [wanted, *matched, "swiglu"]:
        # of several with this FFN, the one about which the least was said
        if name and (named := [v for v in variants if _is_called(v, name)]):
            return min(named, key=lambda v: (v.name != name, sum(map(bool, v.levels.values()))))
    return variants[0]


def require_known(baseline: str | None, variants: Sequence[Variant]) -> None:
    """Refuses a baseline that no variant is.

    Raises:
        ComparisonError: There is none of that name, or of that FFN.
    """
    if baseline is None or any(_is_called(v, baseline) for v in variants):
        return
    names = [variant.name for variant in variants]
    near = difflib.get_close_matches(baseline, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ComparisonError(
        f"no variant is called {baseline!r}{hint} (there are: {', '.join(names)})"
    )


def _is_called(variant: Variant, name: str) -> bool:
    return name in (
        variant.name,
        variant.levels.get(FFN),
        variant.ffn,
        variant.name.split(" · ")[0],
    )


def _difference(
    fitted: tuple[Fit, Mapping[str, int]] | None, variant: Variant, base: Variant
) -> Difference | None:
    if fitted is None or not variant.ok or not base.ok:
        return None
    model, index = fitted
    return difference(model, index[variant.name], index[base.name])


def _reasons(variant: Variant, base: Variant, found: Difference | None) -> tuple[Statement, ...]:
    """Why a variant gets no verdict against the baseline; empty if it does."""
    if not variant.ok:
        return (Statement(key="no_score"),)
    if not base.ok:
        return (Statement(key="baseline_without_score", values={"baseline": base.name}),)
    reasons = list(budget_reasons(variant, base))
    for one in (variant, base):
        if len(one.ok) == 1:
            values = {"variant": one.name, "seeds": list(one.seeds_ok)}
            reasons.append(Statement(key="single_seed", values=values))
    if found is None:
        reasons.append(Statement(key="no_common_seed", values={"baseline": base.name}))
    elif found.low is None and len(variant.ok) > 1 and len(base.ok) > 1:
        reasons.append(Statement(key="no_freedom"))
    elif found.low is not None and found.p is None:
        reasons.append(Statement(key="zero_noise", values={"difference": found.mean}))
    return tuple(reasons)


def _row(variant: Variant, *, metric: str, target: float | None) -> Row:
    """A variant in numbers, before it is judged."""
    failed = sum(run.status == "failed" for run in variant.runs)

    def until_target(x: Cost) -> float | None:
        return cost_to_target(variant, target, x=x, metric=metric)

    return Row(
        variant=variant,
        verdict="baseline",
        n_ok=len(variant.ok),
        n_failed=failed,
        n_other=len(variant.runs) - len(variant.ok) - failed,
        val_loss=_estimate(variant, "val_loss"),
        val_bpb=_estimate(variant, "val_bpb"),
        metric=_estimate(variant, metric),
        difference=None,
        parameters=model_number(variant, "parameters"),
        active_parameters=model_number(variant, "active_parameters"),
        ffn_parameters=model_number(variant, "ffn_parameters"),
        match_residual=match_residual(variant),
        flops_per_token=model_number(variant, "flops_per_token"),
        training_flops=_mean(variant, "training_flops"),
        tokens=_mean(variant, "tokens"),
        tokens_per_second=_mean(variant, "tokens_per_second"),
        peak_memory_bytes=_mean(variant, "peak_memory_bytes"),
        seconds=_mean(variant, "training_seconds"),
        time_to_target=until_target("seconds"),
        flops_to_target=until_target("flops"),
        tokens_to_target=until_target("tokens"),
    )


def _judged(
    row: Row,
    found: Mapping[str, Difference | None],
    reasons: Mapping[str, tuple[Statement, ...]],
    *,
    lower_is_better: bool,
) -> Row:
    name = row.variant.name
    if name not in found:  # the baseline
        return row if row.n_ok else replace(row, reasons=(Statement(key="no_score"),))
    unequal = any(r.key in ("unmatched_budget", "unknown_budget") for r in reasons[name])
    verdict = decide(found[name], lower_is_better=lower_is_better)
    return replace(
        row,
        verdict="not_comparable" if unequal else verdict,
        difference=found[name],
        reasons=reasons[name],
    )


def _by_score(rows: Sequence[Row], lower_is_better: bool) -> list[Row]:
    sign = 1 if lower_is_better else -1
    return sorted(rows, key=lambda row: sign * row.metric.mean if row.metric else math.inf)


def _values(variant: Variant, key: str) -> list[float]:
    values = (run.metrics.get(key) for run in variant.ok)
    return [float(value) for value in values if is_number(value)]


def _estimate(variant: Variant, key: str) -> Estimate | None:
    return estimate(_values(variant, key))


def _mean(variant: Variant, key: str) -> float | None:
    found = _estimate(variant, key)
    return found.mean if found else None

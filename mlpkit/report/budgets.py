"""Whether two variants have the same budget: matched widths, parameters, FLOPs."""

from __future__ import annotations

from typing import Any

from mlpkit.report.records import Statement, Variant
from mlpkit.report.variants import is_number

LIMIT = 0.02  # budgets further apart than this are not equal
# what `match` asks for → the number of the model that it is about
MEASURES = {
    "params": "parameters",
    "active_params": "active_parameters",
    "flops": "flops_per_token",
}


def budget_reasons(variant: Variant, baseline: Variant) -> tuple[Statement, ...]:
    """Why a variant cannot be ranked with the baseline for its budget; empty if it can.

    What the runs were matched by decides: total or active parameters or FLOPs. If nothing was
    matched, the models must have the same number of parameters all the same.

    Args:
        variant: The variant.
        baseline: What it is compared with.
    """
    own, other = match_of(variant), match_of(baseline)
    kind = str((own or other or {}).get("kind", "params"))
    measure = MEASURES.get(kind, "parameters")
    numbers = [model_number(v, measure) for v in (variant, baseline)]
    ratio = numbers[0] / numbers[1] if numbers[0] is not None and numbers[1] else None
    residual = match_residual(variant)
    if residual is not None and abs(residual) > LIMIT:
        return (_unmatched(measure, 1 + residual),)
    if ratio is not None and abs(ratio - 1) > LIMIT:
        said = (own or {}).get("unmatched")
        reason = (Statement(key="no_width", values={"reason": str(said)}),) if said else ()
        return (*reason, _unmatched(measure, ratio))
    if ratio is None:
        return (Statement(key="unknown_budget", values={"measure": measure}),)
    return ()


def match_of(variant: Variant) -> dict[str, Any] | None:
    """How the widths of a variant were matched; None if that was not asked for."""
    found = next((run.match for run in variant.runs if run.match), None)
    return dict(found) if found else None


def match_residual(variant: Variant) -> float | None:
    """Actual over wanted budget - 1; None if nothing was matched."""
    residual = (match_of(variant) or {}).get("residual")
    return float(residual) if is_number(residual) else None


def model_number(variant: Variant, key: str) -> float | None:
    """A number of the variant's model, the same for all its runs; None if no run says it.

    Args:
        variant: The variant.
        key: ``parameters``, ``active_parameters``, ``ffn_parameters``, ``flops_per_token``.
    """
    said = (place.get(key) for run in variant.runs for place in (run.model, run.metrics))
    return next((value for value in said if is_number(value)), None)


def _unmatched(measure: str, ratio: float) -> Statement:
    values = {"measure": measure, "ratio": ratio, "limit": LIMIT}
    return Statement(key="unmatched_budget", values=values)

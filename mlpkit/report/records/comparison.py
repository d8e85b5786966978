"""A comparison: its rows, and the groups that may be ranked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlpkit.report.records.numbers import Difference, Estimate, Noise, Verdict
from mlpkit.report.records.runs import Axis, Run, Statement, Variant


@dataclass(frozen=True, kw_only=True)
class Row:
    """A variant in numbers: a line of the main table. Means over finished seeds; None: not known.

    Args:
        variant: The variant.
        verdict: Against the baseline of its group.
        reasons: Why there is no verdict, or why it is not comparable.
        n_ok: Finished runs that count.
        n_failed: Failed runs.
        n_other: All others: running, lost, stopped, broken, missing, doubled.
        val_loss: Nats per token.
        val_bpb: Bits per byte.
        metric: The score that is compared.
        difference: To the baseline of the group, in units of ``metric``; None for the baseline.
        parameters: Of the model.
        active_parameters: Those that work on one token.
        ffn_parameters: Of all FFNs.
        match_residual: Actual over target budget - 1; None if no match was asked for or possible.
        flops_per_token: Of a forward; a multiply-add is 2.
        training_flops: Of the whole training.
        tokens: Trained on.
        tokens_per_second: In training, without validation.
        peak_memory_bytes: Of the process or device.
        seconds: Of training steps.
        time_to_target: Seconds of training until the baseline's final score; None: never reached.
        flops_to_target: FLOPs of training until then.
        tokens_to_target: Tokens until then.
        notes: What the verdict costs, and what is unusual.
    """

    variant: Variant
    verdict: Verdict
    reasons: tuple[Statement, ...] = ()
    n_ok: int
    n_failed: int
    n_other: int
    val_loss: Estimate | None
    val_bpb: Estimate | None
    metric: Estimate | None
    difference: Difference | None
    parameters: float | None
    active_parameters: float | None
    ffn_parameters: float | None
    match_residual: float | None
    flops_per_token: float | None
    training_flops: float | None
    tokens: float | None
    tokens_per_second: float | None
    peak_memory_bytes: float | None
    seconds: float | None
    time_to_target: float | None
    flops_to_target: float | None
    tokens_to_target: float | None
    notes: tuple[Statement, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Group:
    """Variants that may be ranked together: same data, tokenizer and number of tokens.

    Args:
        index: Its number, from 0.
        identity: What its variants share: ``data`` with its source's name, ``tokenizer``,
            ``tokens``.
        names: The variants, in the order of the rows.
        baseline: The variant that the others are compared with.
        noise: The noise of its runs.
        target: The baseline's final score, which ``time_to_target`` is about; None: unknown.
    """

    index: int
    identity: Mapping[str, Any]
    names: tuple[str, ...]
    baseline: str
    noise: Noise
    target: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that the runs say.

    Args:
        metric: What is compared: ``val_bpb``, ``val_loss``.
        rows: All variants: group by group, in each by score, those without a score last.
        baseline: The first group's baseline.
        groups: What may be ranked together; the largest first.
        axes: What the variants differ in.
        common: Dotted configuration that all runs share.
        varying: Dotted keys of what differs, with the variants' values in the order of the rows.
        failures: Runs that did not finish.
        warnings: What weakens the comparison.
        verdict: The result in sentences.
    """

    metric: str
    rows: tuple[Row, ...]
    baseline: str
    groups: tuple[Group, ...]
    axes: tuple[Axis, ...]
    common: Mapping[str, Any]
    varying: Mapping[str, tuple[Any, ...]]
    failures: tuple[Run, ...]
    warnings: tuple[Statement, ...]
    verdict: tuple[Statement, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, in the order of the rows."""
        return tuple(run for row in self.rows for run in row.variant.runs)

    def row(self, name: str) -> Row:
        """The row of a variant.

        Raises:
            KeyError: There is none of that name.
        """
        for row in self.rows:
            if row.variant.name == name:
                return row
        raise KeyError(name)

"""Checks of an expert backend, all against the loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mlpkit.build import build_ffn, seeded
from mlpkit.experts import Experts
from mlpkit.specs import BackendSpec, resolve
from mlpkit.testing.subjects import HIDDEN, Check, Subject, close, must, spec_of

FFNS = ("naive", "gated")  # of plain linears: a backend must be able to run one of them
LOADS = ((3, 0, 5), (8, 0, 0), (1, 1, 1))


def subject(name: str, *, hidden_size: int = HIDDEN, **options: Any) -> Subject:
    """A backend under test."""
    spec = spec_of("backend", name)
    return Subject(
        noun="backend",
        spec=spec,
        make=lambda: resolve(spec.target),
        hidden_size=hidden_size,
        options=options,
    )


def checks(spec: BackendSpec) -> tuple[Check, ...]:
    """The checks that apply."""
    return (
        it_runs_an_ordinary_ffn,
        outputs_and_gradients_are_those_of_the_loop,
        no_rows_and_rows_past_the_last_expert_are_zero,
        a_run_repeats_bit_by_bit,
    )


def stack(subject: Subject, ffn: str, backend: Any) -> Experts:
    """Three experts in float64, the same for every backend."""
    copies = []
    for seed in range(3):
        with seeded(seed, ffn):
            copies.append(build_ffn(ffn, hidden_size=subject.hidden_size, intermediate_size=12))
    return Experts([c.double() for c in copies], backend=backend)


def it_runs_an_ordinary_ffn(subject: Subject) -> None:
    """For a naive or a gated FFN it does not give way to the loop."""
    reasons = [stack(subject, ffn, subject.make()).backend_reason for ffn in FFNS]
    must(not all(reasons), f"it runs none of {', '.join(FFNS)}: {reasons[0]}")


def outputs_and_gradients_are_those_of_the_loop(subject: Subject) -> None:
    """Within 1e-12, for even, uneven and missing loads; an idle expert's gradient is zero."""
    for ffn in FFNS:
        for load in LOADS:
            own, loop = (stack(subject, ffn, kind) for kind in (subject.make(), "loop"))
            got, want = (run(experts, subject, load) for experts in (own, loop))
            close(got, want, f"{ffn}, loads {load}", 1e-12)
            for (name, mine), theirs in zip(own.named_parameters(), loop.parameters(), strict=True):
                must(mine.grad is not None, f"{ffn}, loads {load}: no gradient for {name}")
                assert mine.grad is not None
                assert theirs.grad is not None
                close(mine.grad, theirs.grad, f"{ffn}, loads {load}: gradient of {name}", 1e-12)


def run(experts: nn.Module, subject: Subject, load: tuple[int, ...]) -> Tensor:
    """The output for rows of these loads, after a backward."""
    out: Tensor = experts(subject.rows(sum(load)), torch.tensor(load))
    torch.autograd.backward(out.square().sum())
    return out.detach()


def no_rows_and_rows_past_the_last_expert_are_zero(subject: Subject) -> None:
    """An empty input stays empty; rows that no expert has give zeros."""
    experts = stack(subject, FFNS[0], subject.make())
    empty = experts(subject.rows(0), torch.zeros(3, dtype=torch.int64))
    must(empty.shape == (0, subject.hidden_size), f"no rows give {tuple(empty.shape)}")
    out = experts(subject.rows(6), torch.tensor([2, 0, 2]))
    must(not out[4:].any(), "rows past the last expert's are not zero")


def a_run_repeats_bit_by_bit(subject: Subject) -> None:
    """The same rows give the same bits."""
    experts = stack(subject, FFNS[1], subject.make())
    once, twice = (run(experts, subject, LOADS[0]) for _ in range(2))
    must(torch.equal(once, twice), "two runs differ")

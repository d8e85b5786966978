"""Checks of a balance term, or of a rule that moves the selection bias."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from torch import Tensor

from mlpkit.build import build_ffn
from mlpkit.build.moe import build_balance
from mlpkit.routing import Routing, record_routing
from mlpkit.specs import BalanceSpec
from mlpkit.testing.subjects import HIDDEN, Check, Subject, close, must, spec_of

NUM_EXPERTS, PER_TOKEN, TOKENS = 4, 2, 8


def subject(name: str, *, hidden_size: int = HIDDEN, **options: Any) -> Subject:
    """A balance entry under test."""
    return Subject(
        noun="balance",
        spec=spec_of("balance", name),
        make=lambda: build_balance(name, dict(options)),
        hidden_size=hidden_size,
        options=options,
    )


def checks(spec: BalanceSpec) -> tuple[Check, ...]:
    """The checks that apply: a rule has ``update``, a term is called."""
    rule = hasattr(subject(spec.name).make(), "update")
    own: tuple[Check, ...] = RULE_CHECKS if rule else TERM_CHECKS
    return (*own, it_has_a_coefficient_and_can_be_copied)


def routing_of(logits: Tensor) -> Routing:
    """The softmax routing of logits (T, E) to the two best experts."""
    scores = logits.softmax(-1)
    weight, expert = scores.topk(PER_TOKEN, dim=-1)
    token = torch.arange(len(logits)).repeat_interleave(PER_TOKEN)
    return Routing(token, expert.flatten(), weight.flatten(), PER_TOKEN, logits, scores)


def some_logits(seed: int = 0) -> Tensor:
    """(T, E) in float64."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(TOKENS, NUM_EXPERTS, generator=rng, dtype=torch.float64)


def it_is_one_finite_number_with_a_gradient(subject: Subject) -> None:
    """At least float32, and differentiable in the logits."""
    for dtype in (torch.float64, torch.float32):
        logits = some_logits().to(dtype).requires_grad_()
        value = subject.make()(routing_of(logits))
        must(value.ndim == 0, f"shape {tuple(value.shape)}, not one number")
        must(value.isfinite(), f"the term is {value}")
        must(value.dtype == dtype, f"the term is {value.dtype} for {dtype}")
        value.backward()
        must(logits.grad is not None and logits.grad.isfinite().all(), "no finite gradient")


def padding_weighs_nothing(subject: Subject) -> None:
    """Masked tokens change nothing, and without real tokens the term is 0."""
    term, mask = subject.make(), torch.arange(TOKENS) < TOKENS - 3
    logits, other = some_logits(), some_logits()
    other[~mask] = some_logits(seed=1)[~mask] * 3
    masked = [term(routing_of(values), mask) for values in (logits, other)]
    close(masked[0], masked[1], "other padding gives another term")
    nothing = term(routing_of(logits), torch.zeros(TOKENS, dtype=torch.bool))
    must(float(nothing) == 0.0, f"the term of no real token is {float(nothing)}")


def it_reaches_the_loss_of_a_moe(subject: Subject) -> None:
    """Recorded, it is among the losses, and the router gets its gradient."""
    moe = build_ffn(
        "moe",
        hidden_size=subject.hidden_size,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=PER_TOKEN,
        balance={subject.spec.name: {**subject.options}},
    ).train()
    with record_routing(moe) as record:
        moe(subject.rows(2, 3, dtype=torch.float32))
        losses = record.losses()
    must(subject.spec.name in losses, f"the losses are {sorted(losses)}")
    torch.autograd.backward(losses[subject.spec.name])
    weights = [p for n, p in moe.named_parameters() if "router" in n and p.ndim == 2]
    must(all(w.grad is not None for w in weights), "the router's matrix gets no gradient")


def it_lowers_the_bias_of_busy_experts(subject: Subject) -> None:
    """In place and finite; an expert with fewer tokens ends higher."""
    rule, bias = subject.make(), torch.zeros(NUM_EXPERTS)
    address = bias.data_ptr()
    rule.update(bias, torch.tensor([10, 1, 4, 5]))
    must(bias.data_ptr() == address, "the bias was replaced, not changed in place")
    must(bias.isfinite().all(), f"the bias is {bias.tolist()}")
    must(bias[1] > bias[0], f"after loads 10, 1, 4, 5 the bias is {bias.tolist()}")


def an_even_load_leaves_the_bias_even(subject: Subject) -> None:
    """What is balanced is not moved apart."""
    rule, bias = subject.make(), torch.zeros(NUM_EXPERTS)
    rule.update(bias, torch.full((NUM_EXPERTS,), 7))
    must(bool((bias == bias[0]).all()), f"after an even load the bias is {bias.tolist()}")


def it_has_a_coefficient_and_can_be_copied(subject: Subject) -> None:
    """``coefficient`` is a number; deepcopy and pickle keep it."""
    entry = subject.make()
    must(isinstance(entry.coefficient, int | float), f"coefficient is {entry.coefficient!r}")
    for twin in (copy.deepcopy(entry), pickle.loads(pickle.dumps(entry))):
        must(twin.coefficient == entry.coefficient, "a copy has another coefficient")


TERM_CHECKS: tuple[Check, ...] = (
    it_is_one_finite_number_with_a_gradient,
    padding_weighs_nothing,
    it_reaches_the_loss_of_a_moe,
)
RULE_CHECKS: tuple[Check, ...] = (
    it_lowers_the_bias_of_busy_experts,
    an_even_load_leaves_the_bias_even,
)

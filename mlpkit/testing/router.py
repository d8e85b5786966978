"""Checks of a whole router."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from mlpkit.build import build_ffn
from mlpkit.build.moe import build_router
from mlpkit.experts import Experts
from mlpkit.moe import MoE
from mlpkit.routers import Router
from mlpkit.routing import Routing
from mlpkit.specs import RouterSpec
from mlpkit.testing.modules import MODULE_CHECKS
from mlpkit.testing.subjects import HIDDEN, Check, Subject, close, must, spec_of

NUM_EXPERTS, PER_TOKEN, TOKENS, MANY = 6, 2, 9, 100


def subject(
    name: str,
    *,
    hidden_size: int = HIDDEN,
    num_experts: int = NUM_EXPERTS,
    num_experts_per_tok: int = PER_TOKEN,
    **options: Any,
) -> Subject:
    """A router under test."""
    return Subject(
        noun="router",
        spec=spec_of("router", name),
        make=lambda: build_router(
            name,
            hidden_size=hidden_size,
            num_experts=num_experts,
            num_experts_per_tok=num_experts_per_tok,
            **options,
        ),
        values=lambda router, x: flat(router(x)),
        hidden_size=hidden_size,
        options=options,
    )


def checks(spec: RouterSpec) -> tuple[Check, ...]:
    """The checks that apply."""
    own: list[Check] = [
        choices_are_distinct_experts,
        no_tokens_give_no_choices,
        precision_is_float32_or_finer,
        the_weights_carry_a_gradient,
        a_moe_is_the_weighted_sum_of_its_choices,
    ]
    if spec.position_wise:
        own.append(each_token_is_routed_alone)
    return (*own, *MODULE_CHECKS)


def flat(routing: Routing) -> Tensor:
    """A routing's numbers as one tensor: choices, weights and scores."""
    parts = (routing.expert, routing.weight, routing.logits, routing.scores)
    return torch.cat([part.reshape(-1).double() for part in parts])


def choices_are_distinct_experts(subject: Subject) -> None:
    """Triples within their ranges, finite weights, no expert twice for a token."""
    router, x = subject.build(), subject.rows(TOKENS)
    for mode in (False, True):
        routing, experts = router.train(mode)(x), router.num_experts
        rows = (len(routing.token), len(routing.expert), len(routing.weight))
        must(len(set(rows)) == 1, f"token, expert and weight have {rows} rows")
        must(((routing.expert >= 0) & (routing.expert < experts)).all(), "no such expert")
        must(((routing.token >= 0) & (routing.token < TOKENS)).all(), "no such token")
        pairs = routing.token * experts + routing.expert
        must(len(pairs.unique()) == len(pairs), "a token has the same expert twice")
        must(routing.weight.isfinite().all(), "a weight is not finite")
        for name, table in (("logits", routing.logits), ("scores", routing.scores)):
            must(table.shape == (TOKENS, experts), f"{name} have shape {tuple(table.shape)}")
        if routing.num_experts_per_tok is not None:
            each = torch.arange(TOKENS).repeat_interleave(routing.num_experts_per_tok)
            must(torch.equal(routing.token, each), "the triples are not token by token")


def no_tokens_give_no_choices(subject: Subject) -> None:
    """T = 0 is routed to nothing."""
    routing = subject.build()(subject.rows(0))
    must(len(routing.expert) == 0, f"{len(routing.expert)} choices of no tokens")
    must(routing.logits.shape[0] == 0, "logits of no tokens")


def precision_is_float32_or_finer(subject: Subject) -> None:
    """Weights and scores of a bfloat16 model are float32; those of float64 are float64."""
    for dtype, least in (
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        routing = subject.build(dtype=dtype)(subject.rows(TOKENS, dtype=dtype))
        for name in ("weight", "logits", "scores"):
            found = getattr(routing, name).dtype
            must(torch.promote_types(found, least) == found, f"{name} are {found} for {dtype}")


def the_weights_carry_a_gradient(subject: Subject) -> None:
    """What the experts' weights do reaches every matrix that the router has learned."""
    router = subject.build().train()
    routing = router(subject.rows(MANY))  # a router may give a lone token a constant weight
    matrices = {n: p for n, p in router.named_parameters() if p.ndim == 2 and p.requires_grad}
    if not matrices:
        return
    different = torch.linspace(-1, 1, len(routing.weight), dtype=torch.float64)
    (routing.weight * different).sum().backward()
    for name, matrix in matrices.items():
        must(matrix.grad is not None and matrix.grad.any(), f"{name} gets no gradient")


def each_token_is_routed_alone(subject: Subject) -> None:
    """A token among others and by itself gets the same experts and weights."""
    router, x = subject.build(), subject.rows(TOKENS)
    together = router(x)
    for token in range(TOKENS):
        alone, mine = router(x[token : token + 1]), together.token == token
        must(torch.equal(alone.expert, together.expert[mine]), f"token {token}: other experts")
        close(alone.weight, together.weight[mine], f"token {token}: weights")


def a_moe_is_the_weighted_sum_of_its_choices(subject: Subject) -> None:
    """The MoE around it equals the sum over the triples, and is trained through it."""
    router, x = cast(Router, subject.build()), subject.rows(TOKENS)
    experts = Experts([_expert(subject) for _ in range(router.num_experts)]).double()
    moe = MoE(hidden_size=subject.hidden_size, router=router, experts=experts).eval()
    routing, want = router(x), torch.zeros_like(x)
    for token, expert, weight in zip(routing.token, routing.expert, routing.weight, strict=True):
        given = x[token] * weight if router.apply_on == "input" else x[token]
        out = experts.expert(int(expert))(given)
        want[token] += out if router.apply_on == "input" else weight * out
    close(moe(x), want, "the MoE against the sum")
    moe.train()(x).sum().backward()


def _expert(subject: Subject) -> nn.Module:
    return build_ffn("naive", hidden_size=subject.hidden_size, intermediate_size=12)

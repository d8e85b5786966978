"""Checks of an FFN, and of what the MoE asks of one that is an expert."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from mlpkit.build import build_ffn
from mlpkit.experts import Experts
from mlpkit.experts.copies import check_copies
from mlpkit.moe import MoE
from mlpkit.routers import TopKRouter
from mlpkit.schema import holds_experts
from mlpkit.specs import FFNSpec, resolve
from mlpkit.testing.modules import (
    MODULE_CHECKS,
    backward,
    it_runs_without_storage,
    options_are_those_of_the_constructor,
)
from mlpkit.testing.shapes import SHAPE_CHECKS
from mlpkit.testing.subjects import HIDDEN, Check, Subject, close, must, spec_of

NUM_EXPERTS, PER_TOKEN, STEPS = 4, 2, 3


def subject(name: str, *, hidden_size: int = HIDDEN, **options: Any) -> Subject:
    """An FFN under test."""
    return Subject(
        noun="ffn",
        spec=spec_of("ffn", name),
        make=lambda: build_ffn(name, hidden_size=hidden_size, **options),
        hidden_size=hidden_size,
        options=options,
    )


def checks(spec: FFNSpec) -> tuple[Check, ...]:
    """The checks that apply."""
    own: list[Check] = [gradients_are_right, a_forward_changes_nothing]
    if spec.position_wise:
        own.append(each_position_is_worked_on_alone)
    if not holds_experts(spec):
        own += [copies_differ_in_their_tensors_alone, it_is_an_expert_like_its_dense_copies]
        if spec.num_params is not None:
            own.append(the_parameter_formula_counts_the_module)
        if spec.flops_per_token is not None:
            own.append(the_flops_formula_counts_the_forward)
    skipped = NOT_OF_A_MOE if holds_experts(spec) else ()
    return (*SHAPE_CHECKS, *own, *(check for check in MODULE_CHECKS if check not in skipped))


# Its configuration has names where the constructor takes parts, and which expert runs depends on
# values, which the meta device has not.
NOT_OF_A_MOE = (options_are_those_of_the_constructor, it_runs_without_storage)


def gradients_are_right(subject: Subject) -> None:
    """Against differences, in float64; every parameter gets a gradient, be it zero."""
    module, x = subject.build(), subject.rows(4).requires_grad_()
    learned = {n: p for n, p in module.named_parameters() if p.requires_grad}

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(learned, parameters, strict=True))
        return cast(Tensor, functional_call(module, named, (x,)))

    torch.autograd.gradcheck(run, (x, *learned.values()), fast_mode=True)
    backward(module.train()(x))
    without = [name for name, parameter in learned.items() if parameter.grad is None]
    must(not without, f"no gradient reaches {', '.join(without)}")


def a_forward_changes_nothing(subject: Subject) -> None:
    """Neither tensors nor plain attributes are others after a step in training."""
    module = subject.build().train()
    before = copy.deepcopy(module)
    backward(module(subject.rows(4)))
    check_copies([before, module])
    for name, tensor in before.state_dict().items():
        must(torch.equal(tensor, module.state_dict()[name]), f"forward changes {name}")


def each_position_is_worked_on_alone(subject: Subject) -> None:
    """All positions at once and each by itself give the same."""
    module, x = subject.build(), subject.rows(2, 3)
    alone = torch.stack([module(row) for row in x.flatten(0, 1)]).view_as(x)
    close(module(x), alone, "a position among others; else say position_wise=False")


def copies_differ_in_their_tensors_alone(subject: Subject) -> None:
    """Two copies from different seeds have equal plain attributes, and share no tensor."""
    check_copies([subject.build(0), subject.build(1)])


def it_is_an_expert_like_its_dense_copies(subject: Subject) -> None:
    """Stacked behind a router it equals E separate copies, at the start and after three steps."""
    copies = [subject.build(seed) for seed in range(NUM_EXPERTS)]
    router = TopKRouter(
        hidden_size=subject.hidden_size,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=PER_TOKEN,
    ).double()
    moe = MoE(
        hidden_size=subject.hidden_size,
        router=copy.deepcopy(router),
        experts=Experts(copies),
    ).eval()
    dense = nn.ModuleList([router, *copies]).eval()
    for step in range(STEPS + 1):
        x = subject.rows(6, seed=step)
        got, want = moe(x), dense_mixture(router, copies, x)
        close(got, want, f"the MoE after {step} steps", 1e-9)
        for module, out in ((moe, got), (dense, want)):
            descend(module, out, x)


def dense_mixture(router: TopKRouter, copies: list[nn.Module], x: Tensor) -> Tensor:
    """What a MoE computes, written as a loop over separate FFNs."""
    routing = router(x)
    total = torch.zeros_like(x)
    for index, expert in enumerate(copies):
        mine = routing.expert == index
        token = routing.token[mine]
        if len(token):
            part = routing.weight[mine].unsqueeze(1) * expert(x[token])
            total = total.index_add(0, token, part)
    return total


def descend(module: nn.Module, out: Tensor, target: Tensor) -> None:
    """One step of gradient descent towards the target."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    loss = (out - target.flip(-1)).square().mean()
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.sub_(0.1 * gradient)


def the_parameter_formula_counts_the_module(subject: Subject) -> None:
    """``num_params`` is the number of parameters, for two hidden sizes."""
    spec = cast(FFNSpec, subject.spec)
    assert spec.num_params is not None
    for size in (subject.hidden_size, 3 * subject.hidden_size):
        module = build_ffn(spec.name, hidden_size=size, **subject.options)
        found = sum(p.numel() for p in module.parameters())
        said = resolve(spec.num_params)(size, **subject.options)
        must(said == found, f"num_params({size}) is {said}, and the module has {found}")


def the_flops_formula_counts_the_forward(subject: Subject) -> None:
    """``flops_per_token`` is what torch counts in matrix products, within a hundredth."""
    spec = cast(FFNSpec, subject.spec)
    assert spec.flops_per_token is not None
    said = resolve(spec.flops_per_token)(subject.hidden_size, **subject.options)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        subject.build()(subject.rows(10))
    found = counter.get_total_flops() / 10
    must(abs(said - found) <= 0.01 * found, f"flops_per_token is {said}, torch counts {found:g}")

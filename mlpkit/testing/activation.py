"""Checks of an activation."""

from __future__ import annotations

from typing import Any, cast

import torch

from mlpkit.activations import derivative
from mlpkit.build import build_activation
from mlpkit.specs import ActivationSpec
from mlpkit.testing.modules import MODULE_CHECKS
from mlpkit.testing.shapes import SHAPE_CHECKS
from mlpkit.testing.subjects import HIDDEN, Check, Subject, close, must, spec_of


def subject(name: str, *, hidden_size: int = HIDDEN, **options: Any) -> Subject:
    """An activation under test, on rows of ``hidden_size`` features."""
    return Subject(
        noun="activation",
        spec=spec_of("activation", name),
        make=lambda: build_activation(name, **options),
        hidden_size=hidden_size,
        options=options,
    )


def checks(spec: ActivationSpec) -> tuple[Check, ...]:
    """The checks that apply."""
    own: list[Check] = [gradients_are_right, parameters_are_the_declared_ones]
    if spec.elementwise:
        own.append(each_element_depends_on_itself_alone)
    if spec.elementwise and spec.derivative_target is not None:
        own.append(the_closed_derivative_is_the_gradient)
    if spec.monotone:
        own.append(it_is_monotone)
    return (*SHAPE_CHECKS, *own, *MODULE_CHECKS)


def gradients_are_right(subject: Subject) -> None:
    """Against differences, in float64, with respect to the input and every parameter."""
    module = subject.build()
    x = subject.rows(4).requires_grad_()
    parameters = tuple(module.parameters())
    # the parameters are passed along so that gradcheck moves them; the module reads them itself
    torch.autograd.gradcheck(lambda x, *_: module(x), (x, *parameters), fast_mode=True)


def parameters_are_the_declared_ones(subject: Subject) -> None:
    """The spec's ``parameters`` are the module's, and two instances share none."""
    declared = cast(ActivationSpec, subject.spec).parameters
    first, second = subject.build(), subject.build()
    found = {name for name, _ in first.named_parameters()}
    must(found == set(declared), f"parameters {sorted(found)}, declared {sorted(declared)}")
    shared = {id(p) for p in first.parameters()} & {id(p) for p in second.parameters()}
    must(not shared, "two instances share a parameter")


def each_element_depends_on_itself_alone(subject: Subject) -> None:
    """Changing one element changes that one alone."""
    module, x = subject.build(), subject.rows(4)
    other = x.clone()
    other[1, 2] += 0.5
    same = module(other) == module(x)
    same[1, 2] = True
    must(same.all(), "an element depends on another; say elementwise=False")


def the_closed_derivative_is_the_gradient(subject: Subject) -> None:
    """``derivative_target`` equals autograd in float64."""
    x = subject.rows(50).requires_grad_()
    (gradient,) = torch.autograd.grad(subject.build()(x).sum(), x)
    spec = cast(ActivationSpec, subject.spec)
    close(derivative(spec, x.detach(), **subject.options), gradient, "derivative", 1e-9)


def it_is_monotone(subject: Subject) -> None:
    """On a grid from -8 to 8, as the spec says."""
    grid = torch.linspace(-8, 8, 801, dtype=torch.float64).unsqueeze(1)
    steps = subject.build()(grid.expand(-1, subject.hidden_size)).diff(dim=0)
    must((steps >= -1e-12).all() or (steps <= 1e-12).all(), "it rises and falls")

"""Registered activations as functions of x alone, to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mlpkit.activations import derivative, make_activation
from mlpkit.build import Component
from mlpkit.figures.labels import Words
from mlpkit.plugins import registries
from mlpkit.specs import ActivationSpec

ELEMENTS = 64  # of a vector in which one varies, for functions of several elements


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One activation as functions of x alone.

    Args:
        name: Its name, with the options that were given.
        formula: As its spec has it.
        derivative: The closed form; empty if its spec has none.
        note: What a reader must know of learned or further inputs; empty if nothing.
        function: (N,) float64 to (N,).
        slope: The derivative, (N,) to (N,).
    """

    name: str
    formula: str
    derivative: str
    note: str
    function: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


def curve(component: Component, text: Words) -> Curve:
    """The functions of x of a registered activation.

    Args:
        component: Its name, or a mapping with name and options.
        text: The language of the note.

    Raises:
        UnknownNameError: No activation has the name.
        ActivationOptionError: It has no such option, or refuses its value.
    """
    given: Mapping[str, Any] = {"name": component} if isinstance(component, str) else component
    options = {key: value for key, value in given.items() if key != "name"}
    spec = registries().activation.get(given["name"])
    function, slope = _elementwise(spec, options) if spec.elementwise else _one(spec, options)
    notes = []
    if spec.parameters:
        notes.append(text.learned.format(names=text.separator.join(spec.parameters)))
    if not spec.elementwise:
        notes.append(text.one_element.format(count=ELEMENTS))
    settings = ", ".join(f"{key}={value}" for key, value in options.items())
    return Curve(
        name=f"{spec.name} ({settings})" if settings else spec.name,
        formula=_typeset(spec.formula),
        derivative="" if spec.derivative == "autograd" else _typeset(spec.derivative),
        note=text.pause.join(notes),
        function=function,
        slope=slope,
    )


def _typeset(formula: str) -> str:
    """A formula on one line of the page, with the minus that numbers have."""
    formula = formula.replace("-", "−")
    return formula if len(formula) <= 106 else formula[:105] + "…"


def _elementwise(
    spec: ActivationSpec, options: Mapping[str, Any]
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    module = make_activation(spec, **options).double().eval()

    @torch.no_grad()
    def function(x: Tensor) -> Tensor:
        value: Tensor = module(x.unsqueeze(-1)).squeeze(-1)
        return value

    return function, lambda x: derivative(spec, x.unsqueeze(-1), **options).squeeze(-1).detach()


def _one(
    spec: ActivationSpec, options: Mapping[str, Any]
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """One element of a vector as a function of itself, with the others held."""
    module = make_activation(spec, **options).double().eval()
    level = (torch.arange(1, ELEMENTS, dtype=torch.float64) - 0.5) / (ELEMENTS - 1)
    others = torch.special.ndtri(level)

    def first(x: Tensor) -> Tensor:
        value: Tensor = module(torch.cat([x[:, None], others.expand(len(x), -1)], dim=1))[:, 0]
        return value

    def slope(x: Tensor) -> Tensor:
        point = x.detach().requires_grad_()
        return torch.autograd.grad(first(point).sum(), point)[0]

    return lambda x: first(x).detach(), slope

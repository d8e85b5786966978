"""From a spec or a name to a module, to its derivative, and the mapping ACT2FN."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from mlpkit.activations.precision import ActivationOptionError
from mlpkit.plugins import registries
from mlpkit.registry import UnknownNameError, suggestion
from mlpkit.specs import ActivationSpec, resolve


class NoDerivativeError(ValueError):
    """A derivative was asked of an activation whose outputs each depend on several inputs."""

    exit_code = 2


class Activation(nn.Module):
    """A plain function of a tensor, as a module.

    Args:
        function: The function; it takes a tensor and keyword-only options.
        name: What ``print`` shows.
        options: The options that every call passes on.
    """

    def __init__(
        self,
        *,
        function: Callable[..., Tensor],
        name: str,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.function = function
        self.name = name
        self.options = dict(options)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., I)."""
        return self.function(x, **self.options)

    def extra_repr(self) -> str:
        """The name and the options, for ``print``."""
        return ", ".join([self.name, *(f"{k}={v!r}" for k, v in self.options.items())])


def _options(spec: ActivationSpec, target: Callable[..., Any], given: Mapping[str, Any]) -> None:
    parameters = inspect.signature(target).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    accepted = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for name in given:
        if name not in accepted:
            raise ActivationOptionError(
                f"activation {spec.name!r} has no option {name!r}{suggestion(name, accepted)} "
                f"(options: {', '.join(accepted) or 'none'})"
            )


def _defaults(target: Callable[..., Any]) -> dict[str, Any]:
    return {
        p.name: p.default
        for p in inspect.signature(target).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.default is not p.empty
    }


def make_activation(spec: ActivationSpec, **options: Any) -> nn.Module:
    """Builds a new module from a spec; two calls share no parameter.

    Args:
        spec: The entry.
        options: Its options; the rest keep their defaults.

    Returns:
        An instance of the spec's module class, or its function in an ``Activation``.

    Raises:
        ActivationOptionError: The entry has no such option, or refuses its value.
    """
    target = resolve(spec.target)
    _options(spec, target, options)
    try:
        if inspect.isclass(target):
            return cast(nn.Module, target(**options))
        if options:  # a value out of range is refused here, not in the middle of a forward
            target(torch.zeros(1, 2), **options)
    except (TypeError, ArithmeticError, RuntimeError) as error:
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise ActivationOptionError(
            f"activation {spec.name!r} cannot be built with {given or 'its defaults'}: {error}"
        ) from error
    return Activation(function=target, name=spec.name, options=_defaults(target) | options)


def derivative(spec: ActivationSpec, x: Tensor, **options: Any) -> Tensor:
    """The derivative of an activation at each element, in evaluation mode.

    Args:
        spec: The entry.
        x: The points, any shape, floating point.
        options: The entry's options.

    Returns:
        The closed form where the entry has one, else what autograd says; shape and dtype of x.

    Raises:
        NoDerivativeError: The entry is not elementwise.
        ActivationOptionError: The entry has no such option, or refuses its value.
    """
    if not spec.elementwise:
        raise NoDerivativeError(
            f"activation {spec.name!r} is not elementwise: each output depends on several inputs; "
            "use torch.func.jacrev on the module instead"
        )
    module = make_activation(spec, **options).eval()
    if spec.derivative_target is not None:
        closed: Tensor = resolve(spec.derivative_target)(x, **options)
        return closed
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        return torch.autograd.grad(module.to(x.device)(point).sum(), point)[0]


class ActivationMapping(Mapping[str, nn.Module]):
    """Names and aliases to new modules, read from the registry at each look-up."""

    def __getitem__(self, name: str) -> nn.Module:
        """A new module.

        Raises:
            UnknownNameError: No entry has the name; the nearest one is suggested.
        """
        # as text: a null from a config gets the message that lists the names, like any other
        return make_activation(registries().activation.get(str(name)))

    def __contains__(self, name: object) -> bool:
        return name in registries().activation

    def __iter__(self) -> Iterator[str]:
        specs = registries().activation.list()
        return iter(sorted(name for spec in specs for name in (spec.name, *spec.aliases)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def get(self, name: str, default: Any = None) -> Any:
        """A new module, or the default where no entry has the name."""
        try:
            return self[name]
        except UnknownNameError:
            return default

    def __repr__(self) -> str:
        return f"ACT2FN({len(self)} names)"


ACT2FN = ActivationMapping()

"""Frozen records by which an entry tells the registry about itself; no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

Target = str | Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What every entry of every registry says about itself.

    Args:
        name: The registered name: lower case letters, digits and underscores.
        target: ``"package.module:attribute"``, imported on first use, or the object itself.
        summary: One sentence for lists.
        paper: Where it comes from, as "Author Year, arXiv:number" or a URL.
        aliases: Further names that find the same entry.
        config: A dataclass with the options and their defaults, free of torch. Without it the
            schema is read from the target's signature when the entry is first chosen.
    """

    name: str
    target: Target
    summary: str = ""
    paper: str = ""
    aliases: tuple[str, ...] = ()
    config: type | None = None

    def __post_init__(self) -> None:
        given: object = self.aliases
        if isinstance(given, str):  # its letters would become the aliases
            raise TypeError(f"aliases of {self.name!r} is text; write ({given!r},)")
        object.__setattr__(self, "aliases", tuple(self.aliases))


@dataclass(frozen=True, kw_only=True)
class ActivationSpec(Spec):
    """An activation: an ``nn.Module`` class, or a plain function of a tensor.

    Args:
        formula: The function of x in words of mathematics, e.g. ``"x · sigmoid(x)"``.
        derivative: The closed form of the first derivative, or ``"autograd"``.
        derivative_target: A function of a tensor (and the options) that computes the closed form.
        range: Smallest and largest value as text, e.g. ``"[0, ∞)"``, at default options.
        monotone: Whether it never decreases (or never increases), at default options.
        smooth: Whether the first derivative is continuous everywhere.
        elementwise: Whether each output element depends on its own input element alone.
        parameters: Names of learned parameters; empty for a fixed function.
    """

    formula: str = ""
    derivative: str = "autograd"
    derivative_target: Target | None = None
    range: str = ""
    monotone: bool = False
    smooth: bool = True
    elementwise: bool = True
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FFNSpec(Spec):
    """A feed-forward network ``(..., H) -> (..., H)``: an ``nn.Module`` class or a factory.

    Args:
        width: The option that the budget solver varies; None: it cannot be matched, and says so.
        num_params: A torch-free function ``(hidden_size, **options) -> int``, or where it is;
            None: parameters are counted on the built module.
        flops_per_token: The same for the FLOPs of one token's forward (a multiply-add is 2);
            None: counted on the built module.
        position_wise: Whether each position's output depends on that position alone.
        default_activation: The activation when neither the FFN nor the run names one; None:
            it has no activation.
        family: The more general entry that this one is a special case of: swiglu is "gated" with
            SiLU, so with another activation it is shown as ``gated[gelu]``.
    """

    width: str | None = "intermediate_size"
    num_params: Target | None = None
    flops_per_token: Target | None = None
    position_wise: bool = True
    default_activation: str | None = None
    family: str = ""


@dataclass(frozen=True, kw_only=True)
class RouterSpec(Spec):
    """A whole router ``(T, H) -> Routing``.

    Args:
        formula: How scores become choices and weights.
        position_wise: Whether a token's choice depends on that token alone; False for expert
            choice, which sees the future in a causal model.
        learned: Whether it has weights that a balance term could train.
    """

    formula: str = ""
    position_wise: bool = True
    learned: bool = True


@dataclass(frozen=True, kw_only=True)
class BalanceSpec(Spec):
    """A balance term over what the routers saw, or a rule that updates their selection bias.

    Args:
        formula: The term for one layer.
    """

    formula: str = ""


@dataclass(frozen=True, kw_only=True)
class BackendSpec(Spec):
    """A way to run E stacked experts over tokens sorted by expert."""


@dataclass(frozen=True, kw_only=True)
class DataSpec(Spec):
    """A source of documents to train on."""


def resolve(target: Target) -> Any:
    """Imports what a target names.

    Args:
        target: ``"package.module:attribute"`` or an object, which is returned as it is.

    Raises:
        ValueError: The text has no colon.
        ImportError: The module cannot be imported or lacks the attribute.
    """
    if not isinstance(target, str):
        return target
    module, colon, attribute = target.partition(":")
    if not colon:
        raise ValueError(f"target {target!r} has no ':'; write 'package.module:attribute'")
    try:
        return getattr(import_module(module), attribute)
    except AttributeError as error:
        raise ImportError(f"target {target!r}: {error}") from error

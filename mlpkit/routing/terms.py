"""What a record asks of balance terms, and how it evaluates and weighs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from mlpkit.routing.taps import Entry
from mlpkit.routing.triples import LayersDifferError, Routing, concatenate, flat_mask

POOLED = "pooled"  # the layer name under which a term over all layers at once is listed


class Term(Protocol):
    """What a record asks of a balance term; a term that cannot be called is a bias rule.

    Attributes:
        coefficient: What the term is multiplied with in ``Record.losses``; 0 switches it off.
        over_layers: "mean", "sum", or "pooled" (one value over the tokens of all layers).
    """

    coefficient: float
    over_layers: str

    def __call__(self, routing: Routing, mask: Tensor | None = None) -> Tensor:
        """The term for one layer: a scalar; ``mask`` is (T,) bool, True for a real token."""
        ...


Rows = dict[str, tuple[Term, Tensor]]  # layer name to a term and its raw value there


class NoRouterGradientError(ValueError):
    """A balance term that cannot train the router it was configured for."""

    exit_code = 2


def terms_of(layer: nn.Module) -> dict[str, Term]:
    """The balance terms of a layer that are switched on, without its bias rules."""
    balance = getattr(layer, "balance", None) or {}
    return {
        name: term
        for name, term in balance.items()
        if callable(term) and getattr(term, "coefficient", 0.0) != 0.0
    }


def evaluate(
    name: str, layer: str, term: Term, entries: Sequence[Entry], mask: Tensor | None
) -> Tensor:
    """A term on the routings of one or more calls, checked for its gradient."""
    routings = [entry.routing for entry in entries]
    masks = None if mask is None else torch.cat([flat_mask(mask, r) for r in routings])
    value = term(routings[0] if len(routings) == 1 else concatenate(routings), masks)
    training = any(entry.training for entry in entries)
    if training and torch.is_grad_enabled() and not value.requires_grad:
        raise NoRouterGradientError(
            f"balance term {name!r} of layer {layer!r} carries no gradient: the router is frozen, "
            "or the forward ran under no_grad, as reentrant checkpointing does (use "
            "use_reentrant=False); set its coefficient to 0 to train without it"
        )
    return value


def one_term(name: str, terms: Sequence[Term]) -> Term:
    """The term that layers share when it is pooled over them.

    Raises:
        LayersDifferError: They do not share its coefficient.
    """
    coefficients = sorted({term.coefficient for term in terms})
    if len(coefficients) > 1:
        raise LayersDifferError(
            f"balance term {name!r} is pooled over layers with coefficients {coefficients}; give "
            "them one coefficient, or over_layers: mean"
        )
    return terms[0]


def weighted(rows: Rows) -> Tensor:
    """Coefficient times value, over the layers: their sum where the term says so, else the mean."""
    values = torch.stack([term.coefficient * value for term, value in rows.values()])
    total_wanted = next(iter(rows.values()))[0].over_layers == "sum"
    return values.sum() if total_wanted else values.mean()

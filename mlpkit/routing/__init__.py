"""What routers decided (Routing), a record of it over a model (Record), and its health numbers."""

from mlpkit.routing.health import (
    complementary_collapse,
    confidence,
    dead_experts,
    dropped_share,
    load_cv,
    load_entropy,
    max_violation,
    max_violation_ceiling,
    max_violation_share,
    overlap,
    routing_entropy,
)
from mlpkit.routing.record import Record, ReplayError, plain_name, record_routing
from mlpkit.routing.terms import NoRouterGradientError, Term
from mlpkit.routing.triples import LayersDifferError, MaskShapeError, Routing, concatenate

__all__ = [
    "LayersDifferError",
    "MaskShapeError",
    "NoRouterGradientError",
    "Record",
    "ReplayError",
    "Routing",
    "Term",
    "complementary_collapse",
    "concatenate",
    "confidence",
    "dead_experts",
    "dropped_share",
    "load_cv",
    "load_entropy",
    "max_violation",
    "max_violation_ceiling",
    "max_violation_share",
    "overlap",
    "plain_name",
    "record_routing",
    "routing_entropy",
]

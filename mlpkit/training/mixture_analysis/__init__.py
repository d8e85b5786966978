"""What the experts of a trained model do with validation text, for mixture.json."""

from mlpkit.training.mixture_analysis.analysis import MAX_TOKENS, analyse_mixture
from mlpkit.training.mixture_analysis.counts import (
    TopToken,
    co_activation,
    conditional,
    count_by_category,
    explained_share,
    lift_over_load,
    lift_over_uniform,
    top_tokens,
)
from mlpkit.training.mixture_analysis.gradients import DEAD_RATIO, router_gradients

__all__ = [
    "DEAD_RATIO",
    "MAX_TOKENS",
    "TopToken",
    "analyse_mixture",
    "co_activation",
    "conditional",
    "count_by_category",
    "explained_share",
    "lift_over_load",
    "lift_over_uniform",
    "router_gradients",
    "top_tokens",
]

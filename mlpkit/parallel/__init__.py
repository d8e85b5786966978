"""A run in several processes, on torch's own engine: copies, shards, and experts in between."""

from mlpkit.parallel.contract import FollowingError, OneProcess, Parallel
from mlpkit.parallel.layout import Layout, ParallelError, check_batch, check_experts, layout_of
from mlpkit.parallel.ranks import Ranks, ranks
from mlpkit.parallel.starting import start

__all__ = [
    "FollowingError",
    "Layout",
    "OneProcess",
    "Parallel",
    "ParallelError",
    "Ranks",
    "check_batch",
    "check_experts",
    "layout_of",
    "ranks",
    "start",
]

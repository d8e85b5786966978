"""Routers: topk with the options of the field, and the whole routers beside it."""

from mlpkit.routers.base import Router, RouterError
from mlpkit.routers.expert_choice import ExpertChoiceRouter
from mlpkit.routers.imposed import ForcedRouter, ReplayRouter, UniformRouter, replay_routing
from mlpkit.routers.sparsemixer import SparseMixerRouter
from mlpkit.routers.topk import TopKRouter

__all__ = [
    "ExpertChoiceRouter",
    "ForcedRouter",
    "ReplayRouter",
    "Router",
    "RouterError",
    "SparseMixerRouter",
    "TopKRouter",
    "UniformRouter",
    "replay_routing",
]

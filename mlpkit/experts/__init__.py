"""Experts: E copies of any FFN as one stack, and the backends that run it."""

from mlpkit.experts.auto import Auto
from mlpkit.experts.backends import Backend, Gather, Loop, Padded, UnfitExpertError
from mlpkit.experts.copies import CopiesError
from mlpkit.experts.grouped import Grouped
from mlpkit.experts.groups import ConstantExpert, CopyExpert, ExpertGroups, ZeroExpert
from mlpkit.experts.stack import Experts, UnknownBackendError

__all__ = [
    "Auto",
    "Backend",
    "ConstantExpert",
    "CopiesError",
    "CopyExpert",
    "ExpertGroups",
    "Experts",
    "Gather",
    "Grouped",
    "Loop",
    "Padded",
    "UnfitExpertError",
    "UnknownBackendError",
    "ZeroExpert",
]

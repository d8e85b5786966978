"""FFNs: the contract, and the dense ones that ship."""

from mlpkit.ffns.contract import FeedForward, FFNOptionError
from mlpkit.ffns.gated import ClampedGatedFFN, GatedFFN, OutputGatedFFN
from mlpkit.ffns.low_rank import FactorisedLinear, LowRankFFN
from mlpkit.ffns.naive import NaiveFFN

__all__ = [
    "ClampedGatedFFN",
    "FFNOptionError",
    "FactorisedLinear",
    "FeedForward",
    "GatedFFN",
    "LowRankFFN",
    "NaiveFFN",
    "OutputGatedFFN",
]

"""The Decoder: attention gathers, the FFN works on each position; built from ready parts."""

from mlpkit.model.attention import Attention, RMSNorm
from mlpkit.model.cache import CacheError, KVCache
from mlpkit.model.decoder import Block, Decoder
from mlpkit.model.generation import GenerationError, generate

__all__ = [
    "Attention",
    "Block",
    "CacheError",
    "Decoder",
    "GenerationError",
    "KVCache",
    "RMSNorm",
    "generate",
]

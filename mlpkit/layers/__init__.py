"""Which FFN stands in which layer: slots, patterns, and Hugging Face's spellings of them."""

from mlpkit.layers.hf import SPELLINGS, from_hf
from mlpkit.layers.patterns import (
    DENSE,
    KEY,
    MAIN,
    LayerPatternError,
    Pattern,
    compact,
    layer_slots,
    span_text,
)
from mlpkit.layers.slots import key_of, layers_by_slot, slot_ffns, slots_by_layer

__all__ = [
    "DENSE",
    "KEY",
    "MAIN",
    "SPELLINGS",
    "LayerPatternError",
    "Pattern",
    "compact",
    "from_hf",
    "key_of",
    "layer_slots",
    "layers_by_slot",
    "slot_ffns",
    "slots_by_layer",
    "span_text",
]

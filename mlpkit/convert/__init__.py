"""Weights and names of other projects in and out: Hugging Face, MiniMind; and surgery on models."""

from mlpkit.convert.exporting import Exported, export_model
from mlpkit.convert.families import FAMILIES, Family
from mlpkit.convert.folders import ConversionError, WeightsError
from mlpkit.convert.importing import Imported, read_checkpoint
from mlpkit.convert.layout import LayoutError, Rule
from mlpkit.convert.reading_blocks import load_block

__all__ = [
    "FAMILIES",
    "ConversionError",
    "Exported",
    "Family",
    "Imported",
    "LayoutError",
    "Rule",
    "WeightsError",
    "export_model",
    "load_block",
    "read_checkpoint",
]

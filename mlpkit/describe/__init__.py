"""What a configuration builds: its parts with parameters, FLOPs and memory; widths for budgets."""

from mlpkit.describe.activations import activation_bytes
from mlpkit.describe.comparison import side_by_side
from mlpkit.describe.description import Description
from mlpkit.describe.models import describe
from mlpkit.describe.modules import ModuleDescription, describe_module
from mlpkit.describe.parts import Part
from mlpkit.describe.sizes import Size, Span, count_flops, count_parameters, ffn_size
from mlpkit.describe.solving import UnmatchedError, solve_width, width_key, with_width

__all__ = [
    "Description",
    "ModuleDescription",
    "Part",
    "Size",
    "Span",
    "UnmatchedError",
    "activation_bytes",
    "count_flops",
    "count_parameters",
    "describe",
    "describe_module",
    "ffn_size",
    "side_by_side",
    "solve_width",
    "width_key",
    "with_width",
]

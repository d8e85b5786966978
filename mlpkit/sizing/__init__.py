"""Arithmetic without torch: widths, head sizes, parameters, FLOPs, memory, the solver."""

from mlpkit.sizing.counts import (
    attention_flops,
    attention_params,
    combine_flops,
    gated_flops,
    gated_params,
    linear_params,
    naive_flops,
    naive_params,
    training_flops,
)
from mlpkit.sizing.heads import (
    ModelShapeError,
    check_heads,
    even_head_dim,
    nearest_multiples,
)
from mlpkit.sizing.memory import (
    Memory,
    bytes_text,
    training_memory,
)
from mlpkit.sizing.solving import (
    BudgetError,
    Solution,
    nearest_width,
)
from mlpkit.sizing.widths import (
    LARGEST,
    MULTIPLE,
    WIDTH_RULES,
    WidthError,
    explain_width,
    resolve_width,
    round_steps,
    round_up,
    width_four,
    width_llama,
    width_pi,
    width_two_thirds,
)

__all__ = [
    "LARGEST",
    "MULTIPLE",
    "WIDTH_RULES",
    "BudgetError",
    "Memory",
    "ModelShapeError",
    "Solution",
    "WidthError",
    "attention_flops",
    "attention_params",
    "bytes_text",
    "check_heads",
    "combine_flops",
    "even_head_dim",
    "explain_width",
    "gated_flops",
    "gated_params",
    "linear_params",
    "naive_flops",
    "naive_params",
    "nearest_multiples",
    "nearest_width",
    "resolve_width",
    "round_steps",
    "round_up",
    "training_flops",
    "training_memory",
    "width_four",
    "width_llama",
    "width_pi",
    "width_two_thirds",
]

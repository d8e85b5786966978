"""In what products of rows are computed, and for how many rows."""

from __future__ import annotations

import torch
from torch import Tensor


def computed_in(rows: Tensor) -> torch.dtype:
    """The dtype of products of these rows, which autocast may lower."""
    device = rows.device.type
    if device == "meta" or rows.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return rows.dtype
    return torch.get_autocast_dtype(device)


def compiles_shapes(rows: Tensor) -> bool:
    """Whether a product of a size not seen before has to be compiled first: oneDNN's in bfloat16.

    That takes 2 to 8 ms, up to ten times the product itself, and oneDNN keeps 1,024 of them.
    Experts get some rows more or fewer at each step, and would have most products compiled anew.
    """
    return rows.device.type == "cpu" and computed_in(rows) == torch.bfloat16


def rounded(size: int) -> int:
    """The next larger of few numbers: eight between a power of two and the next.

    Args:
        size: At least 0; up to 16 it stays as it is, above it grows by less than an eighth.
    """
    step = 1 << max(0, (size - 1).bit_length() - 4)
    return -(-size // step) * step

"""A dense FFN cut along its width into narrower ones of its type, whose outputs add up to it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

WITNESSES = 16  # random positions on which parts are compared with the whole
TOLERANCE = 1e-9  # of float64, relative to the largest output


class UpcycleError(ValueError):
    """A dense model that cannot become the mixture that was asked for."""

    exit_code = 2


class Piece(NamedTuple):
    """A range of the width's units.

    Args:
        start: The first unit.
        width: How many.
    """

    start: int
    width: int


def even_pieces(width: int, sizes: Sequence[int]) -> list[Piece]:
    """Pieces of these widths, one after the other.

    Raises:
        UpcycleError: They do not add up to the width.
    """
    if sum(sizes) != width:
        raise UpcycleError(
            f"parts of widths {list(sizes)} do not add up to the FFN's width {width}"
        )
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [Piece(start, size) for start, size in zip(starts, sizes, strict=True)]


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by its name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def cut(name: str, tensor: Tensor, shape: torch.Size, piece: Piece, width: int) -> Tensor:
    """A piece of a tensor: the units of every dimension that is as long as the width.

    A dimension may hold several times the width, as packed gate and up projections do; each is cut.

    Args:
        name: For the message.
        tensor: Of the dense FFN.
        shape: What the narrow FFN has at this place.
        piece: Which units.
        width: All units of the dense FFN.

    Raises:
        UpcycleError: The shapes differ in another way.
    """
    out = tensor
    for dim, (length, wanted) in enumerate(zip(tensor.shape, shape, strict=False)):
        if length == wanted:
            continue
        times, rest = divmod(length, width)
        if tensor.dim() != len(shape) or rest or wanted != times * piece.width:
            raise UpcycleError(
                f"{name!r} is {tuple(tensor.shape)} in the dense FFN of width {width} and "
                f"{tuple(shape)} in an expert of width {piece.width}, which is no part of it"
            )
        rows = out.reshape(*out.shape[:dim], times, width, *out.shape[dim + 1 :])
        out = rows.narrow(dim + 1, piece.start, piece.width).flatten(dim, dim + 1)
    return out


def write_piece(
    target: nn.Module, dense: nn.Module, piece: Piece, width: int, shared_bias: int = 1
) -> None:
    """Writes a piece of a dense FFN into a narrower one.

    Args:
        target: The narrower FFN.
        dense: The dense FFN.
        piece: Which units.
        width: All units of the dense FFN.
        shared_bias: Biases of the output, which every part adds, are divided by it.

    Raises:
        UpcycleError: They have other tensors.
    """
    source, ours = tensors_of(dense), tensors_of(target)
    if source.keys() != ours.keys():
        missing = sorted(source.keys() ^ ours.keys())
        raise UpcycleError(
            f"an expert ({type(target).__name__}) and the dense FFN ({type(dense).__name__}) "
            f"differ in {', '.join(missing[:4])}; the experts must be the run's own FFN"
        )
    divided = output_biases(dense, target) if shared_bias > 1 else []
    with torch.no_grad():
        for name, tensor in source.items():
            value = cut(name, tensor, ours[name].shape, piece, width)
            if name in divided:
                value = value / shared_bias
            ours[name].copy_(value)


def output_biases(dense: nn.Module, narrow: nn.Module) -> list[str]:
    """The biases that no width changes: vectors called bias, as long in both."""
    ours = tensors_of(narrow)
    return [
        name
        for name, tensor in tensors_of(dense).items()
        if tensor.dim() == 1 and name.endswith("bias") and tensor.shape == ours[name].shape
    ]


def bias_shares(
    dense: nn.Module, narrow: Sequence[nn.Module], pieces: Sequence[Piece], hidden_size: int
) -> int:
    """By how much the output biases of parts are divided, so that the parts add up to the whole.

    What a bias is for is not read from its name: both ways are tried on random positions.

    Args:
        dense: The dense FFN.
        narrow: An FFN for each piece, of its width; they stay as they are.
        pieces: The cut.
        hidden_size: H.

    Returns:
        The number of parts, or 1; 0 where the parts add up to the whole in neither way, as with
        a norm over the width.

    Raises:
        UpcycleError: A tensor cannot be cut so.
    """
    whole = copy.deepcopy(dense).double().eval()
    parts = [copy.deepcopy(module).double().eval() for module in narrow]
    x = positions(WITNESSES, hidden_size)
    width = sum(piece.width for piece in pieces)
    with torch.no_grad():
        wanted = whole(x)
        for shares in dict.fromkeys((len(parts), 1)):
            for part, piece in zip(parts, pieces, strict=True):
                write_piece(part, whole, piece, width, shares)
            total = torch.stack([part(x) for part in parts]).sum(0)
            if (total - wanted).abs().max() <= TOLERANCE * wanted.abs().max().clamp(min=1):
                return shares
    return 0


def positions(count: int, hidden_size: int) -> Tensor:
    """Random positions (count, H) in float64, as large as a norm leaves them."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, hidden_size, dtype=torch.float64, generator=generator)

"""Writing safetensors tensor by tensor, so that a model larger than memory can be converted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from mlpkit.convert.folders import INDEX, SINGLE, WeightsError
from mlpkit.convert.layout import Fetch
from mlpkit.convert.sources import DTYPES, Entry, Source

SHARD_BYTES = 5 * 10**9  # transformers' own limit for a file
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Piece(NamedTuple):
    """Tensors that are made and written together.

    Args:
        entries: What they will be.
        make: Makes them.
    """

    entries: dict[str, Entry]
    make: Callable[[], dict[str, Tensor]]


def converted(change: Callable[[Fetch], dict[str, Tensor]], source: Source) -> Piece:
    """What a rule makes of a source's tensors; its shapes are known before anything is read.

    Args:
        change: ``read`` or ``write`` of a rule whose names are written out.
        source: The tensors.
    """
    shapes = change(lambda name: source.entries[name].meta())
    entries = {name: Entry(tuple(t.shape), t.dtype, "") for name, t in shapes.items()}
    return Piece(entries, partial(change, source.get))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes an object as people read it."""
    path.write_text(json.dumps(content, indent=2) + "\n")


def write_weights(folder: Path, pieces: Sequence[Piece], *, shard_bytes: int = SHARD_BYTES) -> None:
    """Writes ``model.safetensors``, or numbered shards and their index.

    Only the tensors of one piece are in memory at a time.

    Args:
        folder: Where; it exists.
        pieces: What.
        shard_bytes: The most bytes of tensors in a file; a single piece may be larger.
    """
    shards = _shards(pieces, shard_bytes)
    if len(shards) == 1:
        write_file(folder / SINGLE, shards[0])
        return
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_file(folder / name, shard)
        where |= {tensor: name for piece in shard for tensor in piece.entries}
    total = sum(_bytes(entry) for piece in pieces for entry in piece.entries.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    write_json(folder / INDEX, index)


def write_file(path: Path, pieces: Sequence[Piece]) -> None:
    """Writes one safetensors file.

    Args:
        path: Where.
        pieces: Its tensors.

    Raises:
        WeightsError: A tensor came out in another shape or precision than its entry says.
    """
    entries = {name: entry for piece in pieces for name, entry in piece.entries.items()}
    header, starts = _header(entries)
    places = {name: len(header) + start for name, start in starts.items()}
    with path.open("wb") as file:
        file.write(header)
        for piece in pieces:
            _write_piece(file, piece, places)
        file.truncate(len(header) + sum(map(_bytes, entries.values())))
        file.flush()
        os.fsync(file.fileno())


def _write_piece(file: BinaryIO, piece: Piece, places: dict[str, int]) -> None:
    """Makes and writes a piece; a function of its own, so that it is gone before the next."""
    for name, tensor in piece.make().items():
        entry = piece.entries[name]
        if (tuple(tensor.shape), tensor.dtype) != (entry.shape, entry.dtype):
            raise WeightsError(
                f"{name} became {tensor.dtype} {tuple(tensor.shape)}, and {entry.dtype} "
                f"{entry.shape} was expected; the checkpoint changed while it was read"
            )
        file.seek(places[name])
        _write_tensor(file, tensor)


def _header(entries: dict[str, Entry]) -> tuple[bytes, dict[str, int]]:
    """The file's first bytes, and where each tensor starts behind them."""
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    places, end = {}, 0
    # Wide numbers first: each then starts at a multiple of its own size, which readers that map
    # the file into memory want.
    for name in sorted(entries, key=lambda name: -entries[name].dtype.itemsize):
        entry, places[name] = entries[name], end
        end += _bytes(entry)
        described[name] = {
            "dtype": NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [places[name], end],
        }
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places


def _write_tensor(file: BinaryIO, tensor: Tensor) -> None:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel():
        if flat.stride(0) != 1:  # of a single element, which counts as contiguous all the same
            flat = flat.clone(memory_format=torch.contiguous_format)
        file.write(flat.view(torch.uint8).numpy().data)


def _shards(pieces: Sequence[Piece], limit: int) -> list[list[Piece]]:
    shards: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces:
        more = sum(map(_bytes, piece.entries.values()))
        if shards[-1] and size + more > limit:
            shards.append([])
            size = 0
        shards[-1].append(piece)
        size += more
    return shards


def _bytes(entry: Entry) -> int:
    return torch.Size(entry.shape).numel() * entry.dtype.itemsize

"""Tensors by name, one at a time, out of a checkpoint: safetensors, MiniMind's .pth, or memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mlpkit.convert.folders import WeightsError, refuse_pickles, weight_files

# As safetensors calls them. Others are quantised, or no weights.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


class Entry(NamedTuple):
    """What is known of a tensor before it is read.

    Args:
        shape: Its shape.
        dtype: Its torch dtype.
        where: The file that holds it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    where: str

    def meta(self) -> Tensor:
        """A tensor of its shape without memory, for arithmetic on shapes."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


class Source(ABC):
    """Tensors by name.

    Attributes:
        label: What to call it in messages.
        entries: Every tensor, in the order of the files.
    """

    label: str
    entries: dict[str, Entry]

    @abstractmethod
    def get(self, name: str) -> Tensor:
        """Reads one tensor.

        Raises:
            WeightsError: It cannot be read.
        """

    def elements(self) -> int:
        """Elements of all tensors together."""
        return sum(torch.Size(entry.shape).numel() for entry in self.entries.values())


@final
class Memory(Source):
    """A state dict.

    Args:
        tensors: Name to tensor.
        label: What to call it in messages.

    Raises:
        WeightsError: Something in it is no tensor of floating-point numbers.
    """

    def __init__(self, tensors: Mapping[Any, Any], *, label: str = "the state dict") -> None:
        self.label = label
        self._tensors: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise WeightsError(
                    f"{label} has a {type(tensor).__name__} under {name!r}; it should be tensors"
                )
            if tensor.dtype not in DTYPES.values():
                raise WeightsError(_foreign_dtype(label, name, str(tensor.dtype)))
            self._tensors[name] = tensor.detach()
        self.entries = {
            name: Entry(tuple(tensor.shape), tensor.dtype, label)
            for name, tensor in self._tensors.items()
        }

    def get(self, name: str) -> Tensor:
        """The tensor itself."""
        return self._tensors[name]


@final
class Safetensors(Source):
    """The safetensors of a folder, whole or in shards; one file is open at a time.

    Args:
        folder: The folder.

    Raises:
        WeightsError: A file is missing, damaged or no safetensors; a tensor is there twice or
            has another kind of number.
    """

    def __init__(self, folder: Path) -> None:
        self.label = str(folder)
        self.entries = {}
        self._files: dict[str, Path] = {}
        self._open: tuple[Path, Any] | None = None
        files = weight_files(folder)
        refuse_pickles(files)
        for path in files:
            for name, entry in _entries(path).items():
                if name in self.entries:
                    raise WeightsError(
                        f"{name} is in {self._files[name]} and again in {path}; which one holds "
                        "cannot be known"
                    )
                self.entries[name], self._files[name] = entry, path

    def get(self, name: str) -> Tensor:
        """Reads one tensor from its shard."""
        path = self._files[name]
        try:
            if self._open is None or self._open[0] != path:
                self._open = None  # closes the last one first: the memory of one shard at most
                self._open = (path, safe_open(path, "pt"))
            tensor: Tensor = self._open[1].get_tensor(name)
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise WeightsError(f"{path}: {name} cannot be read ({error})") from error
        return tensor


def _entries(path: Path) -> dict[str, Entry]:
    """What a file says it holds; the library checks sizes and places against the file's length."""
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {n: (tuple(s.get_shape()), str(s.get_dtype())) for n, s in slices.items()}
    except (SafetensorError, OSError, RuntimeError, ValueError, OverflowError) as error:
        raise WeightsError(
            f"{path} is damaged or cut short ({error}); download it again"
        ) from error
    for name, (_, dtype) in found.items():
        if dtype not in DTYPES:
            raise WeightsError(_foreign_dtype(str(path), name, dtype))
    return {n: Entry(shape, DTYPES[dtype], str(path)) for n, (shape, dtype) in found.items()}


def _foreign_dtype(where: str, name: str, dtype: str) -> str:
    return (
        f"{where}: {name} is {dtype}; weights are {', '.join(DTYPES)}: give the model as it was "
        "before it was quantised"
    )


def torch_file(path: Path) -> Memory:
    """The tensors of a ``.pth``, read so that nothing in it can run.

    Args:
        path: A file that ``torch.save(state_dict)`` wrote, as MiniMind's trainer does.

    Raises:
        WeightsError: It holds anything else, or is damaged.
    """
    try:
        # mmap: a tensor's bytes are read when it is used
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # pickle, zip and torch each raise their own
        reason = str(error).partition("\n")[0]
        raise WeightsError(
            f"{path} cannot be read as tensors alone ({type(error).__name__}: {reason}); give a "
            "file that torch.save(model.state_dict()) wrote"
        ) from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path} holds a {type(found).__name__}; it should be a state dict")
    return Memory(found, label=str(path))

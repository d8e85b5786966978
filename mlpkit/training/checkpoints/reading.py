"""Tensors out of a checkpoint, without running or opening anything that it asks for."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.serialization import _get_layout

from mlpkit.compose import first_line
from mlpkit.training.checkpoints.manifest import METADATA, CheckpointError, entry

SHOWN = 5  # differences in a message; more say nothing new

# All that a list of tensors is made of. torch's own reader unpickles whatever stands there.
ALLOWED: dict[tuple[str, str], Any] = {
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _get_layout,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _StorageInfo,
    **{
        ("torch.distributed.checkpoint.metadata", name): getattr(dcp, name)
        for name in (
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    },
}


class Form(NamedTuple):
    """What must agree for a tensor to be read."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {self.shape}"


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """One of the allowed classes, or a dtype."""
        if (module, name) in ALLOWED:
            return ALLOWED[module, name]
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise CheckpointError(f"{METADATA} asks for {module}.{name}, which no checkpoint needs")


class _Reader(FileSystemReader):
    """torch's reader, for a folder that anyone may have made."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """The list of tensors; every file that it names lies in the folder itself."""
        metadata = _Unpickler(io.BytesIO((Path(self.path) / METADATA).read_bytes())).load()
        if not isinstance(metadata, dcp.Metadata):
            raise CheckpointError(f"{METADATA} holds a {type(metadata).__name__}, not tensors")
        for info in metadata.storage_data.values():
            name = info.relative_path
            if name != Path(name).name or name in ("", "..") or "\\" in name:
                raise CheckpointError(f"{METADATA} asks for the file {name!r} outside its folder")
            if info.transform_descriptors:
                raise CheckpointError(f"{METADATA} asks for a transformation of {name!r}")
            entry(Path(self.path) / name)  # a plain file and no link
        return metadata


def forms(folder: Path) -> dict[str, Form]:
    """Name to shape and dtype of every tensor in a verified checkpoint.

    Raises:
        CheckpointError: The list is damaged, or asks for what it must not.
    """
    return _forms(_guarded(folder, lambda: _Reader(folder).read_metadata()))


def _forms(metadata: Any) -> dict[str, Form]:
    found = {}
    for name, value in metadata.state_dict_metadata.items():
        if not isinstance(value, dcp.TensorStorageMetadata):
            raise CheckpointError(f"{METADATA} has {name!r}, which is no tensor")
        found[name] = Form(tuple(value.size), value.properties.dtype)
    return found


def read_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fills tensors with those of a verified checkpoint; all must agree, and nothing be left.

    Every rank reads what it holds a part of, however many wrote it.

    Args:
        folder: A checkpoint that ``verify`` has passed.
        tensors: Name to the tensor or DTensor to fill.

    Raises:
        CheckpointError: A tensor is missing, left over, or of another shape or type.
    """
    state = {name: tensor.detach() for name, tensor in tensors.items()}
    require_equal(folder, {n: Form(tuple(t.shape), t.dtype) for n, t in state.items()})

    def read() -> None:
        reader, planner = _Reader(folder), DefaultLoadPlanner()
        metadata = reader.read_metadata()
        planner.set_up_planner(state, metadata, is_coordinator=True)
        reader.set_up_storage_reader(metadata, True)
        reader.read_data(planner.create_local_plan(), planner).wait()

    _guarded(folder, read)


def require_equal(folder: Path, wanted: Mapping[str, Form]) -> None:
    """Compares a checkpoint's tensors with those of a model: torch itself would cast and skip.

    Raises:
        CheckpointError: They differ; says how, tensor by tensor.
    """
    stored = forms(folder)
    differences = [
        *(f"{name} is missing in it" for name in wanted if name not in stored),
        *(f"{name} is in it and not in the model" for name in stored if name not in wanted),
        *(
            f"{name} is {stored[name]} in it and {form} in the model"
            for name, form in wanted.items()
            if name in stored and stored[name] != form
        ),
    ]
    if differences:
        more = len(differences) - SHOWN
        raise CheckpointError(
            f"checkpoint {folder} is of another model: {'; '.join(differences[:SHOWN])}"
            + (f"; and {more} more" if more > 0 else "")
        )


def _guarded(folder: Path, function: Any) -> Any:
    """Runs a reader; whatever it stumbles over is one message."""
    try:
        return function()
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {folder}: {error}") from error
    except pickle.UnpicklingError as error:  # whose message tells how to run the code after all
        raise CheckpointError(f"checkpoint {folder} holds something else than tensors") from error
    # Bytes that somebody made can raise anything in a reader of pickles and archives.
    except Exception as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        raise CheckpointError(f"checkpoint {folder} cannot be read: {said}") from error

"""Files of a checkpoint folder that someone else wrote: names stay inside it, JSON is checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
SINGLE = "model.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
PICKLES = (".bin", ".pt", ".pkl", ".ckpt", ".pth")
LARGEST_JSON = 2**28  # bytes; the index of the largest open model has about 20 MB
FIRST_BYTES_OF_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")


class ConversionError(ValueError):
    """A model, or an option of it, that the other side cannot hold; the message says which can."""

    exit_code = 2


class WeightsError(ValueError):
    """Weights that are damaged, missing, dangerous, or not those that their configuration says."""

    exit_code = 4


def inside(folder: Path, name: Any) -> Path:
    """A file of a folder, by the plain name that something in the folder gave.

    Args:
        folder: The folder.
        name: The file's name.

    Raises:
        WeightsError: It leads out of the folder, or is no plain name.
    """
    plain = isinstance(name, str) and name.isprintable() and not name.startswith(".")
    if not plain or not name or "/" in name or "\\" in name or ":" in name:
        raise WeightsError(
            f"{folder} names the file {name!r}, which is no plain file name; do not use this "
            "folder unless you know who made it"
        )
    path: Path = folder / name
    if path.is_symlink() and not _is_hub_blob(folder, path):
        raise WeightsError(
            f"{path} is a link to {path.readlink()}, out of the folder; copy the file into it"
        )
    return path


def _is_hub_blob(folder: Path, path: Path) -> bool:
    """Whether a link is one of the Hugging Face cache: snapshots/<revision>/x → ../../blobs/y."""
    target = path.resolve()
    if target.parent == folder.resolve():
        return True
    return folder.resolve().parent.name == "snapshots" and target.parent == (
        folder.resolve().parent.parent / "blobs"
    )


def read_json(path: Path, error: type[ValueError]) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        path: The file.
        error: What is raised.
    """
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise error(f"{path} has {path.stat().st_size:,} bytes; it is no such file")
        found = json.loads(path.read_bytes())
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, error):
            raise
        raise error(f"{path} is not JSON: {problem}") from problem
    if not isinstance(found, dict):
        raise error(f"{path} holds a {type(found).__name__}; it should be an object")
    return found


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of a folder.

    Raises:
        ConversionError: It is missing, or no object.
        WeightsError: It is a link out of the folder.
    """
    return read_json(inside(folder, CONFIG), ConversionError)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that a folder says its weights are in.

    Raises:
        WeightsError: There are none, or the index leads elsewhere.
    """
    if (folder / INDEX).is_file():
        index = read_json(inside(folder, INDEX), WeightsError)
        named = index.get("weight_map")
        if not isinstance(named, dict) or not named:
            raise WeightsError(f"{folder / INDEX} has no weight_map of tensors to files")
        files = [inside(folder, name) for name in sorted(set(map(_text, named.values())))]
    elif (folder / SINGLE).is_file():
        files = [inside(folder, SINGLE)]
    else:
        raise WeightsError(no_weights(folder))
    for path in files:
        if path.suffix != ".safetensors":
            raise WeightsError(f"{path} is not a .safetensors file; only those are read")
        if not path.is_file():
            raise WeightsError(f"{path} is missing, and {INDEX} names it; download it again")
    return files


def no_weights(folder: Path) -> str:
    """What is wrong with a folder that has no safetensors."""
    if not folder.is_dir():
        return f"{folder} is no folder; give one with {CONFIG} and {SINGLE}"
    pickles = [path.name for path in sorted(folder.iterdir()) if path.suffix in PICKLES]
    if not pickles:
        return f"{folder} has no {SINGLE} and no {INDEX}"
    return (
        f"{folder} has its weights in {pickles[0]}, a pickle, which can run code when it is read; "
        "save the model again with save_pretrained(folder), which writes safetensors"
    )


def refuse_pickles(paths: Sequence[Path]) -> None:
    """Refuses a pickle under the name of safetensors, before anything reads it.

    Raises:
        WeightsError: One is a pickle.
    """
    for path in paths:
        with path.open("rb") as file:
            start = file.read(4)
        if start.startswith(FIRST_BYTES_OF_PICKLES):
            raise WeightsError(
                f"{path} is a pickle, not safetensors: reading one can run code, and it was not "
                "read; do not use this folder"
            )


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise WeightsError(f"{INDEX} gives {name!r} as the file of a tensor; it should be a name")
    return name

"""What makes a folder a checkpoint: a manifest with size and sha256 of every file in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

MANIFEST, STATE, METADATA = "manifest.json", "state.json", ".metadata"
STEP = re.compile(r"step_(0|[1-9]\d*)")
FORMAT = 1  # of the folder; a reader refuses a higher one
LIMIT = 64_000_000  # bytes of a JSON file; that of a large model has some thousand


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, or must not be read."""

    exit_code = 4


def write_manifest(folder: Path) -> None:
    """Lists every file of a folder, and brings all of it to the disk."""
    files = {path.name: entry(path) for path in sorted(folder.iterdir())}
    write_json(folder / MANIFEST, {"format": FORMAT, "files": files})
    sync_folder(folder)


def verify(folder: Path) -> None:
    """Compares every file of a checkpoint with its manifest; nothing is deserialised before.

    Args:
        folder: A checkpoint, ``…/step_N``.

    Raises:
        CheckpointError: Something is damaged, missing, or does not belong there; says which file.
    """
    require_folder(folder)
    content = read_json(folder, MANIFEST)
    if content.get("format") != FORMAT or not isinstance(content.get("files"), dict):
        raise CheckpointError(
            f"{folder / MANIFEST} is not of format {FORMAT}; this mlpkit reads no other"
        )
    listed, found = set(content["files"]) | {MANIFEST}, {path.name for path in folder.iterdir()}
    if listed != found:
        missing, foreign = sorted(listed - found), sorted(found - listed)
        what = f"lacks {missing[0]}" if missing else f"holds {foreign[0]}, which is foreign"
        raise CheckpointError(f"checkpoint {folder} {what}")
    for name, expected in content["files"].items():
        if (actual := entry(folder / name)) != expected:
            raise CheckpointError(f"{folder / name} is damaged: {_difference(actual, expected)}")


def _difference(actual: dict[str, Any], expected: Any) -> str:
    size = expected.get("bytes") if isinstance(expected, dict) else None
    if actual["bytes"] != size:
        return f"it has {actual['bytes']:,} bytes, {size} were written"
    return "its sha256 is not that of what was written"


def entry(path: Path) -> dict[str, Any]:
    """Size and sha256 of a file.

    Raises:
        CheckpointError: It is a link or no file, or cannot be read.
    """
    require_file(path)
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": path.stat().st_size, "sha256": digest}
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def require_file(path: Path) -> None:
    """Refuses what would lead out of a checkpoint.

    Raises:
        CheckpointError: It is a link, or no file.
    """
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        raise CheckpointError(f"checkpoint {path.parent} lacks {path.name}: {error}") from error
    if not stat.S_ISREG(mode):
        kind = "a link" if stat.S_ISLNK(mode) else "no file"
        raise CheckpointError(f"{path} is {kind}; a checkpoint holds plain files alone")


def require_folder(folder: Path) -> None:
    """Refuses what is no checkpoint.

    Raises:
        CheckpointError: It is missing, no folder, a link, or without a manifest.
    """
    if folder.is_symlink() or not folder.is_dir():
        kind = "a link" if folder.is_symlink() else "no folder"
        raise CheckpointError(f"checkpoint {folder} is {kind}; give …/checkpoints/step_N of a run")
    if not (folder / MANIFEST).is_file():
        raise CheckpointError(f"{folder} is not a whole checkpoint: it has no {MANIFEST}")


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of a checkpoint.

    Raises:
        CheckpointError: It is missing, a link, too large or no JSON object.
    """
    path = folder / name
    require_file(path)
    try:
        if path.stat().st_size > LIMIT:
            raise ValueError(f"more than {LIMIT:,} bytes")
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("no object")
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a new file and brings it to the disk."""
    with path.open("x") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Brings a folder's entries to the disk: without it a rename can be lost with the power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

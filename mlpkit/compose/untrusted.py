"""Files that somebody else may have made: plain ones alone, and YAML that cannot grow."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import yaml

LARGEST_CONFIG, MAX_DEPTH = 1_000_000, 40  # a real one has 3 kB and a depth of 5
LARGEST = 256_000_000  # bytes of any other file of a run; a million lines of metrics have fewer

# libyaml is ten times faster than the loader in Python; not every platform has it
SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def require_plain_file(path: Path, *, largest: int = LARGEST) -> None:
    """Refuses what leads out of its folder, as a link does, or has no end, as a pipe may.

    Args:
        path: The file.
        largest: The most bytes that it may have.

    Raises:
        OSError: There is none.
        ValueError: It is no plain file, or a larger one.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise ValueError(f"it is a link to {os.readlink(path)!r}; put the file in its place")
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no plain file")
    if found.st_size > largest:
        raise ValueError(f"it has {found.st_size:,} bytes, and at most {largest:,} are read")


def require_plain_yaml(text: str) -> None:
    """Refuses what grows without measure when it is built: aliases, and nesting without end.

    Args:
        text: A configuration as it was saved.

    Raises:
        ValueError: It has one, or is nested too deep.
        YAMLError: It is no YAML.
    """
    depth = 0
    for event in yaml.parse(text, Loader=SAFE_LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it has the alias *{event.anchor}; a saved configuration has none")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")

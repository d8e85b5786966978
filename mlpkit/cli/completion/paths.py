"""Paths that begin with a word."""

from __future__ import annotations

import os
from pathlib import Path


def paths(word: str) -> list[str]:
    """The paths that begin with a word, folders with a slash behind; hidden ones when asked for."""
    parent, start = os.path.split(word)
    folder = Path(parent or ".").expanduser()
    found = sorted(p for p in folder.iterdir() if p.name.startswith(start))
    return [
        os.path.join(parent, p.name) + "/" * p.is_dir()
        for p in found
        if start.startswith(".") or not p.name.startswith(".")
    ]

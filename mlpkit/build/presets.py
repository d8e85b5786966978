"""Presets by name: a family's FFN or router as the YAML of conf/ or of a plugin gives it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlpkit.build.parts import plain, split
from mlpkit.compose import compose, conf_dir
from mlpkit.lint import CODES
from mlpkit.plugins import presets, registries
from mlpkit.registry import NAME

GROUPS = {"ffn": "ffn", "router": "ffn/router"}


def with_preset(noun: str, name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The entry and the options that a name means, where it is a preset's.

    Args:
        noun: "ffn" or "router".
        name: An entry's name, or a preset's such as "mixtral".
        options: Further options, which win over the preset's.

    Returns:
        The same, if it is an entry or nothing known.
    """
    if registries().by_noun()[noun].has(name) or not _is_preset(GROUPS[noun], name):
        return name, options
    # what a family did is built as it was; a run's configuration is where its traps are told
    allowed = f"lint.allow=[{','.join(CODES)}]"
    chosen = [f"ffn={name}"] if noun == "ffn" else ["ffn=moe", f"ffn/router={name}"]
    ffn = plain(compose([*chosen, allowed]).ffn)
    return split(ffn if noun == "ffn" else ffn["router"], options)


def with_router_preset(options: dict[str, Any]) -> dict[str, Any]:
    """An FFN's options, in which a router that is a preset's name is the entry that it means."""
    router = options.get("router")
    if not isinstance(router, str | Mapping):
        return options
    name, given = split(router, {})
    entry, own = with_preset("router", name, given)
    return options if entry == name else {**options, "router": {"name": entry, **own}}


def _is_preset(group: str, name: str) -> bool:
    if not NAME.match(name):  # a path would leave the folder
        return False
    folders = [Path(conf_dir()), *(folder for _, folder in presets())]
    return any((folder / group / f"{name}.yaml").is_file() for folder in folders)

"""``mlpkit plugins``: what became of each plugin; exit code 3 where one failed; no torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlpkit.cli.printing import print_json, print_table
from mlpkit.compose import GROUPS, conf_dir
from mlpkit.plugins import PluginStatus, load_environment, preset_names


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints a row for each plugin; strict mode changes nothing here, for it is what to look at."""
    loaded = load_environment()
    rows = [row_of(status) for status in loaded.statuses]
    shadowed = shadowed_presets(loaded.statuses)
    if options.json:
        print_json({"plugins": rows, "shadowed_presets": shadowed})
    else:
        print_rows(rows)
        for line in shadowed:
            print(f"note: {line}")
    return 3 if any(row["state"] == "failed" for row in rows) else 0


def row_of(status: PluginStatus) -> dict[str, Any]:
    """A status as plain values."""
    return {
        "name": status.name,
        "distribution": status.provider.distribution,
        "version": status.provider.version,
        "entry_point": status.target,
        "state": status.state,
        "reason": status.reason,
        "provides": list(status.provides),
        "would_provide": list(status.claims),
    }


def shadowed_presets(statuses: Sequence[PluginStatus]) -> list[str]:
    """A line for each preset that is never used, because its name is taken.

    Args:
        statuses: The plugins in the order of loading.
    """
    folder = Path(conf_dir())
    owners = {name: "mlpkit" for name in preset_names(folder)}
    for status in statuses:
        for entry in status.provides:
            noun, _, name = entry.partition(":")
            if noun != "preset":
                owners |= {f"{group}/{name}": str(status.provider) for group in groups_of(noun)}
    lines = []
    for status in statuses:
        for preset in (name for folder in status.presets for name in preset_names(folder)):
            if preset in owners:
                lines.append(
                    f"the preset {preset} of {status.provider} is never used: {owners[preset]} "
                    "has one of this name"
                )
            owners.setdefault(preset, str(status.provider))
    return lines


def groups_of(noun: str) -> list[str]:
    """The configuration groups that an extension point fills."""
    return [group for group, filled_by in GROUPS.items() if filled_by == noun]


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Prints what became of each plugin, and what it provides or would."""
    columns = ("plugin", "distribution", "state", "provides, or why not")
    cells = [
        (row["name"], f"{row['distribution']} {row['version']}".strip(), row["state"], told(row))
        for row in rows
    ]
    print_table(columns, cells, whole=("plugin", "state"))


def told(row: dict[str, Any]) -> str:
    """Why a plugin is not there or only in part, and its entries; a line each."""
    lines = [row["reason"]] if row["reason"] else []
    lines += [shortened(row["provides"])] if row["provides"] else []
    lines += [f"(would give {shortened(row['would_provide'])})"] if row["would_provide"] else []
    return "\n".join(lines)


def shortened(provides: Sequence[str], limit: int = 6) -> str:
    """The entries by their number where there are many: ``ffn:a, ffn:b``, or ``69 activation``."""
    if len(provides) <= limit:
        return ", ".join(provides)
    nouns = [entry.partition(":")[0] for entry in provides]
    return ", ".join(f"{nouns.count(noun)} {noun}" for noun in dict.fromkeys(nouns))

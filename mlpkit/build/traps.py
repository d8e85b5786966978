"""The known traps of an FFN that a call builds: no check of a configuration has seen it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from mlpkit.configs.moe import moe_options
from mlpkit.lint import Finding, lint_ffn
from mlpkit.plugins import registries
from mlpkit.schema import holds_experts


def is_meant(given: Mapping[str, Any]) -> bool:
    """Whether a call's options spell out what makes the trap: then it is walked into knowingly."""
    router = given.get("router")
    return isinstance(router, Mapping) and "norm_topk_prob" in router


def new_traps(entry: str, given: Mapping[str, Any], preset: Mapping[str, Any]) -> list[Finding]:
    """The traps that a call walks into, without those of its preset: families are as they were.

    Args:
        entry: The FFN's registered name.
        given: The options of the call.
        preset: Those of the preset that it names; empty: it names none.
    """
    if not holds_experts(registries().ffn.get(entry)):
        return []
    known = {finding.code for finding in _traps(entry, preset)} if preset else set()
    return [f for f in _traps(entry, {**preset, **given}) if f.code not in known]


def _traps(entry: str, options: Mapping[str, Any]) -> list[Finding]:
    moe = moe_options(options)
    if isinstance(moe["router"], nn.Module):  # a finished part has no options to look at
        return []
    return lint_ffn({"name": entry, **moe}, registries())

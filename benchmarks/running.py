"""The parts of the benchmark and how they run: one after the other, printed as they come."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from .cases import Case, Effort
from .clock import can_tell
from .machine import device, facts, peaks
from .picture import drawn
from .printing import heading, lines, write_json

PARTS = {
    "ffn": ("layers", "dense FFN layers"),
    "moe": ("mixtures", "MoE layers, every backend"),
    "steps": ("steps", "whole training steps"),
    "generation": ("generation", "generation with a cache"),
    "startup": ("startup", "start-up, composing, a job of a sweep"),
    "memory": ("memory", "peak memory of a training step"),
    "growth": ("growth", "growth with tokens, experts, layers"),
    "backends": ("backends", "fits the prices of the auto backend"),
}
DEFAULT = tuple(part for part in PARTS if part != "backends")


def run(
    parts: Sequence[str],
    effort: Effort,
    *,
    json_path: Path | None = None,
    figure: Path | None = None,
    say: Callable[[str], None] = print,
) -> list[Case]:
    """Runs parts and writes what was asked for, after each part: a long run can be stopped.

    Args:
        parts: Names of ``PARTS``; none: all that measure against targets.
        effort: How much to measure.
        json_path: Where everything is written.
        figure: Where the ratios are drawn; ends in .svg.
        say: Takes each printed line.

    Returns:
        Every case.
    """
    torch.manual_seed(0)
    machine = facts()
    top = peaks(64, 2, 1.0) if effort.quick else peaks(2048, effort.rounds, effort.budget)
    for line in heading(machine, top):
        say(line)
    if device() == "cpu" and not can_tell():
        say("this system does not say when others hold the processor: nothing is discarded")
    cases: list[Case] = []
    for part in parts or DEFAULT:
        module = importlib.import_module(f".{PARTS[part][0]}", __package__)
        for case in module.run(effort):
            cases.append(case)
            for line in lines(case, top):
                say(line)
        if json_path is not None:
            write_json(json_path, cases, machine, top)
        if figure is not None:
            drawn(cases).save(figure)
    return cases

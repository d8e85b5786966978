"""Peak memory of a training step of a mixture, counted allocation by allocation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from .cases import Case, Effort
from .clock import Call
from .layers import said, sizes, step, windows
from .machine import device, dtypes
from .mixtures import FLOOR, OURS, SHAPES, TINY, contenders

TOKENS, FEW = 2048, 8


def run(effort: Effort) -> Iterator[Case]:
    """Counts what forward and backward hold at most beyond weights and input."""
    tokens = FEW if effort.quick else TOKENS
    for shape in TINY if effort.quick else SHAPES:
        for dtype in dtypes():
            layers, missing = contenders(shape, dtype, tokens, True)
            values = {
                name: float(peak(layer, step(layer, windows(shape.hidden, tokens, dtype), True)))
                for name, layer in layers.items()
            }
            words = said(shape.hidden, shape.width, tokens, dtype, True)
            yield Case(
                part="memory",
                title=f"peak memory, E {shape.experts}, K {shape.per_token}, {words}",
                values=values,
                unit="B",
                facts=sizes(shape.hidden, shape.width, tokens, dtype, True),
                ours=OURS,
                floor=FLOOR,
                target=None if effort.quick else 1.0,
                missing=missing,
            )


def peak(layer: nn.Module, call: Call) -> int:
    """Bytes that a second call holds at most beyond what was there before it, gradients included.

    On a CPU torch's profiler tells every allocation; the process's own size would also count
    what the system's allocator keeps from earlier contenders.

    Args:
        layer: What is called.
        call: A forward and a backward.
    """
    call()
    # The profiler knows no sizes of blocks from before it, and guesses them when they are freed.
    layer.zero_grad(set_to_none=True)
    if device() == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most

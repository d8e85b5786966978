"""How time grows with tokens, layers and experts: the exponent of the power law it follows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from mlpkit.build import build_model

from .cases import Case, Effort
from .clock import Call, Timing, fastest
from .layers import step, windows
from .machine import device
from .mixtures import Shape, ours

TOKENS = (1024, 2048, 4096, 8192)
EXPERTS = (8, 16, 32, 64)
LAYERS = (2, 4, 8)


def run(effort: Effort) -> Iterator[Case]:
    """Times forward and backward over each size, the others fixed."""
    small = effort.quick
    width, tokens = (16, 8) if small else (256, 2048)
    yield grown(
        "tokens",
        {n: layer_step(Shape(width, width, 8, 2), n) for n in ((8, 16) if small else TOKENS)},
        effort,
    )
    yield grown(
        "experts",
        {n: layer_step(Shape(width, width, n, 2), tokens) for n in ((4, 8) if small else EXPERTS)},
        effort,
    )
    yield grown(
        "layers", {n: model_step(n, small) for n in (LAYERS[:2] if small else LAYERS)}, effort
    )


def grown(what: str, calls: Mapping[int, Call], effort: Effort) -> Case:
    """One case: seconds at each size, and the exponent over them."""
    named = {f"mlpkit {what} {size}": call for size, call in calls.items()}
    timings: dict[str, Timing] = fastest(
        named, rounds=effort.rounds, budget=effort.budget, device=device()
    )
    seconds = [timing.best for timing in timings.values()]
    power = exponent(list(calls), seconds)
    return Case(
        part="growth",
        title=f"growth with {what}: seconds ~ {what}^{power:.2f}",
        values={name: timing.best for name, timing in timings.items()},
        facts={"exponent": power, "over": what},
        kept=sum(timing.kept for timing in timings.values()),
        discarded=sum(timing.discarded for timing in timings.values()),
    )


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of log seconds over log size, by least squares; 1 is linear growth.

    Args:
        sizes: Two or more, above 0.
        seconds: One for each.
    """
    x, y = [math.log(size) for size in sizes], [math.log(second) for second in seconds]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - middle_x) ** 2 for a in x)


def layer_step(shape: Shape, tokens: int) -> Call:
    """Forward and backward of a mixture."""
    layer = ours(shape, "auto").to(device())
    return step(layer, windows(shape.hidden, tokens, torch.float32), True)


def model_step(layers: int, small: bool) -> Call:
    """Forward and backward of a dense model."""
    hidden, length = (16, 8) if small else (128, 512)
    size = [f"model.hidden_size={hidden}", f"model.num_layers={layers}"]
    model = build_model([*size, "model.num_attention_heads=2", "model.num_key_value_heads=1"])
    model.to(device())
    tokens = torch.randint(0, 256, (2, length), device=device())

    def call() -> None:
        model.zero_grad()
        model(tokens).sum().backward()

    return call

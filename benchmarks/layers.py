"""Dense FFN layers: mlpkit against the bare module and transformers, as a share of the peak."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mlpkit.build import build_ffn

from .cases import Case, Effort, from_timings
from .clock import Call, fastest
from .machine import device, dtypes, short
from .peers import SwiGLU, first, transformers_ffn

SIZES = ((512, 1408, 2048), (1024, 2752, 2048))  # H, I, tokens
TINY = ((16, 32, 8),)
FFN_TARGET = 1.02  # what a framework may cost over the bare module


def run(effort: Effort) -> Iterator[Case]:
    """Times a SwiGLU in each way."""
    for hidden, width, tokens in TINY if effort.quick else SIZES:
        for dtype in dtypes():
            layers, missing = built(
                {
                    "mlpkit": lambda h=hidden, w=width: build_ffn(
                        "swiglu", hidden_size=h, intermediate_size=w
                    ),
                    "bare module": lambda h=hidden, w=width: SwiGLU(h, w),
                    "transformers": lambda h=hidden, w=width: transformers_ffn(h, w),
                },
                dtype,
            )
            for backward in (False, True):
                yield from_timings(
                    timed_layers(layers, hidden, tokens, dtype, backward, effort),
                    part="ffn",
                    title=f"SwiGLU, {said(hidden, width, tokens, dtype, backward)}",
                    facts=sizes(hidden, width, tokens, dtype, backward),
                    ours="mlpkit",
                    target=FFN_TARGET if backward else None,
                    flops=products(hidden, width, tokens, backward),
                    missing=missing,
                )


def built(
    makers: Mapping[str, Callable[[], nn.Module]], dtype: torch.dtype
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Builds layers with ordinary values, and says which could not be built and why."""
    layers, missing = {}, {}
    for name, make in makers.items():
        try:
            layer = make()
        except (ImportError, ValueError) as error:
            missing[name] = f"{type(error).__name__}: {error}"
            continue
        for parameter in layer.parameters():  # transformers leaves some as they come from memory
            nn.init.normal_(parameter, std=0.02)
        layers[name] = layer.to(device(), dtype)
    return layers, missing


def timed_layers(
    layers: Mapping[str, nn.Module],
    hidden: int,
    tokens: int,
    dtype: torch.dtype,
    backward: bool,
    effort: Effort,
) -> Any:
    """Timings of layers on the same tokens, other ones at each call."""
    calls = {
        name: step(layer, windows(hidden, tokens, dtype), backward)
        for name, layer in layers.items()
    }
    with torch.set_grad_enabled(backward):
        return fastest(calls, rounds=effort.rounds, budget=effort.budget, device=device())


def windows(hidden: int, tokens: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """Inputs (1, tokens, H) without end, the same ones for each contender.

    A mixture's experts get some tokens more or fewer each time, as in training. On a CPU that
    counts: a product in bfloat16 of a size not seen before is compiled first.
    """
    random = torch.Generator().manual_seed(0)
    pool = torch.randn(4 * tokens, hidden, generator=random).to(device(), dtype)
    while True:
        start = int(torch.randint(3 * tokens + 1, (), generator=random))
        yield pool[start : start + tokens].unsqueeze(0)


def step(layer: nn.Module, inputs: Iterator[Tensor], backward: bool) -> Call:
    """A forward, or a forward and a backward that writes fresh gradients, as after zero_grad."""
    if not backward:
        return lambda: layer(next(inputs))
    parameters = list(layer.parameters())

    def call() -> None:
        for parameter in parameters:
            parameter.grad = None
        x = next(inputs).detach().requires_grad_()
        out = first(layer(x))
        out.backward(x.detach())  # any numbers will do

    return call


def products(hidden: int, width: int, tokens: int, backward: bool) -> float:
    """FLOPs of a SwiGLU's matrix products: three, and twice as many again in the backward."""
    return 2.0 * 3 * hidden * width * tokens * (3 if backward else 1)


def said(hidden: int, width: int, tokens: int, dtype: torch.dtype, backward: bool) -> str:
    """The sizes in words."""
    what = "forward + backward" if backward else "forward"
    return f"H {hidden}, I {width}, {tokens:,} tokens, {short(dtype)}, {what}"


def sizes(
    hidden: int, width: int, tokens: int, dtype: torch.dtype, backward: bool
) -> dict[str, Any]:
    """The sizes for programs."""
    return {
        "hidden_size": hidden,
        "intermediate_size": width,
        "tokens": tokens,
        "dtype": short(dtype),
        "backward": backward,
    }

"""MoE layers over experts, tokens and dtypes: every backend against every peer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from mlpkit.build import build_ffn

from .cases import Case, Effort, from_timings
from .layers import built, products, said, sizes, timed_layers
from .machine import device, dtypes, short
from .peers import IMPLEMENTATIONS, MaskedLoop, SwiGLU, first, share_weights, transformers_moe

BACKENDS = ("auto", "loop", "grouped", "padded", "gather")
OURS, FLOOR = "mlpkit auto", "dense of equal FLOPs"
ROOM = 1 << 30  # bytes of gathered weights that are still tried
# transformers' eager way fills the whole gradient of the weights once per expert
SLOW = 64


class Shape(NamedTuple):
    """A mixture: H, I of an expert, E and K."""

    hidden: int
    width: int
    experts: int
    per_token: int


SHAPES = (Shape(512, 1408, 8, 2), Shape(512, 256, 64, 8))
TOKENS = (1, 32, 2048, 16384)
TINY, FEW = (Shape(16, 16, 4, 2),), (1, 8)


def run(effort: Effort) -> Iterator[Case]:
    """Times the mixtures in each way."""
    for shape in TINY if effort.quick else SHAPES:
        for dtype in dtypes():
            for tokens in FEW if effort.quick else TOKENS:
                for backward in (False, True):
                    if backward and tokens < FEW[-1] * 8 and not effort.quick:
                        continue  # nobody trains on so few
                    yield measured(shape, dtype, tokens, backward, effort)


def measured(shape: Shape, dtype: torch.dtype, tokens: int, backward: bool, effort: Effort) -> Case:
    """One case: all contenders that these sizes allow, with the same weights and tokens."""
    layers, missing = contenders(shape, dtype, tokens, backward)
    timings = timed_layers(layers, shape.hidden, tokens, dtype, backward, effort)
    active = shape.width * shape.per_token
    words = said(shape.hidden, shape.width, tokens, dtype, backward)
    return from_timings(
        timings,
        part="moe",
        title=f"E {shape.experts}, K {shape.per_token}, {words}",
        facts={
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.per_token,
            **sizes(shape.hidden, shape.width, tokens, dtype, backward),
        },
        ours=OURS,
        floor=FLOOR,
        target=target(shape, dtype, tokens, backward),
        flops=products(shape.hidden, active, tokens, backward),
        missing=missing,
    )


def contenders(
    shape: Shape, dtype: torch.dtype, tokens: int, backward: bool
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The layers by name, and which of them cannot run and why."""
    rows = tokens * shape.per_token
    gathered = rows * 3 * shape.hidden * shape.width * dtype.itemsize
    makers: dict[str, Any] = {
        f"mlpkit {backend}": lambda backend=backend: ours(shape, backend)
        for backend in BACKENDS
        if backend != "gather" or gathered <= ROOM
    }
    for name in IMPLEMENTATIONS:
        eager = name == "eager" and backward and shape.experts >= SLOW
        if not eager and (name != "batched_mm" or gathered <= ROOM):
            makers[f"transformers {name}"] = lambda name=name: transformers_moe(name, *shape)
    makers["masked loop (MiniMind)"] = lambda: MaskedLoop(*shape)
    makers[FLOOR] = lambda: SwiGLU(shape.hidden, shape.width * shape.per_token)
    layers, missing = built(makers, dtype)
    model = layers[OURS]
    for name, layer in layers.items():
        if name.startswith("mlpkit"):
            layer.load_state_dict(model.state_dict())
        elif name != FLOOR:
            share_weights(model, layer)
    missing.update(dropped_that_fail(layers, shape, dtype))
    return layers, missing


def dropped_that_fail(
    layers: dict[str, nn.Module], shape: Shape, dtype: torch.dtype
) -> dict[str, str]:
    """Takes out what cannot run here, or computes something else; says why.

    A peer that is fast and wrong is no peer: all have the same weights, and must agree.
    """
    x = torch.randn(1, 4, shape.hidden, device=device(), dtype=dtype)
    dropped = {}
    with torch.no_grad():
        want = first(layers[OURS](x)).float()
        for name in [n for n in layers if n not in (OURS, FLOOR)]:
            try:
                got = first(layers[name](x)).float()
            except (RuntimeError, ValueError) as error:
                dropped[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
                del layers[name]
                continue
            off = float((got - want).norm() / want.norm())
            if not off < (1e-4 if dtype == torch.float32 else 5e-2):
                dropped[name] = f"its output is {off:.1e} away from mlpkit's with the same weights"
                del layers[name]
    return dropped


def ours(shape: Shape, backend: str) -> nn.Module:
    """The mixture of SwiGLUs that mlpkit builds."""
    options = {
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.per_token,
        "expert": {"name": "swiglu", "intermediate_size": shape.width},
        "backend": backend,
    }
    return build_ffn({"name": "moe", **options}, hidden_size=shape.hidden)


def target(shape: Shape, dtype: torch.dtype, tokens: int, backward: bool) -> float | None:
    """What time over the best peer's is aimed at; None: nothing is."""
    if shape not in SHAPES or device() != "cpu":
        return None
    if not backward:
        return 0.9 if tokens <= 32 else None
    if tokens != 2048:
        return None
    if shape.experts == 8:
        return 1.0
    return 0.9 if short(dtype) == "float32" else 0.75

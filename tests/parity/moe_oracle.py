"""The MoE blocks from their formulas, one token and one expert at a time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from moe_blocks import LIMIT, E, H
from test_router_presets import ORACLES
from torch import Tensor

Weights = Mapping[str, Tensor]

# How the shared FFN's output s joins the routed r: none of these families has no shared FFN.
COMBINES = {
    **dict.fromkeys(
        (
            "deepseek_v2",
            "deepseek_v3",
            "glm4_moe",
            "llama4",
            "ernie4_5_moe",
            "hunyuan_v1_moe",
            "nemotron_h",
            "minimind_2025",
        ),
        lambda r, s, gate: r + s,
    ),
    "cohere2_moe": lambda r, s, gate: (r + s) / 2,
    "qwen2_moe": lambda r, s, gate: r + s / (1 + (-gate).exp()),
}


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def squared_relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x * x, 0.0)


def swiglu(w: Weights, part: str, index: int | tuple[()], x: Tensor) -> Tensor:
    gate, up, down = (w[f"{part}.{name}_proj.weight"][index] for name in ("gate", "up", "down"))
    return down @ (silu(gate @ x) * (up @ x))


def naive(w: Weights, part: str, index: int | tuple[()], x: Tensor) -> Tensor:
    up, down = (w[f"{part}.{name}_proj.weight"][index] for name in ("up", "down"))
    return down @ squared_relu(up @ x)


def clamped(w: Weights, part: str, index: int, x: Tensor) -> Tensor:
    def linear(name: str, value: Tensor) -> Tensor:
        stack = f"{part}.{name}_proj"
        return w[f"{stack}.weight"][index] @ value + w[f"{stack}.bias"][index]

    gate = linear("gate", x)
    gate = torch.where(gate > LIMIT, LIMIT, gate)
    up = linear("up", x)
    up = torch.where(up > LIMIT, LIMIT, torch.where(up < -LIMIT, -LIMIT, up))
    return linear("down", (up + 1) * gate / (1 + (-1.702 * gate).exp()))


def expert(family: str, w: Weights, index: int, x: Tensor) -> Tensor:
    """What one expert makes of one token, (H,)."""
    if family == "gpt_oss":
        return clamped(w, "experts", index, x)
    if family == "nemotron_h":
        inner = naive(w, "experts", index, w["latent_down_proj.weight"] @ x)
        return w["latent_up_proj.weight"] @ inner
    if family == "longcat_flash":
        return x if index >= E - 2 else swiglu(w, "experts.0", index, x)
    return swiglu(w, "experts", index, x)


def token_output(family: str, w: Weights, x: Tensor) -> Tensor:
    """(H,) to (H,)."""
    logits = w["router.weight"] @ x + w.get("router.bias", torch.zeros(E, dtype=x.dtype))
    selection = w.get("router.e_score_correction_bias")
    row = ORACLES[family](logits, [0.0] * E if selection is None else selection.tolist())
    if family == "llama4":
        routed = sum(expert(family, w, e, weight * x) for e, weight in row.items())
    else:
        routed = sum(weight * expert(family, w, e, x) for e, weight in row.items())
    if family not in COMBINES:
        return routed
    kind = naive if family == "nemotron_h" else swiglu
    gate = w["shared_gate.weight"] @ x if family == "qwen2_moe" else None
    return COMBINES[family](routed, kind(w, "shared", (), x), gate)


def oracle(family: str, w: Weights, x: Tensor) -> Tensor:
    """(..., H) to (..., H)."""
    bias = w.get("output_bias", 0.0)
    return torch.stack([token_output(family, w, t) + bias for t in x.reshape(-1, H)]).view(x.shape)

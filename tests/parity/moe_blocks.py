"""What the tests of the MoE presets share: small blocks composed from a preset, and gradients."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from mlpkit.build import build_ffn, plain
from mlpkit.compose import compose

PRESETS = Path(__file__).parents[2] / "conf" / "ffn"
FAMILIES = sorted(path.stem for path in PRESETS.glob("*.yaml"))

# E and K are those of the routers' oracles.
B, S, H, I, SHARED, LATENT, E, K = 4, 16, 16, 24, 20, 12, 8, 2  # noqa: E741
GROUPS = ("ffn.router.n_group=4", "ffn.router.topk_group=2")
LIMIT = 0.5  # small, so that gates and up halves are clamped
# Logits well apart; a selection bias that changes choices and leaves every expert some.
SCALES = {"router.weight": 0.5, "router.e_score_correction_bias": 0.1}

# The shared FFN's width: that of n shared experts in the reference, or its own.
SHARED_WIDTH = {
    "qwen2_moe": SHARED,
    "deepseek_v2": 2 * I,
    "deepseek_v3": I,
    "glm4_moe": 2 * I,
    "llama4": I,
    "ernie4_5_moe": 2 * I,
    "hunyuan_v1_moe": I,
    "nemotron_h": SHARED,
    "cohere2_moe": 2 * I,
    "minimind_2025": I,
}
SIZES = {
    "deepseek_v2": ("ffn.router.n_group=4", "ffn.router.topk_group=1"),
    "deepseek_v3": GROUPS,
    "glm4_moe": GROUPS,
    "nemotron_h": (*GROUPS, f"ffn.latent_size={LATENT}"),
    "gpt_oss": (f"ffn.expert.limit={LIMIT}",),
    "longcat_flash": (
        f"ffn.experts=[{{name:swiglu,intermediate_size:{I},num_experts:{E - 2}}},"
        "{name:copy,num_experts:2}]",
    ),
}


@cache
def configuration(*overrides: str) -> DictConfig:
    return compose(overrides)


def small(family: str) -> tuple[str, ...]:
    """The overrides that make a preset small and switch on what its default leaves out."""
    sizes = [f"ffn.num_experts={E}", f"ffn.num_experts_per_tok={K}"]
    if family != "longcat_flash":
        sizes.append(f"ffn.expert.intermediate_size={I}")
    if family in SHARED_WIDTH:
        sizes.append(f"ffn.shared.intermediate_size={SHARED_WIDTH[family]}")
    return (f"ffn={family}", *sizes, *SIZES.get(family, ()))


def build(*overrides: str, hidden_size: int = H) -> nn.Module:
    return build_ffn(plain(configuration(*overrides).ffn), hidden_size=hidden_size)


def block(family: str, dtype: torch.dtype, *more: str) -> nn.Module:
    """A preset's small block with random weights and biases that change choices."""
    moe = build(*small(family), *more)
    generator = torch.Generator().manual_seed(7)
    for name, tensor in sorted(moe.state_dict().items()):
        scale = SCALES.get(name, 0.3 if name.endswith("bias") else tensor.shape[-1] ** -0.5)
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * scale)
    return moe.to(dtype).eval()


def tokens(dtype: torch.dtype) -> Tensor:
    """(B, S, H), equal in every dtype up to rounding."""
    generator = torch.Generator().manual_seed(11)
    return torch.randn(B, S, H, generator=generator).to(dtype).requires_grad_()


def gradients(y: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of a fixed random mix of the outputs, with zero where there is none."""
    probe = torch.randn(B, S, H, generator=torch.Generator().manual_seed(5)).to(y.dtype) / 8
    found = torch.autograd.grad((y.view(B, S, H) * probe).sum(), list(inputs.values()))
    return dict(zip(inputs, found, strict=True))


def run(moe: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, and the gradients of the input (named "x") and every parameter."""
    y = moe(x)
    y = y[0] if isinstance(y, tuple) else y  # some references add their logits
    learned = {n: p for n, p in moe.named_parameters() if p.requires_grad}
    return y.view(B, S, H), gradients(y, {"x": x, **learned})


def assert_equal(ours: Any, theirs: Any, tolerance: float) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)

"""Other people's FFNs and mixtures, with the weights of ours; transformers may be missing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IMPLEMENTATIONS = ("eager", "grouped_mm", "batched_mm")


class MaskedLoop(nn.Module):
    """MiniMind's mixture from its formula: for each expert, the tokens that a mask finds.

    Args:
        hidden_size: H.
        width: I, of each expert.
        num_experts: E.
        num_experts_per_tok: K.
    """

    def __init__(
        self, hidden_size: int, width: int, num_experts: int, num_experts_per_tok: int
    ) -> None:
        super().__init__()
        self.k = num_experts_per_tok
        self.gate = nn.Linear(hidden_size, num_experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(hidden_size, width) for _ in range(num_experts))

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., H)."""
        tokens = x.reshape(-1, x.shape[-1])
        weight, chosen = self.gate(tokens).softmax(-1, dtype=torch.float32).topk(self.k)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            token, place = torch.where(chosen == index)
            if len(token):
                out.index_add_(0, token, expert(tokens[token]) * weight[token, place, None])
        return out.view_as(x)


class SwiGLU(nn.Module):
    """The bare module: what a framework around it must not slow down.

    Args:
        hidden_size: H.
        width: I.
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, width, bias=False)
        self.up_proj = nn.Linear(hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., H)."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


def transformers_ffn(hidden_size: int, width: int) -> nn.Module:
    """LlamaMLP of transformers."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    sizes = {"hidden_size": hidden_size, "intermediate_size": width, "num_attention_heads": 1}
    config = LlamaConfig(hidden_act="silu", **sizes)
    return LlamaMLP(config)


def transformers_moe(
    implementation: str, hidden_size: int, width: int, num_experts: int, num_experts_per_tok: int
) -> nn.Module:
    """The Qwen3-MoE block of transformers with one of its ways to run experts."""
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    config = Qwen3MoeConfig(
        hidden_size=hidden_size,
        moe_intermediate_size=width,
        num_experts=num_experts,
        num_experts_per_tok=num_experts_per_tok,
        norm_topk_prob=True,
        num_attention_heads=1,
        num_key_value_heads=1,
    )
    config._experts_implementation = implementation
    return Qwen3MoeSparseMoeBlock(config)


@torch.no_grad()
def share_weights(moe: Any, peer: nn.Module) -> None:
    """Copies the router and the experts of mlpkit's mixture into a peer's."""
    gate, up, down = (
        moe.experts.get_parameter(f"{name}_proj.weight") for name in ("gate", "up", "down")
    )
    peer.get_parameter("gate.weight").copy_(moe.router.weight)
    if isinstance(peer, MaskedLoop):
        for index, expert in enumerate(peer.experts):
            for name, stack in (("gate", gate), ("up", up), ("down", down)):
                expert.get_parameter(f"{name}_proj.weight").copy_(stack[index])
        return
    peer.get_parameter("experts.gate_up_proj").copy_(torch.cat([gate, up], dim=1))
    peer.get_parameter("experts.down_proj").copy_(down)


def first(output: Any) -> Tensor:
    """The tensor of a layer's output; some give their router's logits beside it."""
    tensor: Tensor = output[0] if isinstance(output, tuple) else output
    return tensor

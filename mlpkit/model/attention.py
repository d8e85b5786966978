"""RMSNorm, rotary positions, and attention with grouped-query heads, qk-norm and biases."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mlpkit.model.cache import LayerCache
from mlpkit.sizing import ModelShapeError, check_heads

Rotary = tuple[Tensor, Tensor]  # cosine and signed sine, each (B or 1, 1, S, head_dim)
ATTENTION_BIASES = ("none", "qkv", "all")
QK_NORM_SCOPES = ("head", "all")


class RMSNorm(nn.Module):
    """Divides by the root mean square and scales (Zhang and Sennrich 2019, arXiv:1910.07467).

    Args:
        size: Length of the last axis.
        eps: Added to the mean square.
    """

    def __init__(self, *, size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) -> (..., size), in x's dtype."""
        # Scaled apart: in bfloat16 rounding comes before the scale, not after, as in Llama, so that
        # its checkpoints agree to the bit. The mean square is computed in float32 at least.
        normed = F.rms_norm(x, self.weight.shape, eps=self.eps)
        return normed * self.weight.to(x.dtype)

    def extra_repr(self) -> str:
        """Size and eps, as torch prints them."""
        return f"{self.weight.numel()}, eps={self.eps}"


def rotary_table(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> Rotary:
    """Angles of rotary positions (Su et al. 2021, arXiv:2104.09864).

    Computed on every forward, for B·S·head_dim/2 elements against the model's far more: there
    is no longest sequence, and no buffer that ``.to(bfloat16)`` rounds, that a state dict
    carries, or that stays empty after the meta device.

    Args:
        positions: (B or 1, S) integers.
        head_dim: Size of a head, even.
        theta: The longest wavelength is about 2π·theta positions.
        dtype: The model's; angles are in at least float32 whatever it is.

    Returns:
        Cosine and sine of element i's pair (i, i + D/2) or (i - D/2, i), each
        (B or 1, 1, S, head_dim); the sine is negative for the first half, as ``rotate`` adds it.
    """
    wide = torch.promote_types(dtype, torch.float32)
    steps = torch.arange(0, head_dim, 2, dtype=wide, device=positions.device) / head_dim
    angles = rearrange(positions, "B S -> B 1 S 1").to(wide) / theta**steps
    cos, sin = angles.cos(), angles.sin()  # (B or 1, 1, S, head_dim / 2)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, causal: bool, grouped: bool
) -> Tensor:
    """The weighted sum of values, (B, heads, S, D), by torch's fused kernels.

    On a CPU it is computed in float32 at least: torch's bf16 kernel there took four times as long
    (B 32, S 128, D 32, forward and backward: 60 against 16 ms).
    """
    dtype = v.dtype
    options: dict[str, Any] = {"attn_mask": visible, "is_causal": causal, "enable_gqa": grouped}
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, **options)
    wide = torch.promote_types(dtype, torch.float32)
    # autocast would cast to bf16 again; entering the block takes as long as a token's products
    lowered = torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", enabled=False) if lowered else nullcontext():
        out = F.scaled_dot_product_attention(q.to(wide), k.to(wide), v.to(wide), **options)
    return out.to(dtype)


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Turns pair (i, i + D/2) of each head by its position's angle: (B, heads, S, D), same out."""
    cos, sin = rotary
    wide = x.to(cos.dtype)
    partner = wide.roll(x.shape[-1] // 2, dims=-1)  # the other element of each pair
    return torch.addcmul(wide * cos, partner, sin).to(x.dtype)  # (B, heads, S, D)


class Attention(nn.Module):
    """Causal self-attention; queries share key/value heads (Ainslie et al. 2023, arXiv:2305.13245).

    Args:
        hidden_size: Width of the model.
        num_attention_heads: Query heads.
        num_key_value_heads: Key and value heads; a divisor of the query heads.
        head_dim: Size of a head, even; None: hidden_size / num_attention_heads.
        qk_norm: Whether queries and keys pass an RMSNorm.
        qk_norm_scope: What one of these norms covers: "head", each head alone (Qwen3), or "all"
            heads of a token together (OLMoE).
        bias: Which projections have biases: "none", "qkv" (Qwen2) or "all" of the four.
        norm_eps: The eps of those norms.

    Raises:
        ModelShapeError: The sizes do not fit together, or an option is none of its choices.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        num_attention_heads: int,
        num_key_value_heads: int,
        head_dim: int | None = None,
        qk_norm: bool = False,
        qk_norm_scope: str = "head",
        bias: str = "none",
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        one_of("model.qk_norm_scope", qk_norm_scope, QK_NORM_SCOPES)
        one_of("model.attention_bias", bias, ATTENTION_BIASES)
        self.head_dim = check_heads(
            hidden_size=hidden_size,
            num_attention_heads=num_attention_heads,
            num_key_value_heads=num_key_value_heads,
            head_dim=head_dim,
        )
        self.grouped = num_key_value_heads != num_attention_heads
        query_size = num_attention_heads * self.head_dim
        key_size = num_key_value_heads * self.head_dim
        inward, outward = bias != "none", bias == "all"
        self.q_proj = nn.Linear(hidden_size, query_size, bias=inward)
        self.k_proj = nn.Linear(hidden_size, key_size, bias=inward)
        self.v_proj = nn.Linear(hidden_size, key_size, bias=inward)
        self.o_proj = nn.Linear(query_size, hidden_size, bias=outward)
        self.norm_all = qk_norm and qk_norm_scope == "all"
        sizes = (query_size, key_size) if self.norm_all else (self.head_dim, self.head_dim)
        self.q_norm, self.k_norm = (
            RMSNorm(size=size, eps=norm_eps) if qk_norm else nn.Identity() for size in sizes
        )

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        visible: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Lets each position gather from the visible ones.

        Args:
            x: (B, S, H).
            rotary: Cosine and sine for the S positions.
            visible: (B or 1, 1, S, all keys) bool, True where a query sees a key; None: causal
                over S without a past, and everything for one token after a past.
            cache: Keys and values of the past, to which those of x are added.

        Returns:
            (B, S, H).
        """
        q = rotate(self.heads(self.q_proj(x), self.q_norm), rotary)
        k = rotate(self.heads(self.k_proj(x), self.k_norm), rotary)
        v = self.split(self.v_proj(x))
        # is_causal lines up the first query with the first key: right only without a past.
        causal = visible is None and (cache is None or not cache.length)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, heads, past + S, D)
        gathered = attend(q, k, v, visible, causal, self.grouped)
        out: Tensor = self.o_proj(gathered.transpose(1, 2).flatten(2))  # (B, S, H)
        return out

    def heads(self, projected: Tensor, norm: nn.Module) -> Tensor:
        """Normalises queries or keys and splits them: (B, S, heads·D) -> (B, heads, S, D)."""
        if self.norm_all:
            return self.split(norm(projected))
        out: Tensor = norm(self.split(projected))
        return out

    def split(self, projected: Tensor) -> Tensor:
        """(B, S, heads·D) -> (B, heads, S, D); for one token einops takes twice as long."""
        batch, length, size = projected.shape
        return projected.view(batch, length, size // self.head_dim, self.head_dim).transpose(1, 2)


def one_of(option: str, value: str, choices: Sequence[str]) -> None:
    """Refuses a value that is none of the choices.

    Raises:
        ModelShapeError: It is none.
    """
    if value not in choices:
        raise ModelShapeError(f"{option} is {value!r}; choose one of {', '.join(choices)}")

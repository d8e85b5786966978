"""Block and Decoder: the way of x from tokens to logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlpkit.model.attention import Attention, RMSNorm, Rotary, rotary_table
from mlpkit.model.cache import KVCache, LayerCache
from mlpkit.model.loss import summed_cross_entropy
from mlpkit.sizing import ModelShapeError


class Block(nn.Module):
    """Attention, then the FFN, each on a normalised copy of x and added back to it.

    Args:
        attention: The part that gathers from other positions.
        ffn: The part that works on each position, (B, S, H) -> (B, S, H).
        hidden_size: Width of the model.
        norm_eps: The eps of both norms.
        dropout: Probability that an element of what is added to x is dropped in training.
    """

    def __init__(
        self,
        *,
        attention: Attention,
        ffn: nn.Module,
        hidden_size: int,
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(size=hidden_size, eps=norm_eps)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(size=hidden_size, eps=norm_eps)
        self.ffn = ffn
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        visible: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """(B, S, H) -> (B, S, H); the other arguments are Attention's."""
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), rotary, visible, cache))
        x = x + self.dropout(self.ffn(self.post_attention_layernorm(x)))
        return x


class Decoder(nn.Module):
    """A causal language model: embedding, blocks, norm, head.

    Args:
        vocab_size: Number of tokens V.
        hidden_size: Width H of the model.
        layers: The blocks, first to last.
        head_dim: Size of an attention head, the same in all layers.
        rope_theta: Base of the rotary positions.
        norm_eps: The eps of the last norm.
        tie_word_embeddings: Whether the head is the embedding; there is no ``lm_head`` then,
            so parameters and state dict hold the weight once.

    Raises:
        ModelShapeError: A layer's heads have another size than ``head_dim``.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        hidden_size: int,
        layers: Sequence[Block],
        head_dim: int,
        rope_theta: float = 10000.0,
        norm_eps: float = 1e-5,
        tie_word_embeddings: bool = True,
    ) -> None:
        super().__init__()
        for index, layer in enumerate(layers):
            if layer.self_attn.head_dim != head_dim:
                raise ModelShapeError(
                    f"layer {index} has heads of size {layer.self_attn.head_dim} and the Decoder "
                    f"was given head_dim {head_dim}; all layers share one rotary table"
                )
        self.head_dim = head_dim
        self.rope_theta = rope_theta
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        # As large as what the blocks add, so that they do not drown the token; tied, logits start
        # with std 1. At H 128 after 250 steps: 2.59 bits per byte, with GPT-2's 0.02 still 3.46.
        nn.init.normal_(self.embed_tokens.weight, std=hidden_size**-0.5)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(size=hidden_size, eps=norm_eps)
        # Drawn last: tied and untied models of one seed share the embedding's initial values.
        self.lm_head = (
            None if tie_word_embeddings else nn.Linear(hidden_size, vocab_size, bias=False)
        )

    def forward(
        self,
        tokens: Tensor,
        *,
        cache: KVCache | None = None,
        mask: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Scores every token of the vocabulary as the next one.

        Args:
            tokens: (B, S) integers.
            cache: The past, to which these tokens are added.
            mask: (B, past + S) bool, True = a real token, False = padding, anywhere; None:
                all are real. The logits at padding mean nothing.
            targets: (B, S) int64, the tokens that came next. The loss is then all that is wanted,
                and the logits of all tokens are never in memory at once.

        Returns:
            Logits (B, S, V); with targets their cross-entropy summed over all tokens, in nats and
            float32 at least.

        Raises:
            ModelShapeError: The mask has another shape or is not bool.
            CacheError: The cache is full or holds another batch.
        """
        hidden = self.hidden(tokens, cache=cache, mask=mask)
        if targets is None:
            return self.logits(hidden)
        return summed_cross_entropy(hidden.flatten(0, 1), self.head_weight, targets.flatten())

    def hidden(
        self, tokens: Tensor, *, cache: KVCache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """What the head reads: forward without the head.

        Args:
            tokens: (B, S) integers.
            cache: As in forward.
            mask: As in forward.

        Returns:
            (B, S, H), after the last norm.
        """
        past = 0 if cache is None else cache.length
        x = self.embed_tokens(tokens)  # (B, S, H)
        rotary = rotary_table(
            token_positions(tokens, past, mask), self.head_dim, self.rope_theta, x.dtype
        )
        visible = visible_keys(tokens, past, mask)
        caches = [None] * len(self.layers) if cache is None else cache.layers
        for layer, layer_cache in zip(self.layers, caches, strict=True):
            x = layer(x, rotary, visible, layer_cache)
        out: Tensor = self.norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., V): the head."""
        if self.lm_head is None:
            return F.linear(hidden, self.embed_tokens.weight)
        out: Tensor = self.lm_head(hidden)
        return out

    @property
    def head_weight(self) -> Tensor:
        """(V, H): of the head, or of the embedding that it is tied to."""
        return self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight


def token_positions(tokens: Tensor, past: int, mask: Tensor | None) -> Tensor:
    """Counts real tokens from 0, so that padding shifts nothing, wherever it stands.

    Args:
        tokens: (B, S).
        past: Number of tokens before these.
        mask: (B, past + S), True = real, or None.

    Returns:
        (B, S), or (1, S) without a mask.

    Raises:
        ModelShapeError: The mask has another shape or is not bool.
    """
    batch, total = tokens.shape[0], past + tokens.shape[1]
    if mask is None:
        return torch.arange(past, total, device=tokens.device)[None]  # (1, S)
    if mask.shape != (batch, total) or mask.dtype != torch.bool:
        raise ModelShapeError(
            f"mask is {mask.dtype} of shape {tuple(mask.shape)}; it must be torch.bool of shape "
            f"{(batch, total)}: True for each real token, those in the cache ({past}) included"
        )
    return (mask.cumsum(-1) - 1).clamp(min=0)[:, past:]  # (B, S)


def visible_keys(tokens: Tensor, past: int, mask: Tensor | None) -> Tensor | None:
    """Which keys a query sees: real ones, up to itself.

    Args:
        tokens: (B, S).
        past: Number of tokens before these.
        mask: (B, past + S), True = real, or None.

    Returns:
        (B or 1, 1, S, past + S) bool; None where attention needs none (no padding, and either no
        past or a single token), which leaves the fast causal kernels open.
    """
    size = tokens.shape[1]
    if mask is None and (past == 0 or size == 1):
        return None
    keys = torch.arange(past + size, device=tokens.device)  # (past + S,)
    queries = keys[past:, None]  # (S, 1)
    causal = keys <= queries  # (S, past + S)
    if mask is None:
        return causal[None, None]  # (1, 1, S, past + S)
    # Padding sees itself: a softmax over nothing is NaN in some kernels, and so is its gradient.
    return causal & mask[:, None, None] | (keys == queries)  # (B, 1, S, past + S)

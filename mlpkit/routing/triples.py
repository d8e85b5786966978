"""Routing: what a router decided for one forward, as flat (token, expert, weight) triples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Routing(NamedTuple):
    """Which expert computes which token, with which weight.

    One form serves dispatch, metrics and losses. A router that picks K experts per token gives
    N = T·K triples in token-major order (row ``t * K + j`` is token t's j-th choice), so that
    ``expert.view(T, K)`` is its choice table. Dropping a triple is a filter over the three
    flat fields.

    Args:
        token: (N,) int64, the row of the router's input, in [0, T).
        expert: (N,) int64, in [0, E).
        weight: (N,) at least float32 and never below the input's own precision; it multiplies
            the expert's output or its input, as the router's ``apply_on`` says.
        num_experts_per_tok: K where every token has exactly K triples as above, else None
            (expert choice, or after dropping).
        logits: (T, E), raw: before softmax or any other score function.
        scores: (T, E), after the score function; they carry the gradient of balance terms.
        leading: The leading shape of the FFN's input, e.g. (B, S) with T = B·S; the MoE fills
            it in. Empty: all T tokens are one sequence.
    """

    token: Tensor
    expert: Tensor
    weight: Tensor
    num_experts_per_tok: int | None
    logits: Tensor
    scores: Tensor
    leading: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """T, the number of tokens the router saw."""
        return self.logits.shape[0]

    @property
    def num_experts(self) -> int:
        """E, the number of experts the router knows."""
        return self.logits.shape[1]

    def load(self, mask: Tensor | None = None) -> Tensor:
        """How many triples each expert has.

        Args:
            mask: One value per token in the leading shape, True (or 1) for a real one; None:
                every token counts.

        Returns:
            (E,) int64; without mask it sums to N. Equal to ``bincount(expert, minlength=E)``,
            whose output size a compiler cannot know.

        Raises:
            MaskShapeError: The mask does not have one value per token.
        """
        zeros = torch.zeros(self.num_experts, dtype=torch.int64, device=self.expert.device)
        real = torch.ones_like(self.expert)
        if mask is not None:
            real = flat_mask(mask, self).long()[self.token]
        return zeros.index_add(0, self.expert, real)

    def detach(self) -> Routing:
        """The same values, cut from the graph."""
        return self._replace(
            weight=self.weight.detach(),
            logits=self.logits.detach(),
            scores=self.scores.detach(),
        )


def concatenate(routings: Sequence[Routing]) -> Routing:
    """Several layers' routings as one over L·T tokens, for terms that pool the layers.

    Args:
        routings: One or more, with the same number of experts.

    Returns:
        A routing whose tokens are renumbered layer by layer. Its leading shape keeps the
        sequence length and counts every layer's sequences as sequences of their own.

    Raises:
        LayersDifferError: They have different numbers of experts, or sequence lengths.
    """
    sizes = {routing.num_experts for routing in routings}
    if len(sizes) != 1:
        raise LayersDifferError(
            f"layers with {sorted(sizes)} experts cannot be pooled; choose a term that works "
            "layer by layer"
        )
    lengths = {r.leading[-1] if r.leading else r.num_tokens for r in routings}
    if len(lengths) != 1:
        raise LayersDifferError(
            f"sequences of {sorted(lengths)} tokens cannot be pooled; ask for the losses after "
            "each forward"
        )
    length, offsets = lengths.pop(), [0]
    for routing in routings[:-1]:
        offsets.append(offsets[-1] + routing.num_tokens)
    rows = offsets[-1] + routings[-1].num_tokens
    per_token = {routing.num_experts_per_tok for routing in routings}
    return Routing(
        token=torch.cat([r.token + o for r, o in zip(routings, offsets, strict=True)]),
        expert=torch.cat([r.expert for r in routings]),
        weight=torch.cat([r.weight for r in routings]),
        num_experts_per_tok=per_token.pop() if len(per_token) == 1 else None,
        logits=torch.cat([r.logits for r in routings]),
        scores=torch.cat([r.scores for r in routings]),
        leading=(rows // max(length, 1), length),
    )


class LayersDifferError(ValueError):
    """Layers that a pooled term cannot join."""

    exit_code = 2


class MaskShapeError(ValueError):
    """A mask that does not fit the tokens the routers saw."""

    exit_code = 2


def flat_mask(mask: Tensor, routing: Routing) -> Tensor:
    """The mask as (T,) bool.

    Raises:
        MaskShapeError: It does not have one value per token in the input's shape.
    """
    fits = mask.numel() == routing.num_tokens
    if not fits or (routing.leading and tuple(mask.shape) != tuple(routing.leading)):
        raise MaskShapeError(
            f"mask of shape {tuple(mask.shape)} for routings of {routing.num_tokens} tokens in "
            f"shape {tuple(routing.leading)}; give one value per token in that shape"
        )
    return mask.reshape(-1) != 0  # (T,)

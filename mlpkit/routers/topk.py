"""TopKRouter: one pipeline whose options are the routers of the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from mlpkit.routers.base import (
    PRECISIONS,
    Router,
    RouterError,
    first_largest,
    in_range,
    init_weight,
    one_of,
    router_logits,
    token_choice,
)
from mlpkit.routers.groups import GroupLimit
from mlpkit.routing import Routing

CHOICES = ("scores", "logits")


@final
class TopKRouter(Router):
    """Each token chooses the K experts that score highest.

    z = W x (+ b); p = score(z); c = p (+ selection bias), limited to the best groups;
    i = the K largest of c; w = p[i]; normalise; scale. Ties go to the lower expert index.
    Softmax, choice and weights are at least float32, whatever the model's dtype.

    Args:
        hidden_size: H.
        num_experts: E.
        num_experts_per_tok: K, in [1, E].
        score: "softmax", or a ready function of (T, E) logits such as ``nn.Sigmoid()``; in a
            configuration any registered activation's name.
        bias: Whether the logits have a learned bias (GPT-OSS).
        selection_bias: Whether a float32 buffer ``e_score_correction_bias`` (E,) is added to
            what chooses and never to what weighs (DeepSeek-V3, arXiv:2412.19437);
            ``mlpkit.update_router_bias`` moves it.
        choose_by: "scores", or "logits": the same order wherever the score rises strictly, and
            still the right one where it saturates (Llama 4's sigmoid is 1.0 above 17).
        n_group: In how many groups of neighbours the experts stand.
        topk_group: How many groups a token may choose from.
        group_score: A group's score: "max" of its experts (DeepSeek-V2) or the sum of its
            "top2" (DeepSeek-V3).
        group_fill: What an expert of the other groups competes with: "-inf", or "zero", where
            it wins over a negative one.
        norm_topk_prob: Whether a token's weights are divided by their norm. With K = 1 that
            makes the weight a constant, and the task gives the router no gradient.
        norm_p: The norm's order, at least 1 (DBRX).
        norm_eps: Added to the norm.
        norm_min: The norm is at least this (Ernie 4.5).
        routed_scaling_factor: Multiplies every weight, last.
        jitter: In training the router sees x times uniform noise in [1 - jitter, 1 + jitter].
        dtype: In what the logits are computed: "float32" (or finer, if x is), "float64", or
            "input": in x's dtype, as models that were trained so expect.
        apply_on: "output" or "input" of the experts.

    Raises:
        RouterError: Sizes or options that do not fit each other.
    """

    e_score_correction_bias: Tensor | None

    def __init__(
        self,
        *,
        hidden_size: int,
        num_experts: int,
        num_experts_per_tok: int,
        score: str | Callable[[Tensor], Tensor] = "softmax",
        bias: bool = False,
        selection_bias: bool = False,
        choose_by: str = "scores",
        n_group: int = 1,
        topk_group: int = 1,
        group_score: str = "max",
        group_fill: str = "-inf",
        norm_topk_prob: bool = True,
        norm_p: float = 1.0,
        norm_eps: float = 0.0,
        norm_min: float = 0.0,
        routed_scaling_factor: float = 1.0,
        jitter: float = 0.0,
        dtype: str = "float32",
        apply_on: str = "output",
    ) -> None:
        super().__init__(
            num_experts=num_experts, num_experts_per_tok=num_experts_per_tok, apply_on=apply_on
        )
        one_of("choose_by", choose_by, CHOICES)
        one_of("dtype", dtype, PRECISIONS)
        in_range("norm_p", norm_p, 1.0)
        in_range("norm_eps", norm_eps, 0.0)
        in_range("norm_min", norm_min, 0.0)
        in_range("jitter", jitter, 0.0, 1.0)
        self.score = ready_score(score)
        self.choose_by, self.dtype, self.jitter = choose_by, dtype, jitter
        self.groups = GroupLimit(
            num_experts=num_experts,
            num_experts_per_tok=num_experts_per_tok,
            n_group=n_group,
            topk_group=topk_group,
            score=group_score,
            fill=group_fill,
        )
        self.norm_topk_prob, self.norm_p = norm_topk_prob, norm_p
        self.norm_eps, self.norm_min = norm_eps, norm_min
        self.routed_scaling_factor = routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        self.bias = nn.Parameter(torch.empty(num_experts)) if bias else None
        zeros = torch.zeros(num_experts, dtype=torch.float32) if selection_bias else None
        self.register_buffer("e_score_correction_bias", zeros)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weight, and sets both biases to zero."""
        init_weight(self.weight)
        for zero in (self.bias, self.e_score_correction_bias):
            if zero is not None:
                nn.init.zeros_(zero)

    def forward(self, x: Tensor) -> Routing:
        """Maps (T, H) to T·K triples in token-major order."""
        logits = router_logits(self.noisy(x), self.weight, self.bias, self.dtype)  # (T, E)
        scores = self.score(logits)  # (T, E)
        expert = self.choose(logits, scores)  # (T, K)
        return token_choice(expert, self.weigh(scores, expert), logits, scores)

    def noisy(self, x: Tensor) -> Tensor:
        """x, in training times the jitter; always a value of its own for the experts' sake."""
        if not (self.training and self.jitter):
            return x
        return x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter)

    def choose(self, logits: Tensor, scores: Tensor) -> Tensor:
        """The K experts of each token, best first.

        Args:
            logits: (T, E).
            scores: (T, E).

        Returns:
            (T, K) int64.
        """
        choice = (logits if self.choose_by == "logits" else scores).detach()
        if self.e_score_correction_bias is not None:
            choice = choice + self.e_score_correction_bias
        return first_largest(self.groups(choice), self.num_experts_per_tok)

    def weigh(self, scores: Tensor, expert: Tensor) -> Tensor:
        """The weights of chosen experts, whoever chose them.

        Args:
            scores: (T, E).
            expert: (T, K) int64.

        Returns:
            (T, K).
        """
        weight = scores.gather(-1, expert)  # (T, K)
        if self.norm_topk_prob:
            norm = torch.linalg.vector_norm(weight, self.norm_p, dim=-1, keepdim=True)
            if self.norm_eps or self.norm_min:
                norm = (norm + self.norm_eps).clamp(min=self.norm_min)
            # A ReLU-like score may give a token nothing at all: it then weighs 0, not NaN.
            weight = weight / norm.masked_fill(norm == 0, 1.0)
        return weight if self.routed_scaling_factor == 1 else weight * self.routed_scaling_factor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Moves the module; its selection bias stays float32.

        The update steps are about 0.001: in bfloat16 a bias near 1 would swallow them.
        """
        before = self.e_score_correction_bias
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        after = self.e_score_correction_bias
        if before is not None and after is not None and after.dtype != torch.float32:
            source = after if before.is_meta else before
            self.e_score_correction_bias = source.to(after.device, torch.float32)
        return self


def ready_score(score: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The score function.

    Raises:
        RouterError: A name other than "softmax", which is for ``build_router`` to turn into
            an activation.
    """
    if score == "softmax":
        return nn.Softmax(dim=-1)
    if isinstance(score, str):
        raise RouterError(
            f"score is the name {score!r}; give the function itself, or let "
            "mlpkit.build_router('topk', score=...) build the activation"
        )
    return score

"""Health numbers of routing: pure functions of loads, scores and choices."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def max_violation(load: Tensor) -> float:
    """How far the busiest expert is above its fair share (MaxVio, Wang 2024, arXiv:2408.15664).

    Args:
        load: (E,) tokens per expert.

    Returns:
        max(load) / mean(load) - 1, in [0, E/K - 1]; 0 is balance, and nothing routed.
    """
    mean = load.double().mean().item()
    return load.max().item() / mean - 1 if mean > 0 else 0.0


def max_violation_ceiling(num_experts: int, num_experts_per_tok: int) -> float:
    """What ``max_violation`` is when every token picks the same K experts: E/K - 1."""
    return num_experts / num_experts_per_tok - 1


def max_violation_share(load: Tensor, num_experts_per_tok: int) -> float:
    """``max_violation`` over its ceiling, comparable between different E and K.

    Args:
        load: (E,) tokens per expert.
        num_experts_per_tok: K, in [1, E].

    Returns:
        In [0, 1]: 0 is balance, 1 collapse. With K = E it cannot be anything but 0.
    """
    ceiling = max_violation_ceiling(load.numel(), num_experts_per_tok)
    return max_violation(load) / ceiling if ceiling > 0 else 0.0


def load_cv(load: Tensor) -> float:
    """The coefficient of variation of a load: standard deviation over mean.

    Args:
        load: (E,) tokens per expert.

    Returns:
        0 is balance; the square is what Shazeer's (2017, arXiv:1701.06538) loss penalises.
    """
    values = load.double()
    mean = values.mean().item()
    return values.std(unbiased=False).item() / mean if mean > 0 else 0.0


def load_entropy(load: Tensor) -> float:
    """How evenly tokens are spread over the experts.

    Args:
        load: (E,) tokens per expert.

    Returns:
        Entropy of load / sum(load) in units of log E: 1 is balance, 0 one expert alone.
    """
    total = load.sum().item()
    if total == 0 or load.numel() < 2:
        return 1.0
    share = load.double() / total
    return float(torch.special.entr(share).sum() / math.log(load.numel()))


def routing_entropy(scores: Tensor) -> float:
    """How undecided the router is about one token, on average.

    Args:
        scores: (T, E), not negative.

    Returns:
        Mean entropy in nats of the scores normalised per token, in [0, log E].
    """
    if scores.shape[0] == 0:
        return 0.0
    return float(torch.special.entr(shares(scores)).sum(-1).mean())


def confidence(scores: Tensor) -> float:
    """How much of a token's score its best expert has, on average.

    Args:
        scores: (T, E), not negative.

    Returns:
        Mean of the largest normalised score, in [1/E, 1].
    """
    return float(shares(scores).amax(-1).mean()) if scores.shape[0] else 0.0


def shares(scores: Tensor) -> Tensor:
    """Scores as (T, E) float64 that sum to 1 per token; a token without score is undecided."""
    values = scores.detach().double().clamp(min=0)
    total = values.sum(-1, keepdim=True)
    return torch.where(total > 0, values / total.clamp(min=1e-300), 1 / scores.shape[-1])


def dropped_share(num_kept: int, num_tokens: int, num_experts_per_tok: int) -> float:
    """The share of choices that capacity took away.

    Args:
        num_kept: N, the triples that are left.
        num_tokens: T.
        num_experts_per_tok: K.

    Returns:
        1 - N / (T·K), in [0, 1]; 0 without tokens.
    """
    wanted = num_tokens * num_experts_per_tok
    return 1 - num_kept / wanted if wanted else 0.0


def dead_experts(loads: Tensor) -> list[int]:
    """The experts that no token chose in a whole window.

    Args:
        loads: (W, E), the loads of W steps, or (E,), already summed.

    Returns:
        Their indices, ascending.
    """
    window = loads.reshape(-1, loads.shape[-1]).sum(0)  # (E,)
    return [int(i) for i in torch.nonzero(window == 0)]


def overlap(first: Tensor, second: Tensor) -> float:
    """How many of a token's experts two choices of the same tokens have in common.

    Two steps of training (does routing settle?), two layers, or a model and its replay.

    Args:
        first: (T, K) int64, distinct per row.
        second: (T, K) int64, distinct per row.

    Returns:
        Mean over tokens of |intersection| / K, in [0, 1].
    """
    if first.numel() == 0:
        return 1.0
    same = first.unsqueeze(-1) == second.unsqueeze(-2)  # (T, K, K)
    return same.sum().item() / first.numel()


def complementary_collapse(loads: Tensor) -> float:
    """How much imbalance disappears when the layers are added up.

    Layers that each collapse onto another expert look balanced together: a loss or a plot over
    pooled layers cannot see it.

    Args:
        loads: (L, E), one row per layer.

    Returns:
        Mean ``max_violation`` of the layers minus that of their sum, at least 0; 0 where the
        layers favour the same experts or none.
    """
    running = loads[loads.sum(-1) > 0]
    if running.shape[0] == 0:
        return 0.0
    share = running.double() / running.sum(-1, keepdim=True)  # every layer weighs the same
    single = sum(max_violation(row) for row in share) / running.shape[0]
    return max(0.0, single - max_violation(share.sum(0)))

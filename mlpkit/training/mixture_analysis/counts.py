"""Counts of a layer's choices: pure functions of which expert took which token."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
CHUNK = 4096  # tokens whose (T, E) table is in memory at once


class TopToken(NamedTuple):
    """A token that an expert takes more often than others do.

    Args:
        id: The token's id.
        choices: Choices of this token that fell on the expert.
        of: All its choices, K for each place where it stands.
        lift: The expert's share of them over the uniform share, E · choices / of.
    """

    id: int
    choices: int
    of: int
    lift: float


def co_activation(token: Ints, expert: Ints, num_tokens: int, num_experts: int) -> Ints:
    """How many tokens two experts have in common, over all pairs of a token's experts.

    Not only over neighbours in the order of choice: with K = 3 a token counts for three pairs.

    Args:
        token: (N,), in [0, T).
        expert: (N,), in [0, E).
        num_tokens: T.
        num_experts: E.

    Returns:
        (E, E), symmetric; on the diagonal the tokens of one expert.
    """
    total = np.zeros((num_experts, num_experts), np.int64)
    for first in range(0, num_tokens, CHUNK):
        inside = (first <= token) & (token < first + CHUNK)
        taken = np.zeros((CHUNK, num_experts), np.float32)  # exact: sums stay below 2**24
        taken[token[inside] - first, expert[inside]] = 1
        total += (taken.T @ taken).astype(np.int64)
    return total


def conditional(counts: Ints) -> Floats:
    """Of one expert's tokens, the share that another has too.

    Args:
        counts: (E, E), from ``co_activation``.

    Returns:
        (E, E): row i, column j is P(j | i), 1 on the diagonal; NaN in the row of an expert
        without tokens. If experts were picked independently of each other it would be near
        (K - 1) / (E - 1) off the diagonal.
    """
    return _ratio(counts, np.diag(counts)[:, None])


def count_by_category(expert: Ints, category: npt.NDArray[Any], shape: tuple[int, int]) -> Ints:
    """How many choices of each category fell on each expert.

    Args:
        expert: (N,), in [0, E).
        category: (N,), in [0, C), that of each choice's token.
        shape: (E, C).

    Returns:
        (E, C), whose sum is N.
    """
    flat = expert * shape[1] + category
    return np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)


def lift_over_uniform(counts: Ints) -> Floats:
    """How many times as often an expert takes a category as it would if choices were uniform.

    Args:
        counts: (E, C), choices by expert and category.

    Returns:
        (E, C): E · n(e, c) / n(c); 1 is uniform and E / K the most that is possible. NaN for a
        category without tokens.
    """
    return _ratio(counts * len(counts), counts.sum(0))


def lift_over_load(counts: Ints) -> Floats:
    """How many times as often an expert takes a category as its load lets expect.

    Args:
        counts: (E, C), choices by expert and category.

    Returns:
        (E, C): n(e, c) · n / (n(e) · n(c)), which does not favour busy experts; NaN where an
        expert or a category has no tokens.
    """
    return _ratio(counts * counts.sum(), counts.sum(1)[:, None] * counts.sum(0))


def explained_share(counts: Ints) -> float:
    """How much of the choice of expert the category tells.

    Args:
        counts: (E, C), choices by expert and category.

    Returns:
        Mutual information of expert and category over the entropy of the experts, in [0, 1];
        0 where one expert takes everything. Chance alone gives about
        (E - 1)(C - 1) / (2 N ln E).
    """
    total = counts.sum()
    if not total:
        return 0.0
    joint, experts, categories = counts / total, counts.sum(1) / total, counts.sum(0) / total
    own = _entropy(experts)
    shared = own + _entropy(categories) - _entropy(joint)
    return float(min(max(shared / own, 0.0), 1.0)) if own > 1e-12 else 0.0


def top_tokens(
    expert: Ints, ids: Ints, num_experts: int, *, most: int = 10, at_least: int = 16
) -> list[list[TopToken]]:
    """The tokens of each expert with the highest lift over uniform, the more frequent first.

    Args:
        expert: (N,), in [0, E).
        ids: (N,), the token id of each choice.
        num_experts: E.
        most: How many for an expert at most.
        at_least: How many choices a token must have; the share of a rare one is chance.

    Returns:
        A list for each expert, of tokens that it takes more often than uniform.
    """
    known, place, totals = np.unique(ids, return_inverse=True, return_counts=True)
    pairs, counts = np.unique(expert * len(known) + place, return_counts=True)
    found: list[list[TopToken]] = [[] for _ in range(num_experts)]
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        index, of = pair % len(known), int(totals[pair % len(known)])
        lift = num_experts * count / of
        if of >= at_least and lift > 1:
            found[pair // len(known)].append(TopToken(int(known[index]), count, of, lift))
    return [sorted(f, key=lambda t: (-t.lift, -t.choices, t.id))[:most] for f in found]


def _entropy(shares: Floats) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())


def _ratio(above: Ints, below: Ints) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(below > 0, above / below, np.nan)

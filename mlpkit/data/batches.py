"""Batches of tokens: which windows a step sees, and bits per byte."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mlpkit.data.cache import Dataset
from mlpkit.data.sources import DataError


class EpochOrder(NamedTuple):
    """The order of one epoch.

    Args:
        offset: The token at which window 0 starts.
        windows: The windows in the order in which they are seen, (W,).
    """

    offset: int
    windows: npt.NDArray[np.int64]


class ValBatch(NamedTuple):
    """A batch to validate on.

    Args:
        inputs: Token ids, int64, (B, S).
        targets: The ids that follow them, int64, (B, S).
        num_bytes: The text bytes that each row's targets stand for, int64, (B,).
    """

    inputs: Tensor
    targets: Tensor
    num_bytes: Tensor


def train_batch(
    dataset: Dataset, *, seed: int, index: int, batch_size: int, sequence_length: int
) -> tuple[Tensor, Tensor]:
    """The training batch of an index: a function of its arguments alone, so any step can be redone.

    An epoch is every one of ``windows_per_epoch`` windows once, in an order and from an offset
    drawn from (seed, epoch). The tokens form a ring: a window may run over the end into the start,
    which is one more border between two documents. Batches follow each other through the epochs;
    one may hold the end of an epoch and the start of the next.

    Args:
        dataset: The tokens.
        seed: Names the order, 0 to 2**64 - 1.
        index: The number of the batch, from 0.
        batch_size: Windows in a batch, B.
        sequence_length: Tokens in a window, S.

    Returns:
        Inputs and targets, int64, (B, S) each.

    Raises:
        DataError: The training split is shorter than one sequence.
    """
    num_windows = windows_per_epoch(dataset, sequence_length=sequence_length)
    first = index * batch_size
    starts = np.empty(batch_size, np.int64)
    for row in range(batch_size):
        epoch, place = divmod(first + row, num_windows)
        order = epoch_order(seed, epoch, num_windows, len(dataset.train))
        starts[row] = order.offset + order.windows[place] * sequence_length
    return _inputs_and_targets(dataset.train, starts, sequence_length)


def val_batches(
    dataset: Dataset, *, batch_size: int, sequence_length: int, max_batches: int | None = None
) -> Iterator[ValBatch]:
    """The validation windows from the first token on, without overlap, the same for every run.

    Every token but the first is a target once, up to the last whole window. The last batch may
    have fewer rows.

    Args:
        dataset: The tokens.
        batch_size: Windows in a batch, B.
        sequence_length: Tokens in a window, S.
        max_batches: Stop after so many; None: all.

    Raises:
        DataError: The validation split is shorter than one sequence.
    """
    _require_tokens("validation", len(dataset.val), sequence_length)
    num_windows = (len(dataset.val) - 1) // sequence_length
    starts = np.arange(num_windows, dtype=np.int64) * sequence_length
    for first in range(0, num_windows, batch_size)[:max_batches]:
        rows = starts[first : first + batch_size]
        inputs, targets = _inputs_and_targets(dataset.val, rows, sequence_length)
        counts = _windows(dataset.val_bytes, rows + 1, sequence_length).sum(axis=1)
        yield ValBatch(inputs, targets, torch.from_numpy(counts))


def windows_per_epoch(dataset: Dataset, *, sequence_length: int) -> int:
    """How many windows of S tokens an epoch has; it sees this times S tokens.

    Args:
        dataset: The tokens.
        sequence_length: Tokens in a window, S.

    Raises:
        DataError: The training split is shorter than one sequence.
    """
    _require_tokens("training", len(dataset.train), sequence_length)
    return len(dataset.train) // sequence_length


def tokens_per_epoch(dataset: Dataset, *, sequence_length: int) -> int:
    """How many tokens an epoch trains on: fewer than S of the split are left out, others each time.

    Args:
        dataset: The tokens.
        sequence_length: Tokens in a window, S.

    Raises:
        DataError: The training split is shorter than one sequence.
    """
    return windows_per_epoch(dataset, sequence_length=sequence_length) * sequence_length


def bits_per_byte(nats: float, num_bytes: int) -> float:
    """What a model needs for a byte of text, whatever the tokenizer.

    Args:
        nats: The summed (not mean) cross-entropy of all predicted tokens, end-of-document ones
            included: where a document ends is part of the text.
        num_bytes: The text bytes that the predicted tokens stand for; end-of-document ones: none.

    Returns:
        ``nats / ln 2 / num_bytes``.

    Raises:
        DataError: No byte was predicted.
    """
    if num_bytes <= 0:
        raise DataError(f"bits per byte of {num_bytes} bytes; validate on at least one byte")
    return nats / math.log(2) / num_bytes


@lru_cache(maxsize=4)  # the epoch of now and its neighbours; 8 bytes a window
def epoch_order(seed: int, epoch: int, num_windows: int, num_tokens: int) -> EpochOrder:
    """The order of an epoch, from counter-based random numbers keyed by (seed, epoch).

    Raw Philox words are the same in every version of numpy; its shuffles need not be.

    Args:
        seed: 0 to 2**64 - 1.
        epoch: From 0.
        num_windows: Windows in an epoch, W.
        num_tokens: Tokens in the split.
    """
    draws = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(num_windows + 1)
    order = np.argsort(draws[1:], kind="stable")
    return EpochOrder(int(draws[0] % np.uint64(num_tokens)), order)


def _inputs_and_targets(
    tokens: npt.NDArray[Any], starts: npt.NDArray[np.int64], sequence_length: int
) -> tuple[Tensor, Tensor]:
    ids = torch.from_numpy(_windows(tokens, starts, sequence_length + 1))  # (B, S + 1)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def _windows(
    values: npt.NDArray[Any], starts: npt.NDArray[np.int64], length: int
) -> npt.NDArray[np.int64]:
    places = (starts[:, None] + np.arange(length)) % len(values)  # a ring
    return np.asarray(values[places], dtype=np.int64)  # (B, length)


def _require_tokens(split: str, found: int, sequence_length: int) -> None:
    if sequence_length < 1:
        raise DataError(f"sequence_length is {sequence_length}; give at least 1")
    if found < sequence_length + 1:
        raise DataError(
            f"the {split} split has {found} tokens, one sequence of {sequence_length} needs "
            f"{sequence_length + 1}; give more text or a shorter sequence"
        )

"""Validation: mean loss in nats per token, perplexity, and bits per byte."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mlpkit.data import Dataset
from mlpkit.data.batches import ValBatch, bits_per_byte, val_batches
from mlpkit.model import Decoder
from mlpkit.parallel import Parallel
from mlpkit.training.precision import Precision


@dataclass(frozen=True, kw_only=True)
class Validation:
    """What a model scored on validation text.

    Args:
        loss: Mean cross-entropy, nats per token.
        bpb: Bits per byte of text, which compares across tokenizers.
        tokens: Tokens predicted.
    """

    loss: float
    bpb: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return math.exp(min(self.loss, 700.0))  # exp overflows a float above 709


def evaluate_both(
    model: Decoder,
    dataset: Dataset,
    *,
    precision: Precision,
    batch_size: int,
    sequence_length: int,
    max_tokens: int,
    everything: bool,
    parallel: Parallel,
) -> tuple[Validation, Validation]:
    """Scores a model on the validation text, from its start, in the same order each time.

    Args:
        model: The model; it is in the mode it was afterwards.
        dataset: The tokens.
        precision: Where and how to compute.
        batch_size: Sequences at once.
        sequence_length: Tokens a sequence.
        max_tokens: About how many tokens the first score looks at.
        everything: Whether to go on to the end; otherwise both scores are the first.
        parallel: The processes that share the work.

    Returns:
        The score of the first ``max_tokens`` and, of the same pass, that of everything.
    """
    sizes = {"batch_size": batch_size, "sequence_length": sequence_length}
    first = batches_of(max_tokens, **sizes)
    batches = val_batches(dataset, **sizes, max_batches=None if everything else first)
    totals = list(running(model, batches, precision, parallel))
    return scored(totals[:first][-1], parallel), scored(totals[-1], parallel)


def batches_of(max_tokens: int, *, batch_size: int, sequence_length: int) -> int:
    """How many whole batches are about so many tokens, at least one."""
    return max(1, max_tokens // (batch_size * sequence_length))


class Total(NamedTuple):
    """What one process has seen so far: nats, tokens predicted, and bytes of text."""

    nats: float = 0.0
    tokens: int = 0
    num_bytes: int = 0


def running(
    model: Decoder, batches: Iterable[ValBatch], precision: Precision, parallel: Parallel
) -> Iterator[Total]:
    """The total of this process's rows after each batch."""
    total, was_training = Total(), model.training
    model.eval()
    with torch.inference_mode():
        for batch in batches:
            inputs, targets, num_bytes = map(parallel.rows, batch)
            with precision.autocast():
                nats = model(inputs.to(precision.device), targets=targets.to(precision.device))
            total = Total(
                total.nats + nats.item(),
                total.tokens + targets.numel(),
                total.num_bytes + int(num_bytes.sum()),
            )
            yield total
    model.train(was_training)


def scored(total: Total, parallel: Parallel) -> Validation:
    """The score of what all processes have seen."""
    nats, tokens, num_bytes = map(parallel.total, total)
    return Validation(
        loss=nats / tokens, bpb=bits_per_byte(nats, int(num_bytes)), tokens=int(tokens)
    )

"""Validation: mean loss in nats per token, perplexity, and bits per byte."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mlpkit.data import Dataset
from mlpkit.data.batches import bits_per_byte, val_batches
from mlpkit.model import Decoder
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


def evaluate(
    model: Decoder,
    dataset: Dataset,
    *,
    precision: Precision,
    batch_size: int,
    sequence_length: int,
    max_tokens: int | None = None,
) -> Validation:
    """Scores a model on the validation text, from its start, in the same order each time.

    Args:
        model: The model; it is in the mode it was afterwards.
        dataset: The tokens.
        precision: Where and how to compute.
        batch_size: Sequences at once.
        sequence_length: Tokens a sequence.
        max_tokens: About how many tokens to look at; None: all.
    """
    tokens_per_batch = batch_size * sequence_length
    max_batches = None if max_tokens is None else max(1, max_tokens // tokens_per_batch)
    nats, tokens, num_bytes, was_training = 0.0, 0, 0, model.training
    model.eval()
    with torch.inference_mode():
        for batch in val_batches(
            dataset,
            batch_size=batch_size,
            sequence_length=sequence_length,
            max_batches=max_batches,
        ):
            targets = batch.targets.to(precision.device)
            with precision.autocast():
                logits = model(batch.inputs.to(precision.device))  # (B, S, V)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
            nats += loss.item()
            tokens += targets.numel()
            num_bytes += int(batch.num_bytes.sum())
    model.train(was_training)
    return Validation(loss=nats / tokens, bpb=bits_per_byte(nats, num_bytes), tokens=tokens)

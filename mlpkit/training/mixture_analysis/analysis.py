"""The analysis of a model's experts, as it is written to mixture.json."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlpkit.data import Dataset, Tokenizer
from mlpkit.data.batches import val_batches
from mlpkit.data.labels import LabelsError, TokenLabels, validation_labels
from mlpkit.routing import (
    dead_experts,
    dropped_share,
    load_cv,
    load_entropy,
    max_violation,
    max_violation_share,
    record_routing,
)
from mlpkit.training.mixture_analysis.counts import (
    co_activation,
    conditional,
    count_by_category,
    explained_share,
    lift_over_load,
    lift_over_uniform,
    top_tokens,
)
from mlpkit.training.mixture_analysis.gradients import router_gradients
from mlpkit.training.mixture_analysis.observing import Observed, evaluating, observe
from mlpkit.training.precision import Precision

FORMAT = 1
MAX_TOKENS = 32768  # about 2 % of the default run's time


def analyse_mixture(
    model: nn.Module,
    dataset: Dataset,
    *,
    precision: Precision,
    batch_size: int,
    sequence_length: int,
    max_tokens: int = MAX_TOKENS,
) -> dict[str, Any]:
    """What the experts of a model do with the first validation tokens, as plain values.

    The keys are those of mixture.json in docs/experts.md. A choice is a token given to an
    expert, before capacity takes any away; a token's category and id are those of the input.

    Args:
        model: A model with MoE layers; mode, gradients and counts are as before afterwards.
        dataset: The tokens.
        precision: Where and how to compute.
        batch_size: Sequences at once.
        sequence_length: Tokens a sequence.
        max_tokens: How many tokens at most, rounded to whole batches, at least one.

    Raises:
        DataError: The validation split is shorter than one sequence.
    """
    sizes = {"batch_size": batch_size, "sequence_length": sequence_length}
    seen = observe(model, dataset, precision=precision, max_tokens=max_tokens, **sizes)
    gradients = task_gradients(model, dataset, precision=precision, **sizes)
    tokens = max((layer.num_tokens for layer in seen.values()), default=0)
    ids = np.asarray(dataset.val[:tokens], np.int64)
    labels, unlabelled = _labels(dataset, tokens)
    return {
        "format": FORMAT,
        "tokens": tokens,
        "categories": list(labels.categories) if labels else None,
        "category_tokens": _tokens_by_category(labels) if labels else None,
        "unlabelled": unlabelled,
        "layers": {
            name: {
                **_health(layer),
                "co_activation": _co_activation(layer),
                "categories": _categories(layer, labels) if labels else None,
                "top_tokens": _top_tokens(layer, ids, dataset.tokenizer),
                "gradient": gradients[name],
            }
            for name, layer in seen.items()
        },
    }


def task_gradients(
    model: nn.Module,
    dataset: Dataset,
    *,
    precision: Precision,
    batch_size: int,
    sequence_length: int,
) -> dict[str, dict[str, Any]]:
    """``router_gradients`` of the mean cross-entropy of the first validation batch.

    In evaluation mode: without dropout, jitter and balance terms.

    Args:
        model: A model with MoE layers.
        dataset: The tokens.
        precision: Where and how to compute.
        batch_size: Sequences of the batch.
        sequence_length: Tokens a sequence.
    """
    batch = next(
        val_batches(dataset, batch_size=batch_size, sequence_length=sequence_length, max_batches=1)
    )
    targets = batch.targets.to(precision.device)
    with record_routing(model) as record:
        layers = record.layers  # closed again: nothing of this batch is to be recorded
    with evaluating(model), torch.enable_grad():
        with precision.autocast():
            logits: Tensor = model(batch.inputs.to(precision.device))  # (B, S, V)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        return router_gradients(model, layers, loss)


def _labels(dataset: Dataset, tokens: int) -> tuple[TokenLabels | None, str | None]:
    try:
        return validation_labels(dataset, num_tokens=tokens), None
    except LabelsError as error:  # the rest of the analysis does not need them
        return None, str(error)


def _health(layer: Observed) -> dict[str, Any]:
    load = torch.from_numpy(np.bincount(layer.expert, minlength=layer.num_experts))
    router = getattr(layer.layer, "router", None)
    mean = layer.expert.size / layer.num_tokens
    per_token = getattr(router, "num_experts_per_tok", None) or max(1, round(mean))
    reached = np.unique(layer.token).size
    return {
        "num_experts": layer.num_experts,
        "num_experts_per_tok": per_token,
        "choices_per_token": mean,
        "load": load.tolist(),
        "max_violation": max_violation(load),
        "max_violation_share": max_violation_share(load, per_token),
        "max_violation_batch": sum(layer.violations) / len(layer.violations),
        "load_cv": load_cv(load),
        "load_entropy": load_entropy(load),
        "dead_experts": dead_experts(load),
        "router_entropy": layer.entropy / layer.num_tokens,
        "router_entropy_of_mean": routing_entropy_of(layer.share),
        "router_confidence": layer.confidence / layer.num_tokens,
        "dropped_share": dropped_share(layer.kept, layer.expert.size, 1),
        "unrouted_share": 1 - reached / layer.num_tokens,
    }


def routing_entropy_of(share: npt.NDArray[np.float64]) -> float:
    """The entropy in nats of experts' summed shares (E,): how many they are all in all."""
    total = share / share.sum()
    positive = total[total > 0]
    return float(-(positive * np.log(positive)).sum())


def _co_activation(layer: Observed) -> dict[str, Any]:
    counts = co_activation(layer.token, layer.expert, layer.num_tokens, layer.num_experts)
    return {"counts": counts.tolist(), "conditional": plain(conditional(counts))}


def _tokens_by_category(labels: TokenLabels) -> list[int]:
    counts: list[int] = np.bincount(labels.labels, minlength=len(labels.categories)).tolist()
    return counts


def _categories(layer: Observed, labels: TokenLabels) -> dict[str, Any]:
    shape = (layer.num_experts, len(labels.categories))
    counts = count_by_category(layer.expert, labels.labels[layer.token], shape)
    return {
        "counts": counts.tolist(),
        "lift_over_uniform": plain(lift_over_uniform(counts)),
        "lift_over_load": plain(lift_over_load(counts)),
        "explained_share": explained_share(counts),
    }


def _top_tokens(
    layer: Observed, ids: npt.NDArray[np.int64], tokenizer: Tokenizer
) -> list[list[dict[str, Any]]]:
    found = top_tokens(layer.expert, ids[layer.token], layer.num_experts)
    return [
        [{"token": readable(tokenizer, t.id), **t._asdict(), "lift": round(t.lift, 6)} for t in row]
        for row in found
    ]


def readable(tokenizer: Tokenizer, token: int) -> str:
    """A token as text: bytes that are no UTF-8 in hexadecimal, an end of document by its name."""
    if token == tokenizer.eos:
        return "<end>"
    return tokenizer.decode([token]).decode("utf-8", "backslashreplace")


def plain(values: npt.NDArray[np.float64]) -> list[list[float | None]]:
    """A table for JSON: six decimals, None for NaN."""
    return [[None if math.isnan(v) else round(v, 6) for v in row] for row in values.tolist()]

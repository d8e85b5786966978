"""Continuing token sequences with a Decoder and its cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from mlpkit.model.cache import KVCache
from mlpkit.model.decoder import Decoder


class GenerationError(ValueError):
    """A setting of generate that cannot be used; the message says what can."""

    exit_code = 2


def generate(
    model: Decoder,
    tokens: Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    eos: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Continues each sequence by sampling; dropout is off, and the model's mode is kept.

    Args:
        model: The Decoder.
        tokens: (B, S) integers, S at least 1.
        max_new_tokens: Number of tokens N to add.
        temperature: Divides the logits; 0 takes the most likely token.
        top_k: Sample among this many most likely tokens; None: among all.
        generator: Source of the draws, on the model's device; None: torch's global one.
        eos: The token that ends a sequence; what follows it is filled with it.
        mask: (B, S) bool, True = real, for prompts padded on the left; None: all are real.

    Returns:
        (B, S + N): the prompt and its continuation.

    Raises:
        GenerationError: A setting is out of range, a prompt is empty or not padded on the left.
    """
    check_settings(tokens, max_new_tokens, temperature, top_k, mask)
    # Made outside inference_mode: a tensor born inside it could not be trained on later.
    fill = 0 if eos is None else eos
    sequence = torch.cat((tokens, tokens.new_full((len(tokens), max_new_tokens), fill)), dim=1)
    with torch.inference_mode(), evaluation_mode(model):
        cache = KVCache(num_layers=len(model.layers), max_length=sequence.shape[1])
        ended = torch.zeros_like(tokens[:, 0], dtype=torch.bool)  # (B,)
        unseen = tokens
        for column in range(tokens.shape[1], sequence.shape[1]):
            hidden = model.hidden(unseen, cache=cache, mask=mask)[:, -1]  # (B, H)
            chosen = choose(model.logits(hidden), temperature, top_k, generator)  # (B,)
            if eos is not None:
                chosen = chosen.masked_fill(ended, eos)
                ended = ended | (chosen == eos)
            sequence[:, column] = chosen
            if ended.all():
                break
            unseen = chosen[:, None]  # (B, 1)
            mask = None if mask is None else torch.cat((mask, mask[:, -1:]), dim=1)
    return sequence


def choose(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    """Draws one token per row.

    Args:
        logits: (B, V).
        temperature: As in generate.
        top_k: As in generate; more than V means all.
        generator: As in generate.

    Returns:
        (B,) tokens.
    """
    if temperature == 0:
        return logits.argmax(-1)
    size = logits.shape[-1]
    best, tokens = logits.float().topk(size if top_k is None else min(top_k, size))
    # The largest becomes 0 before the division, which a tiny temperature would overflow.
    likely = ((best - best[:, :1]) / temperature).softmax(-1)  # (B, top_k)
    return tokens.gather(-1, torch.multinomial(likely, 1, generator=generator))[:, 0]  # (B,)


def check_settings(
    tokens: Tensor,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    mask: Tensor | None,
) -> None:
    """Refuses what generate cannot do, before anything is computed.

    Args:
        tokens: As in generate.
        max_new_tokens: As in generate.
        temperature: As in generate.
        top_k: As in generate.
        mask: As in generate.

    Raises:
        GenerationError: The first setting found that is out of range.
    """
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise GenerationError(
            f"tokens have shape {tuple(tokens.shape)}; a prompt is (B, S) with at least one token"
        )
    if max_new_tokens < 0:
        raise GenerationError(f"max_new_tokens is {max_new_tokens}; it must be 0 or more")
    if not 0 <= temperature < float("inf"):
        raise GenerationError(f"temperature is {temperature}; use 0 (most likely) or more")
    if top_k is not None and top_k < 1:
        raise GenerationError(f"top_k is {top_k}; use 1 or more, or None for all tokens")
    if mask is not None and not mask[:, -1].all():
        raise GenerationError("a prompt ends in padding; pad prompts on the left")


@contextmanager
def evaluation_mode(model: Decoder) -> Iterator[None]:
    """Switches to evaluation and back, each module to its own mode (frozen parts may differ).

    Args:
        model: The Decoder.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training

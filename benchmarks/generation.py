"""Generation with a cache: tokens a second against transformers' generate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from mlpkit.build import build_model
from mlpkit.model import generate

from .cases import Case, Effort
from .clock import Call, fastest
from .machine import device
from .steps import OURS, SMALL, TINY, VOCABULARY, peer_model

PROMPT, GENERATION_TARGET = 16, 1.5


def run(effort: Effort) -> Iterator[Case]:
    """Times greedy continuations of one sequence and of eight."""
    shape, new = (TINY, 4) if effort.quick else (SMALL, 64)
    for mixture in (False, True):
        for batch in (1, 8):
            calls, missing = contenders(shape, mixture, batch, new)
            timings = fastest(calls, rounds=effort.rounds, budget=effort.budget, device=device())
            kind = "E 8, K 2" if mixture else "dense"
            yield Case(
                part="generation",
                title=f"generation, {kind}, batch {batch}, {new} tokens",
                values={name: batch * new / timing.best for name, timing in timings.items()},
                unit="tokens/s",
                facts={"mixture": mixture, "batch": batch, "tokens": new},
                ours=OURS,
                target=None if effort.quick else GENERATION_TARGET,
                kept=sum(timing.kept for timing in timings.values()),
                discarded=sum(timing.discarded for timing in timings.values()),
                missing=missing,
            )


def contenders(
    shape: dict[str, int], mixture: bool, batch: int, new: int
) -> tuple[dict[str, Call], dict[str, str]]:
    """Greedy continuations of random prompts by models of the same shape."""
    overrides = [f"model.{key}={value}" for key, value in shape.items()]
    kind = "ffn=moe" if mixture else "ffn=swiglu"
    model = build_model([kind, *overrides, f"model.vocab_size={VOCABULARY}"]).to(device())
    prompt = torch.randint(0, VOCABULARY, (batch, PROMPT), device=device())
    calls: dict[str, Call] = {
        OURS: lambda: generate(model, prompt, max_new_tokens=new, temperature=0)
    }
    try:
        peer: Any = peer_model(shape, mixture).to(device()).eval()
    except ImportError as error:
        return calls, {"transformers": f"{type(error).__name__}: {error}"}
    settings = {"min_new_tokens": new, "max_new_tokens": new, "do_sample": False}
    mask = torch.ones_like(prompt)
    calls["transformers"] = lambda: peer.generate(
        prompt, attention_mask=mask, use_cache=True, eos_token_id=None, **settings
    )
    return calls, {}

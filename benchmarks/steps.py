"""Whole training steps: mlpkit's own loop against the same model in a transformers loop."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from mlpkit.build import build_model
from mlpkit.compose import compose
from mlpkit.data.tokenizers import build_tokenizer
from mlpkit.describe import describe
from mlpkit.training.loop import Run
from mlpkit.training.precision import choose_precision

from .cases import Case, Effort, from_timings
from .clock import Call, fastest
from .machine import device

STEP_TARGET, DEFAULTS_TARGET = 0.95, 0.5
SMALL = {"hidden_size": 256, "num_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4}
TINY = {"hidden_size": 16, "num_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
EXPERTS, PER_TOKEN = 8, 2
VOCABULARY = 6400  # MiniMind's
OURS = "mlpkit"


def run(effort: Effort) -> Iterator[Case]:
    """Times a dense model and a mixture, in each precision and with each side's defaults."""
    shape, batch = (TINY, (2, 8)) if effort.quick else (SMALL, (32, 128))
    for mixture in (False, True):
        for precision in ("float32", "bf16"):
            calls: dict[str, Call] = {OURS: our_step(shape, batch, mixture, precision)}
            missing = add_peer(calls, "transformers", shape, batch, mixture, precision, fused=True)
            yield case(calls, missing, mixture, precision, batch, STEP_TARGET, effort)
    defaults = choose_precision("auto", "auto")
    calls = {OURS: our_step(shape, batch, False, "auto")}
    # MiniMind trains in float32 on a CPU, in bf16 autocast on a GPU, with plain AdamW.
    recipe = "bf16" if device() == "cuda" else "float32"
    missing = add_peer(calls, "MiniMind's recipe", shape, batch, False, recipe, fused=False)
    yield case(calls, missing, False, f"defaults ({defaults})", batch, DEFAULTS_TARGET, effort)


def case(
    calls: dict[str, Call],
    missing: dict[str, str],
    mixture: bool,
    precision: str,
    batch: tuple[int, int],
    target: float,
    effort: Effort,
) -> Case:
    """One case: seconds of a step."""
    kind = f"E {EXPERTS}, K {PER_TOKEN}" if mixture else "dense"
    timings = fastest(calls, rounds=effort.rounds, budget=effort.budget, device=device())
    return from_timings(
        timings,
        part="steps",
        title=f"training step, {kind}, {batch[0]} x {batch[1]} tokens, {precision}",
        facts={"mixture": mixture, "precision": precision, "tokens": batch[0] * batch[1]},
        ours=OURS,
        target=None if effort.quick else target,
        missing=missing,
    )


def our_step(shape: dict[str, int], batch: tuple[int, int], mixture: bool, precision: str) -> Call:
    """One step of mlpkit's training loop, with what it logs going nowhere."""
    config = compose(
        [
            f"ffn={'moe' if mixture else 'swiglu'}",
            *(f"model.{key}={value}" for key, value in shape.items()),
            f"model.vocab_size={VOCABULARY}",
            f"training.batch_size={batch[0]}",
            f"training.sequence_length={batch[1]}",
            f"training.precision={precision}",
            "training.max_steps=1000000",
            "training.eval_every=1000000",
        ]
    )
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 1 << 18)
    tokenizer = build_tokenizer("bytes")
    dataset: Any = SimpleNamespace(train=tokens, val=tokens, tokenizer=tokenizer)
    model = build_model(config, tokenizer=tokenizer)
    chosen = choose_precision(config.training.device, config.training.precision)
    model.to(chosen.device)
    quiet = Console(quiet=True)
    loop = Run(config, model, dataset, chosen, describe(config, model), quiet)
    directory: Any = SimpleNamespace(log=lambda line: None)
    display: Any = SimpleNamespace(step=lambda *_: None)
    return lambda: loop.take_step(directory, display)


def add_peer(
    calls: dict[str, Call],
    name: str,
    shape: dict[str, int],
    batch: tuple[int, int],
    mixture: bool,
    precision: str,
    *,
    fused: bool,
) -> dict[str, str]:
    """Adds transformers' model of the same shape; returns why not, where it cannot."""
    try:
        model = peer_model(shape, mixture).to(device())
    except ImportError as error:
        return {name: f"{type(error).__name__}: {error}"}
    calls[name] = peer_step(model, batch, precision, fused=fused)
    return {}


def peer_model(shape: dict[str, int], mixture: bool) -> nn.Module:
    """LlamaForCausalLM, or Qwen3MoeForCausalLM, of the size of ours."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    from mlpkit.configs.moe import matched_expert_width
    from mlpkit.sizing import width_two_thirds

    width = width_two_thirds(shape["hidden_size"])
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": shape["hidden_size"],
        "num_hidden_layers": shape["num_layers"],
        "num_attention_heads": shape["num_attention_heads"],
        "num_key_value_heads": shape["num_key_value_heads"],
        "head_dim": shape["hidden_size"] // shape["num_attention_heads"],
        "tie_word_embeddings": True,
        "use_cache": False,
        "pad_token_id": None,
    }
    if not mixture:
        model: nn.Module = LlamaForCausalLM(LlamaConfig(intermediate_size=width, **common))
        return model
    config = Qwen3MoeConfig(
        intermediate_size=width,
        moe_intermediate_size=matched_expert_width(width, PER_TOKEN),
        num_experts=EXPERTS,
        num_experts_per_tok=PER_TOKEN,
        norm_topk_prob=True,
        output_router_logits=True,  # its balance loss, as ours has one
        experts_implementation="grouped_mm",
        **common,
    )
    mixed: nn.Module = Qwen3MoeForCausalLM(config)
    return mixed


def peer_step(model: Any, batch: tuple[int, int], precision: str, *, fused: bool) -> Call:
    """One step as people write it: autocast, loss, backward, clip, AdamW."""
    options = {"fused": True} if fused else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)  # type: ignore[arg-type]
    lowered = torch.autocast(device(), dtype=torch.bfloat16, enabled=precision == "bf16")
    model.train()

    def call() -> None:
        tokens = torch.randint(0, VOCABULARY, batch, device=device())  # others each time, as ours
        with lowered:
            loss: Tensor = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return call

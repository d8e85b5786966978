"""FFN layers side by side: mlpkit against transformers, as ratios inside one run.

Every contender is timed in turn, round after round, and the fastest round of each counts: the
others tell of the machine. Run it with ``make bench``; ``--quick`` takes seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, MixtralConfig
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from mlpkit.build import build_ffn
from mlpkit.sizing import width_two_thirds

NUM_EXPERTS, NUM_EXPERTS_PER_TOK = 8, 2


def contenders(hidden: int, width: int) -> dict[str, nn.Module]:
    """Layers of equal active width; the first is what the others are compared with."""
    expert_width = width // NUM_EXPERTS_PER_TOK
    llama = LlamaConfig(hidden_size=hidden, intermediate_size=width, hidden_act="silu")
    mixtral = MixtralConfig(
        hidden_size=hidden,
        intermediate_size=expert_width,
        num_local_experts=NUM_EXPERTS,
        num_experts_per_tok=NUM_EXPERTS_PER_TOK,
    )
    blocks = {}
    for implementation in ("eager", "grouped_mm"):
        mixtral._experts_implementation = implementation
        blocks[implementation] = MixtralSparseMoeBlock(mixtral)
    moe = {"name": "moe", "num_experts": NUM_EXPERTS, "num_experts_per_tok": NUM_EXPERTS_PER_TOK}
    layers: dict[str, nn.Module] = {
        "transformers LlamaMLP": LlamaMLP(llama),
        "mlpkit swiglu": build_ffn("swiglu", hidden_size=hidden, intermediate_size=width),
    }
    for backend in ("auto", "loop", "grouped"):
        layers[f"mlpkit moe {backend}"] = build_ffn(
            {**moe, "backend": backend, "expert": _expert(expert_width)}, hidden_size=hidden
        )
    layers.update({f"transformers mixtral {k}": block for k, block in blocks.items()})
    for layer in layers.values():
        for parameter in layer.parameters():  # transformers leaves some uninitialised
            nn.init.normal_(parameter, std=hidden**-0.5)
    return layers


def _expert(width: int) -> dict[str, Any]:
    return {"name": "swiglu", "intermediate_size": width}


def run_once(layer: nn.Module, x: Tensor, grad: Tensor, backward: bool) -> None:
    """One forward, or a forward and a backward."""
    out = layer(x)
    out = out[0] if isinstance(out, tuple) else out
    if backward:
        out.backward(grad)


def fastest(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Seconds of the fastest call of each contender, taken in turn."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def measure(hidden: int, tokens: int, dtype: torch.dtype, backward: bool, rounds: int) -> Any:
    """A row: milliseconds and ratios to the first contender."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width = width_two_thirds(hidden)
    layers = {k: v.to(device, dtype) for k, v in contenders(hidden, width).items()}
    x = torch.randn(1, tokens, hidden, device=device, dtype=dtype, requires_grad=backward)
    grad = torch.randn_like(x)
    calls = {
        name: (lambda layer=layer: run_once(layer, x, grad, backward))
        for name, layer in layers.items()
    }
    with torch.set_grad_enabled(backward):
        seconds = fastest(calls, rounds)
    first = next(iter(seconds.values()))
    return {
        "hidden_size": hidden,
        "intermediate_size": width,
        "tokens": tokens,
        "dtype": str(dtype).removeprefix("torch."),
        "backward": backward,
        "device": device,
        "milliseconds": {k: round(v * 1e3, 3) for k, v in seconds.items()},
        "ratio": {k: round(v / first, 3) for k, v in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    sizes = [(32, 16)] if options.quick else [(512, 2048)]
    rounds = 1 if options.quick else options.rounds
    torch.manual_seed(0)
    rows = []
    for hidden, tokens in sizes:
        for dtype in (torch.float32, torch.bfloat16):
            for backward in (False, True):
                row = measure(hidden, tokens, dtype, backward, rounds)
                rows.append(row)
                what = "forward + backward" if backward else "forward"
                print(
                    f"\nH {hidden}, I {row['intermediate_size']}, {tokens} tokens, "
                    f"{row['dtype']}, {what}, {row['device']}, {torch.get_num_threads()} threads"
                )
                for name, ratio in row["ratio"].items():
                    print(f"  {name:<32} {row['milliseconds'][name]:>9.2f} ms  {ratio:>6.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()

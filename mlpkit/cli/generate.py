"""``mlpkit generate``: continue a text with a trained run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("--prompt", default="", help="the text to continue")
    parser.add_argument("--tokens", type=int, default=200, help="tokens to add (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling (default 0)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0 takes the likeliest token (default 0.8)"
    )
    parser.add_argument("--top-k", type=int, help="sample among the k likeliest tokens")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the prompt and its continuation."""
    import torch  # takes seconds: the parser does without

    from mlpkit.model import generate
    from mlpkit.training import load_run
    from mlpkit.training.progress import printable

    model, tokenizer, _ = load_run(options.run_dir)
    ids = tokenizer.encode(options.prompt.encode()).tolist()
    if not ids:  # an empty prompt starts a new document
        ids = [tokenizer.eos if tokenizer.eos is not None else 0]
    tokens = generate(
        model,
        torch.tensor([ids]),
        max_new_tokens=options.tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        generator=torch.Generator().manual_seed(options.seed),
        eos=tokenizer.eos,
    )
    text = tokenizer.decode(tokens[0].tolist()).decode("utf-8", "replace")
    print(printable(text) if sys.stdout.isatty() else text)
    return 0

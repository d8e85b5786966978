"""``mlpkit generate``: continue a text with a trained run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from mlpkit.registry import printable


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("--prompt", default="", help="the text to continue")
    parser.add_argument(
        "--tokens", type=whole(2**31), default=200, help="tokens to add (default 200)"
    )
    parser.add_argument(
        "--seed", type=whole(2**63), default=0, help="seed of the sampling (default 0)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0 takes the likeliest token (default 0.8)"
    )
    parser.add_argument("--top-k", type=int, help="sample among the k likeliest tokens")
    parser.set_defaults(run=run)


def whole(limit: int) -> Callable[[str], int]:
    """Reads a whole number from 0 to below a limit; argparse reports what it refuses."""

    def read(text: str) -> int:
        if not 0 <= int(text) < limit:
            raise argparse.ArgumentTypeError(f"{text}: give a number from 0 to {limit - 1}")
        return int(text)

    read.__name__ = "int"  # what argparse calls the value in its message
    return read


def run(options: argparse.Namespace) -> int:
    """Prints the prompt and its continuation."""
    import torch  # takes seconds: the parser does without

    from mlpkit.model import generate
    from mlpkit.training import load_run

    model, tokenizer, _ = load_run(options.run_dir)
    # bytes of a command line that are not UTF-8 come as surrogates
    ids = tokenizer.encode(os.fsencode(options.prompt)).tolist()
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

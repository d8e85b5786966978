"""Our logits and those of transformers on the same tokens: the check of an exported folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from mlpkit.build import build_model
from mlpkit.convert.matching import Vocabulary
from mlpkit.convert.sources import Source
from mlpkit.model import Decoder

TOKENS = (2, 24)  # sequences and their length


def largest_difference(config: DictConfig, source: Source, folder: Path) -> tuple[float, float]:
    """Compares in float32 what both compute on random tokens.

    Args:
        config: Our configuration.
        source: Our weights.
        folder: The exported folder.

    Returns:
        The largest difference of a logit, and the largest logit of ours.
    """
    ours = load_model(config, source)
    vocab = ours.embed_tokens.num_embeddings
    ids = torch.randint(vocab, TOKENS, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        own = ours(ids)
        with quiet():
            from transformers import AutoModelForCausalLM  # optional, and seconds to import

            model: Any = AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=torch.float32, trust_remote_code=False
            )
        theirs = model.eval()(ids).logits
    return float((own - theirs).abs().max()), float(own.abs().max())


def load_model(config: DictConfig, source: Source) -> Decoder:
    """Our model in float32 with weights of any precision.

    Args:
        config: Our configuration.
        source: Our weights.
    """
    vocab = source.entries["embed_tokens.weight"].shape[0]
    model = build_model(config, tokenizer=Vocabulary(vocab)).float()
    model.load_state_dict({name: source.get(name) for name in source.entries})
    return model.eval()


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and warnings of transformers."""
    from transformers.utils import logging

    library: Any = logging  # it has no types
    level, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity_error()
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(level)
        if bars:
            library.enable_progress_bar()

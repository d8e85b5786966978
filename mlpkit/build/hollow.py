"""A decoder without memory, to be looked at before a real one is built."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from mlpkit.build.models import build_model
from mlpkit.build.parts import BuildError
from mlpkit.compose import first_line
from mlpkit.data import Tokenizer
from mlpkit.model import Decoder
from mlpkit.plugins import registries
from mlpkit.schema import schema_of

UNCOUNTABLE = (RuntimeError, OverflowError, TypeError)  # what torch has raised for such sizes


class UncountableError(BuildError):
    """A model with a tensor of more bytes, or elements, than a number can say."""


def is_uncountable(error: Exception) -> bool:
    """Whether an error of torch means more bytes, or elements, than a number can say."""
    return any(word in str(error).lower() for word in ("overflow", "too large"))


def hollow_model(config: DictConfig, *, tokenizer: Tokenizer) -> Decoder:
    """The decoder of a configuration on the meta device; its tensors have shapes and no values.

    Its experts are run by the loop: any other backend is tried first, with numbers of their size.

    Args:
        config: A composed configuration.
        tokenizer: The tokenizer whose vocabulary it has.

    Raises:
        BuildError: A part refuses its options.
        UncountableError: Its sizes are beyond what torch counts.
    """
    plain: Any = OmegaConf.to_container(config, resolve=False)
    by_loop = OmegaConf.merge(config, {key: _by_loop(plain[key]) for key in ("ffn", "ffns")})
    assert isinstance(by_loop, DictConfig)
    try:
        with torch.device("meta"):
            return build_model(by_loop, tokenizer=tokenizer)
    except UNCOUNTABLE as error:
        if not is_uncountable(error):
            raise
        raise UncountableError(f"the model cannot be counted: {first_line(error)}") from error


def _by_loop(node: Any) -> Any:
    """An FFN's options, with the loop as the backend of every mixture in them."""
    if isinstance(node, list):
        return [_by_loop(item) for item in node]
    if not isinstance(node, dict):
        return node
    inner = {key: _by_loop(value) for key, value in node.items()}
    return {**inner, "backend": "loop"} if _has_backend(node.get("name")) else inner


def _has_backend(name: Any) -> bool:
    ffns = registries().ffn
    if not isinstance(name, str) or name not in ffns:
        return False
    schema = schema_of("ffn", ffns.get(name))
    return "backend" in {field.name for field in dataclasses.fields(schema)}

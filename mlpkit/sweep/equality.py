"""Whether two configurations are the same run under two names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from mlpkit.build import build_model
from mlpkit.sweep.jobs import PASSING

# What the built model shows by itself, whatever it was called, and how its widths came about.
MODEL_KEYS = ("ffn", "ffns", "activation", "model", "match", "match_to", "lint")
DEPTH = 6  # of plain objects inside modules
COMMON = frozenset(vars(nn.Module()))  # attributes of every module


def run_key(config: DictConfig) -> str:
    """A text that is equal for two configurations that run the same.

    The model is built without storage, and every module gives its class, its plain attributes and
    the shapes of its tensors: ``ffn=geglu`` is ``ffn=gated activation=gelu``.

    Args:
        config: A composed configuration.
    """
    content = OmegaConf.to_container(config, resolve=True)
    assert isinstance(content, dict)
    rest = {key: value for key, value in content.items() if key not in (*MODEL_KEYS, *PASSING)}
    rest["dropout"] = content["model"]["dropout"]
    with torch.device("meta"):
        model = build_model(config)
    modules = {name: facts(module) for name, module in model.named_modules()}
    return json.dumps({"seed": rest.pop("seed"), "rest": rest, "modules": modules}, sort_keys=True)


def without_seed(key: str) -> str:
    """The key of a run whatever its seed: equal for replicates."""
    content = json.loads(key)
    del content["seed"]
    return json.dumps(content, sort_keys=True)


def facts(module: nn.Module, depth: int = DEPTH) -> list[Any]:
    """What a module is by itself, without its children; a template it keeps aside is no child."""
    tensors = {**module._parameters, **module._buffers}
    shapes = {key: None if t is None else list(t.shape) for key, t in tensors.items()}
    own = {key: plain(v, depth) for key, v in vars(module).items() if key not in COMMON}
    return [kind(module), shapes, own]


def plain(value: Any, depth: int) -> Any:
    """A value as JSON: plain values as they are, objects as their class and attributes."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return [str(value.dtype), list(value.shape)]
    if depth == 0:
        return kind(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry, depth - 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, depth - 1) for entry in value]
    if isinstance(value, nn.Module):
        return [facts(part, depth - 1) for part in value.modules()]
    if isinstance(value, partial):
        return plain([value.func, value.args, value.keywords], depth - 1)
    if hasattr(value, "__qualname__") or not hasattr(value, "__dict__"):  # a function or class
        return getattr(value, "__qualname__", kind(value))
    return [kind(value), {key: plain(entry, depth - 1) for key, entry in vars(value).items()}]


def kind(value: Any) -> str:
    """The class of a value, with its module."""
    return f"{type(value).__module__}.{type(value).__qualname__}"

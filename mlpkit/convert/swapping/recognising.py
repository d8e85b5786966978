"""Reading someone else's FFN: its projections under their usual names, its sizes, its manners."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

# What model codebases call the three projections, one scheme a line: gate, up, down.
SCHEMES: tuple[dict[str, str], ...] = (
    {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"},  # Llama and most of the Hub
    {"gate": "w1", "up": "w3", "down": "w2"},  # Meta's own Llama, Mixtral
    {"gate": "wi_0", "up": "wi_1", "down": "wo"},  # T5 v1.1
    {"fused": "gate_up_proj", "down": "down_proj"},  # Phi-3, GLM-4: [gate; up]
    {"up": "up_proj", "down": "down_proj"},  # Nemotron, Arcee
    {"up": "c_fc", "down": "c_proj"},  # GPT-2
    {"up": "fc1", "down": "fc2"},  # OPT, Phi, ViT
    {"up": "fc_in", "down": "fc_out"},  # GPT-J
    {"up": "dense_h_to_4h", "down": "dense_4h_to_h"},  # GPT-NeoX, Falcon
    {"up": "wi", "down": "wo"},  # T5
    {"up": "lin1", "down": "lin2"},  # DistilBERT
    {"up": "linear1", "down": "linear2"},
    {"up": "w1", "down": "w2"},
)
SIZES = ("hidden_size", "n_embd", "d_model", "hidden_dim")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is known of an FFN.

    Args:
        hidden_size: H; None: it could not be told.
        intermediate_size: I; None: its projections are not known ones.
        bias: Whether its projections have biases.
        tensors: Its weights under mlpkit's names, e.g. ``gate_proj.weight (I, H)``.
        origins: The same names → what the FFN calls them.
    """

    hidden_size: int | None = None
    intermediate_size: int | None = None
    bias: bool = False
    tensors: dict[str, Tensor] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)


def recognise(module: nn.Module) -> Found:
    """Reads the projections of an FFN; where their names are unknown, only its width H."""
    children = dict(module.named_children())
    for scheme in SCHEMES:
        if all(name in children and _is_linear(children[name]) for name in scheme.values()):
            return _read(scheme, {role: children[name] for role, name in scheme.items()})
    linears = [_matrix(m) for m in module.modules() if _is_linear(m)]
    widths = {linears[0].shape[1], linears[-1].shape[0]} if linears else set()
    return Found(hidden_size=widths.pop() if len(widths) == 1 else None)


def _read(scheme: dict[str, str], linears: dict[str, nn.Module]) -> Found:
    tensors: dict[str, Tensor] = {}
    origins: dict[str, str] = {}
    for role, linear in linears.items():
        bias = getattr(linear, "bias", None)
        parts = {"weight": _matrix(linear), **({} if bias is None else {"bias": bias.detach()})}
        for kind, tensor in parts.items():
            halves = tensor.chunk(2) if role == "fused" else (tensor,)
            for name, half in zip(
                ("gate", "up") if role == "fused" else (role,), halves, strict=True
            ):
                tensors[f"{name}_proj.{kind}"] = half
                origins[f"{name}_proj.{kind}"] = f"{scheme[role]}.{kind}"
    hidden, width = tensors["down_proj.weight"].shape
    return Found(
        hidden_size=hidden,
        intermediate_size=width,
        bias="down_proj.bias" in tensors,
        tensors=tensors,
        origins=origins,
    )


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or _is_conv1d(module)


def _is_conv1d(module: nn.Module) -> bool:
    """GPT-2's linear layer, whose weight stands the other way round; transformers is not needed."""
    weight = getattr(module, "weight", None)
    return type(module).__name__ == "Conv1D" and isinstance(weight, Tensor) and weight.dim() == 2


def _matrix(linear: nn.Module) -> Tensor:
    """A linear layer's weight as (out, in)."""
    weight: Tensor = linear.weight.detach()  # type: ignore[operator]
    return weight.T if _is_conv1d(linear) else weight


def hidden_size_of(model: nn.Module, module: nn.Module, found: Found) -> int | None:
    """H of an FFN: from its projections, its own attributes, or its model's configuration."""
    if found.hidden_size is not None:
        return found.hidden_size
    for owner in (module, getattr(model, "config", None)):
        for name in SIZES:
            if type(value := getattr(owner, name, None)) is int:
                return value
    return None


def manners(module: nn.Module, hidden_size: int) -> str:
    """What keeps an FFN from standing here: the old module is asked on one position.

    Args:
        module: The module that is there now; it stays as it is.
        hidden_size: H.

    Returns:
        What is wrong; empty if a tensor (1, 2, H) comes back as one.
    """
    tensor = next(module.parameters(), torch.zeros(()))
    x = torch.zeros(1, 2, hidden_size, dtype=tensor.dtype, device=tensor.device)
    try:
        with torch.no_grad():
            # a copy in evaluation: no hook, counter or running mean of the original moves
            out = copy.deepcopy(module).eval()(x)
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        return (
            f"it does not take one tensor (1, 2, {hidden_size}) ({type(error).__name__}: {reason})"
        )
    if not isinstance(out, Tensor):
        return f"it returns a {type(out).__name__}, and an FFN returns a tensor"
    if out.shape != x.shape:
        return f"it maps {tuple(x.shape)} to {tuple(out.shape)}, and an FFN keeps the shape"
    return ""


def likely_places(model: nn.Module) -> list[str]:
    """The patterns under which a model has FFNs with known projections: ``layers.*.mlp``."""
    return list(dict.fromkeys(_patterns(model)))


def _patterns(model: nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        if name and recognise(module).tensors:
            yield re.sub(r"(?<![^.])\d+(?![^.])", "*", name)

"""MiniMind's state dicts: which generation they are of, and the sizes that no file says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlpkit.convert.families import FAMILIES, Family
from mlpkit.convert.folders import WeightsError
from mlpkit.convert.layout import count_numbered
from mlpkit.convert.names import EMBEDDING, HEAD
from mlpkit.convert.sources import Source

LAYER = "model.layers.0."
GATES = ("mlp.gate_proj.weight", "mlp.experts.0.gate_proj.weight")


def minimind_generation(source: Source) -> Family:
    """The generation of a MiniMind: today's normalises queries and keys, that of 2025 does not.

    Args:
        source: Its tensors.
    """
    today = f"{LAYER}self_attn.q_norm.weight" in source.entries
    return FAMILIES["minimind" if today else "minimind_2025"]


def minimind_config(source: Source, said: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a MiniMind, from the shapes of its weights and its trainer's defaults.

    Args:
        source: Its tensors, as its trainer saves them.
        said: What a ``config.json`` beside them says, which holds.

    Returns:
        What a ``config.json`` would hold.

    Raises:
        WeightsError: They are no MiniMind's.
    """
    family = minimind_generation(source)
    names = list(source.entries)
    vocab, hidden = _shape(source, EMBEDDING)
    queries, _ = _shape(source, f"{LAYER}self_attn.q_proj.weight")
    keys, _ = _shape(source, f"{LAYER}self_attn.k_proj.weight")
    heads = said.get("num_attention_heads")
    heads = heads if isinstance(heads, int) else family.defaults["num_attention_heads"]
    head_dim = _head_dim(source, queries, heads)
    gate = next((LAYER + name for name in GATES if LAYER + name in source.entries), "")
    width, _ = _shape(source, gate or LAYER + GATES[0])
    experts = count_numbered(names, f"{LAYER}mlp.experts.{{e}}.gate_proj.weight")
    shared = count_numbered(names, f"{LAYER}mlp.shared_experts.{{e}}.gate_proj.weight")
    found = {
        "model_type": "minimind",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": count_numbered(names, "model.layers.{e}.input_layernorm.weight"),
        "num_attention_heads": queries // head_dim,
        "num_key_value_heads": keys // head_dim,
        "head_dim": head_dim,
        "intermediate_size": width,
        "moe_intermediate_size": width,
        "use_moe": experts > 0,
        "tie_word_embeddings": _is_tied(source),
    }
    if experts:
        key = "num_experts" if family.name == "minimind" else "n_routed_experts"
        found |= {key: experts, "n_shared_experts": shared}
    return {**found, **{key: value for key, value in said.items() if value is not None}}


def _head_dim(source: Source, queries: int, heads: int) -> int:
    """The width of a head; without the norm of one only the number of heads tells it."""
    norm = source.entries.get(f"{LAYER}self_attn.q_norm.weight")
    head_dim = norm.shape[0] if norm is not None and norm.shape else queries // max(1, heads)
    if not head_dim:
        raise WeightsError(f"{source.label}: queries of width {queries} are no {heads} heads")
    return head_dim


def _shape(source: Source, name: str) -> tuple[int, int]:
    entry = source.entries.get(name)
    if entry is None or len(entry.shape) != 2:
        found = "is missing" if entry is None else f"has the shape {entry.shape}"
        raise WeightsError(f"{source.label}: {name} {found}; a .pth is read of MiniMind alone")
    return entry.shape[0], entry.shape[1]


def _is_tied(source: Source) -> bool:
    if HEAD not in source.entries:
        return True
    return source.get(HEAD).equal(source.get(EMBEDDING))

"""What is known of one family: its keys in our words, and how its weights are named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlpkit.convert.layout import Rule
from mlpkit.convert.settings import Settings


@dataclass(frozen=True, kw_only=True)
class ExpertKeys:
    """Where a family's configuration says what its mixture is.

    Args:
        preset: Our preset of the block.
        number: The key of E, and its other spellings.
        width: The key of an expert's width.
        norm: The key that says whether weights are normalised; empty: the preset says it.
        norm_alone: Whether the weight of a token's only expert is normalised too.
        router: Our options of the router and the keys with their values.
        shared: The width of the shared FFN; None: there is none.
        switch: The key that turns the mixture on; empty: always.
        expert: Our options of an expert in place of the activation, and the keys of their values.
    """

    preset: str
    number: tuple[str, ...]
    width: str = "moe_intermediate_size"
    norm: str = ""
    norm_alone: bool = True
    router: Mapping[str, str] = field(default_factory=dict)
    shared: Callable[[Settings], int] | None = None
    switch: str = ""
    expert: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family of models of transformers, or of MiniMind.

    Args:
        name: Its ``model_type``.
        architecture: The class that a whole model is written for; empty: MiniMind's own.
        rules: How the weights of a layer's FFN are named.
        defaults: What its class takes where a ``config.json`` says nothing.
        ffn: Our FFN of its dense layers.
        dense_width: The key of their width.
        width_rule: The rule of that width where a ``config.json`` gives none; empty: it gives one.
        mlp_bias: Whether its dense FFNs may have biases (``mlp_bias``).
        bias: Which projections of attention may have biases.
        bias_key: The key that says whether they have them; empty: always.
        qk_norm: What its query and key norms cover; empty: it has none.
        qk_norm_key: The key that says whether it has them; empty: always.
        experts: Its mixture; None: it is dense.
        refused: Keys of what mlpkit has not, and their values that change nothing.
        block_only: Why only its FFNs can be read; empty: whole models can.
    """

    name: str
    architecture: str = ""
    rules: tuple[Rule, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ffn: str = "swiglu"
    dense_width: str = "intermediate_size"
    width_rule: str = ""
    mlp_bias: bool = False
    bias: str = "none"
    bias_key: str = ""
    qk_norm: str = ""
    qk_norm_key: str = ""
    experts: ExpertKeys | None = None
    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    block_only: str = ""


def defaults(**more: Any) -> dict[str, Any]:
    """What most classes take where a ``config.json`` says nothing, and one class's own values."""
    plain = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
    return {**plain, "tie_word_embeddings": False, **more}


def times_shared(config: Settings) -> int:
    """The width of n shared experts as one FFN."""
    return config.whole("moe_intermediate_size") * config.whole("n_shared_experts", minimum=0)


QWEN_WINDOW = {"use_sliding_window": False}
GROUPS = {
    "n_group": "n_group",
    "topk_group": "topk_group",
    "routed_scaling_factor": "routed_scaling_factor",
}

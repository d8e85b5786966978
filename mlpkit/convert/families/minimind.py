"""MiniMind's two generations, which transformers has no classes for."""

from __future__ import annotations

from mlpkit.convert import names
from mlpkit.convert.families.record import ExpertKeys, Family, defaults
from mlpkit.convert.settings import Settings


def shared_width(config: Settings) -> int:
    """The width of n shared FFNs, each as wide as the dense one, as one FFN."""
    return config.whole("intermediate_size") * config.whole("n_shared_experts", minimum=0)


DEFAULTS = defaults(
    rope_theta=1e6,
    tie_word_embeddings=True,
    vocab_size=6400,
    num_attention_heads=8,
    num_key_value_heads=4,
    use_moe=False,
    norm_topk_prob=True,
    num_experts_per_tok=1,
    num_experts=4,
)
DEFAULTS_2025 = {
    **DEFAULTS,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "scoring_func": "softmax",
}

MINIMIND = (
    Family(
        name="minimind",
        rules=names.STANDARD,
        defaults=DEFAULTS,
        width_rule="pi",
        qk_norm="head",
        experts=ExpertKeys(
            preset="minimind", number=("num_experts",), norm="norm_topk_prob", switch="use_moe"
        ),
        refused={"inference_rope_scaling": (False,)},
    ),
    Family(
        name="minimind_2025",
        rules=names.MINIMIND_2025,
        defaults=DEFAULTS_2025,
        width_rule="8/3",
        experts=ExpertKeys(
            preset="minimind_2025",
            number=("n_routed_experts",),
            width="intermediate_size",
            norm="norm_topk_prob",
            norm_alone=False,
            shared=shared_width,
            switch="use_moe",
        ),
        refused={"inference_rope_scaling": (False,), "scoring_func": ("softmax",)},
    ),
)

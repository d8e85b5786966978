"""The families with experts that are read and written whole."""

from __future__ import annotations

from mlpkit.convert import names
from mlpkit.convert.families.record import (
    GROUPS,
    QWEN_WINDOW,
    ExpertKeys,
    Family,
    defaults,
    times_shared,
)

MIXTURES = (
    Family(
        name="mixtral",
        architecture="MixtralForCausalLM",
        rules=names.MIXTRAL,
        defaults=defaults(
            num_key_value_heads=8,
            rms_norm_eps=1e-5,
            rope_theta=1e6,
            num_local_experts=8,
            num_experts_per_tok=2,
            router_jitter_noise=0.0,
        ),
        experts=ExpertKeys(
            preset="mixtral",
            number=("num_local_experts", "num_experts"),
            width="intermediate_size",
            router={"jitter": "router_jitter_noise"},
        ),
    ),
    Family(
        name="qwen2_moe",
        architecture="Qwen2MoeForCausalLM",
        rules=names.QWEN2_MOE,
        defaults=defaults(
            num_key_value_heads=16,
            num_experts=60,
            num_experts_per_tok=4,
            norm_topk_prob=False,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            decoder_sparse_step=1,
            qkv_bias=True,
            **QWEN_WINDOW,
        ),
        bias="qkv",
        bias_key="qkv_bias",
        experts=ExpertKeys(
            preset="qwen2_moe",
            number=("num_experts", "num_local_experts"),
            norm="norm_topk_prob",
            shared=lambda config: config.whole("shared_expert_intermediate_size"),
        ),
    ),
    Family(
        name="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        rules=names.STANDARD,
        defaults=defaults(
            num_experts_per_tok=8,
            norm_topk_prob=False,
            num_key_value_heads=4,
            num_local_experts=128,
            moe_intermediate_size=768,
            decoder_sparse_step=1,
            **QWEN_WINDOW,
        ),
        bias="all",
        bias_key="attention_bias",
        qk_norm="head",
        experts=ExpertKeys(
            preset="qwen3_moe", number=("num_experts", "num_local_experts"), norm="norm_topk_prob"
        ),
    ),
    Family(
        name="olmoe",
        architecture="OlmoeForCausalLM",
        rules=names.STANDARD,
        defaults=defaults(
            num_experts_per_tok=8,
            norm_topk_prob=False,
            rms_norm_eps=1e-5,
            num_experts=64,
            num_attention_heads=16,
        ),
        bias="all",
        bias_key="attention_bias",
        qk_norm="all",
        experts=ExpertKeys(
            preset="olmoe",
            number=("num_experts", "num_local_experts"),
            width="intermediate_size",
            norm="norm_topk_prob",
        ),
        refused={"clip_qkv": ()},
    ),
    Family(
        name="glm4_moe",
        architecture="Glm4MoeForCausalLM",
        rules=names.DEEPSEEK,
        defaults=defaults(
            num_experts_per_tok=8,
            norm_topk_prob=True,
            num_key_value_heads=8,
            rms_norm_eps=1e-5,
            n_routed_experts=128,
            n_shared_experts=1,
            moe_intermediate_size=1408,
            n_group=1,
            topk_group=1,
            routed_scaling_factor=1.0,
            first_k_dense_replace=1,
            partial_rotary_factor=0.5,
        ),
        bias="qkv",
        bias_key="attention_bias",
        qk_norm="head",
        qk_norm_key="use_qk_norm",
        experts=ExpertKeys(
            preset="glm4_moe",
            number=("n_routed_experts", "num_local_experts"),
            norm="norm_topk_prob",
            router=GROUPS,
            shared=times_shared,
        ),
    ),
)

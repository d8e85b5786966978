"""The families of which the FFNs alone are read: the Decoder has not their attention."""

from __future__ import annotations

from mlpkit.convert import names
from mlpkit.convert.families.record import GROUPS, ExpertKeys, Family, defaults, times_shared

LATENT = "its attention is latent (MLA), which the Decoder has not"

BLOCKS = (
    Family(
        name="deepseek_v2",
        rules=names.DEEPSEEK,
        defaults=defaults(
            n_routed_experts=64,
            n_shared_experts=2,
            moe_intermediate_size=1407,
            routed_scaling_factor=1.0,
            topk_method="greedy",
            n_group=1,
            topk_group=1,
        ),
        experts=ExpertKeys(
            preset="deepseek_v2",
            number=("n_routed_experts", "num_experts"),
            router=GROUPS,
            shared=times_shared,
        ),
        refused={"topk_method": ("greedy", "group_limited_greedy")},
        block_only=LATENT,
    ),
    Family(
        name="deepseek_v3",
        rules=names.DEEPSEEK,
        defaults=defaults(
            n_routed_experts=256,
            n_shared_experts=1,
            moe_intermediate_size=2048,
            num_experts_per_tok=8,
            routed_scaling_factor=2.5,
            n_group=8,
            topk_group=4,
            norm_topk_prob=True,
        ),
        experts=ExpertKeys(
            preset="deepseek_v3",
            number=("n_routed_experts", "num_local_experts"),
            norm="norm_topk_prob",
            router=GROUPS,
            shared=times_shared,
        ),
        block_only=LATENT,
    ),
    Family(
        name="gpt_oss",
        rules=names.GPT_OSS,
        defaults=defaults(
            rms_norm_eps=1e-5,
            num_local_experts=128,
            num_experts_per_tok=4,
            swiglu_alpha=1.702,
            swiglu_limit=7.0,
        ),
        experts=ExpertKeys(
            preset="gpt_oss",
            number=("num_local_experts", "num_experts"),
            width="intermediate_size",
            expert={"alpha": "swiglu_alpha", "limit": "swiglu_limit"},
        ),
        block_only="its attention has sinks, windows and scaled positions",
    ),
    Family(
        name="llama4_text",
        rules=names.LLAMA4,
        defaults=defaults(rms_norm_eps=1e-5, num_local_experts=16, num_experts_per_tok=1),
        dense_width="intermediate_size_mlp",
        experts=ExpertKeys(
            preset="llama4",
            number=("num_local_experts",),
            width="intermediate_size",
            shared=lambda config: config.whole("intermediate_size"),
        ),
        block_only="its attention has layers without positions and with chunks",
    ),
    Family(
        name="granitemoe",
        rules=names.GRANITE,
        defaults=defaults(num_local_experts=8, num_experts_per_tok=2),
        experts=ExpertKeys(
            preset="granitemoe",
            number=("num_local_experts",),
            width="intermediate_size",
        ),
        block_only="its embeddings, residuals and logits have factors of their own",
    ),
)

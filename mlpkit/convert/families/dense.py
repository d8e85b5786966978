"""The dense families: Llama and those near it."""

from __future__ import annotations

from mlpkit.convert import names
from mlpkit.convert.families.record import QWEN_WINDOW, Family, defaults

DENSE = (
    Family(
        name="llama",
        architecture="LlamaForCausalLM",
        rules=names.dense(),
        defaults=defaults(),
        mlp_bias=True,
        bias="all",
        bias_key="attention_bias",
    ),
    Family(
        name="mistral",
        architecture="MistralForCausalLM",
        rules=names.dense(),
        defaults=defaults(num_key_value_heads=8, sliding_window=4096),
    ),
    Family(
        name="qwen2",
        architecture="Qwen2ForCausalLM",
        rules=names.dense(),
        defaults=defaults(num_key_value_heads=32, **QWEN_WINDOW),
        bias="qkv",
    ),
    Family(
        name="qwen3",
        architecture="Qwen3ForCausalLM",
        rules=names.dense(),
        defaults=defaults(num_key_value_heads=32, head_dim=128, **QWEN_WINDOW),
        bias="all",
        bias_key="attention_bias",
        qk_norm="head",
    ),
    Family(
        name="arcee",
        architecture="ArceeForCausalLM",
        rules=names.dense(),
        defaults=defaults(hidden_act="relu2", rms_norm_eps=1e-5),
        ffn="naive",
        mlp_bias=True,
        bias="all",
        bias_key="attention_bias",
    ),
)

"""The names of weights in each family, as rules from theirs to ours; the first one is written."""

from __future__ import annotations

from collections.abc import Sequence

from mlpkit.convert.layout import Interleaved, Join, Rule, Split, Stack, Transposed, same

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
EXPERTS = tuple(f"ffn.experts.{projection}.weight" for projection in PROJECTIONS)
BIASES = tuple(f"ffn.experts.{projection}.bias" for projection in PROJECTIONS)

# What stands outside of the layers; with a prefix on their side.
OUTSIDE = (
    same(EMBEDDING, "embed_tokens.weight"),
    same("model.norm.weight", "norm.weight"),
    same(HEAD),
)
# What every layer has beside its FFN, or may have.
BESIDE = (
    *(same(f"{norm}.weight") for norm in ("input_layernorm", "post_attention_layernorm")),
    *(
        same(f"self_attn.{projection}_proj.{kind}")
        for projection in "qkvo"
        for kind in ("weight", "bias")
    ),
    *(same(f"self_attn.{norm}.weight") for norm in ("q_norm", "k_norm")),
)


def dense(block: str = "mlp", *, ours: str = "ffn") -> tuple[Rule, ...]:
    """One FFN, with or without biases and gate."""
    return tuple(
        same(f"{block}.{projection}.{kind}", f"{ours}.{projection}.{kind}")
        for projection in PROJECTIONS
        for kind in ("weight", "bias")
    )


def listed(block: str = "mlp", names: Sequence[str] = PROJECTIONS) -> tuple[Rule, ...]:
    """A module for each expert, as the hub has it."""
    return tuple(
        Rule(theirs=(f"{block}.experts.{{e}}.{theirs}.weight",), ours=(ours,), steps=(Stack(),))
        for theirs, ours in zip(names, EXPERTS, strict=True)
    )


def fused(block: str = "mlp") -> tuple[Rule, ...]:
    """Stacked experts with [gate; up] in one, as transformers 5 has them in memory."""
    return (
        Rule(theirs=(f"{block}.experts.gate_up_proj",), ours=EXPERTS[:2], steps=(Split(1),)),
        same(f"{block}.experts.down_proj", EXPERTS[2]),
    )


def routed(block: str = "mlp", name: str = "gate.weight") -> tuple[Rule, ...]:
    """The router's matrix."""
    return (same(f"{block}.{name}", "ffn.router.weight"),)


SELECTION_BIAS = (same("mlp.gate.e_score_correction_bias", "ffn.router.e_score_correction_bias"),)
MIXTRAL = (
    *routed("block_sparse_moe"),
    *listed("block_sparse_moe", ("w1", "w3", "w2")),
    *routed(),
    *fused(),
)
STANDARD = (*routed(), *listed(), *fused(), *dense())
QWEN2_MOE = (
    *STANDARD,
    *dense("mlp.shared_expert", ours="ffn.shared"),
    same("mlp.shared_expert_gate.weight", "ffn.shared_gate.weight"),
)
DEEPSEEK = (*STANDARD, *SELECTION_BIAS, *dense("mlp.shared_experts", ours="ffn.shared"))
# n shared FFNs of one width are one of n times the width: gates and ups below each other, downs
# beside each other.
MINIMIND_2025 = (
    *STANDARD,
    *(
        Rule(
            theirs=(f"mlp.shared_experts.{{s}}.{projection}.weight",),
            ours=(f"ffn.shared.{projection}.weight",),
            steps=(Join(1 if projection == "down_proj" else 0),),
        )
        for projection in PROJECTIONS
    ),
)
GPT_OSS = (
    *routed(name="router.weight"),
    same("mlp.router.bias", "ffn.router.bias"),
    Rule(
        theirs=("mlp.experts.gate_up_proj",),
        ours=EXPERTS[:2],
        steps=(Transposed(), Interleaved(1)),
    ),
    Rule(theirs=("mlp.experts.gate_up_proj_bias",), ours=BIASES[:2], steps=(Interleaved(1),)),
    Rule(theirs=("mlp.experts.down_proj",), ours=EXPERTS[2:], steps=(Transposed(),)),
    same("mlp.experts.down_proj_bias", BIASES[2]),
)
LLAMA4 = (
    *routed("feed_forward", "router.weight"),
    Rule(
        theirs=("feed_forward.experts.gate_up_proj",),
        ours=EXPERTS[:2],
        steps=(Transposed(), Split(1)),
    ),
    Rule(theirs=("feed_forward.experts.down_proj",), ours=EXPERTS[2:], steps=(Transposed(),)),
    *dense("feed_forward.shared_expert", ours="ffn.shared"),
    *dense("feed_forward"),
)
GRANITE = (
    *routed("block_sparse_moe", "router.layer.weight"),
    Rule(theirs=("block_sparse_moe.input_linear.weight",), ours=EXPERTS[:2], steps=(Split(1),)),
    same("block_sparse_moe.output_linear.weight", EXPERTS[2]),
    *routed("block_sparse_moe", "router.weight"),
    *fused("block_sparse_moe"),
)

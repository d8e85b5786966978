"""Tiny models of transformers with random weights, saved as anyone would save them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from mlpkit.build import build_model
from mlpkit.convert.importing import Imported, read_checkpoint
from mlpkit.convert.matching import Vocabulary

V, H, I, E, K = 300, 16, 24, 4, 2  # noqa: E741
COMMON = {
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": I,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MOE = {"num_experts_per_tok": K, "moe_intermediate_size": 12}
# case → (model_type, options): every whole family, and what its checkpoints differ in
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_theta": 500.0}),
    "llama-tied-biased": (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 6},
    ),
    "llama-gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh", "num_key_value_heads": 4}),
    "mistral": ("mistral", {"sliding_window": None, "rms_norm_eps": 1e-4}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 6}),
    "qwen3-tied-biased": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    "arcee": ("arcee", {"mlp_bias": True, "attention_bias": True}),
    "arcee-silu": ("arcee", {"hidden_act": "silu"}),
    "mixtral": ("mixtral", {"num_local_experts": E, "num_experts_per_tok": K}),
    "qwen2_moe": (
        "qwen2_moe",
        {
            **MOE,
            "num_experts": E,
            "shared_expert_intermediate_size": 20,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3_moe": ("qwen3_moe", {**MOE, "num_experts": E, "norm_topk_prob": True}),
    "qwen3_moe-mixed": (
        "qwen3_moe",
        {**MOE, "num_experts": E, "num_hidden_layers": 4, "decoder_sparse_step": 2, "head_dim": 4},
    ),
    "olmoe": ("olmoe", {"num_experts": E, "num_experts_per_tok": K}),
    "glm4_moe": (
        "glm4_moe",
        {
            **MOE,
            "n_routed_experts": E,
            "n_shared_experts": 2,
            "n_group": 2,
            "topk_group": 1,
            "routed_scaling_factor": 1.5,
            "partial_rotary_factor": 1.0,
            "num_mtp_layers": 0,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
}


def tiny(case: str, dtype: torch.dtype = torch.float32, **more: Any) -> nn.Module:
    """A model of a case with every weight, bias and buffer random."""
    kind, options = CASES[case]
    config = AutoConfig.for_model(kind, **{**COMMON, **options, **more})
    config._attn_implementation = "sdpa"
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    for module in model.modules():  # checkpoints keep it in float32, whatever the rest is in
        if hasattr(module, "e_score_correction_bias"):
            module.e_score_correction_bias = module.e_score_correction_bias.float()
    generator = torch.Generator().manual_seed(3)
    for name, tensor in sorted(model.state_dict().items()):
        noise = torch.randn(tensor.shape, generator=generator)
        if "norm" in name:
            tensor.copy_(1 + 0.2 * noise)
        elif "correction_bias" in name:
            tensor.copy_(0.1 * noise)
        else:
            tensor.copy_(noise * (0.3 if "bias" in name else 1.5 * tensor.shape[-1] ** -0.5))
    return model


def save(model: nn.Module, folder: Path, **options: Any) -> Path:
    """The folder that ``save_pretrained`` writes, quietly."""
    with contextlib.redirect_stderr(io.StringIO()):
        model.save_pretrained(folder, **options)
    return folder


def load(folder: Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    """What plain transformers makes of a folder, with no remote code."""
    with contextlib.redirect_stderr(io.StringIO()):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval()


def ours(imported: Imported, file: Path) -> nn.Module:
    """Our model of a checkpoint, built and loaded from the file that is written."""
    imported.write_weights(file)
    vocabulary = Vocabulary(imported.config.model.vocab_size)
    model = build_model(imported.config, tokenizer=vocabulary)
    model.load_state_dict(load_file(file))
    return model.eval()


def imported(case: str, folder: Path, **more: Any) -> tuple[nn.Module, Imported, nn.Module]:
    """Theirs, what was read of it, and ours."""
    theirs = tiny(case, **more)
    read = read_checkpoint(save(theirs, folder / "hf"))
    return theirs, read, ours(read, folder / "model.safetensors")


def tokens(batch: int = 2, length: int = 7) -> Tensor:
    """Random ids (B, S)."""
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(1))

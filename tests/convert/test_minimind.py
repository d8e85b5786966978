"""MiniMind's two generations against a reference written from their formulas."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_models import ours
from torch import Tensor

from mlpkit.convert import WeightsError, load_block, read_checkpoint

V, H, I, LAYERS, HEADS, E, K = 300, 32, 40, 2, 8, 4, 2  # noqa: E741
KV = {"minimind": 4, "minimind_2025": 2}
EPS = {"minimind": 1e-6, "minimind_2025": 1e-5}
SHARED = 2


def names(generation: str, moe: bool) -> dict[str, tuple[int, ...]]:
    """The state dict that a trainer saves: names and shapes."""
    head, found = H // HEADS, {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,)}
    ffn = {"gate_proj": (I, H), "up_proj": (I, H), "down_proj": (H, I)}
    for layer in range(LAYERS):
        place = f"model.layers.{layer}."
        found |= {f"{place}{n}_layernorm.weight": (H,) for n in ("input", "post_attention")}
        widths = {"q": H, "k": head * KV[generation], "v": head * KV[generation]}
        for name, width in widths.items():
            found[f"{place}self_attn.{name}_proj.weight"] = (width, H)
        found[f"{place}self_attn.o_proj.weight"] = (H, H)
        if generation == "minimind":
            found |= {f"{place}self_attn.{n}_norm.weight": (head,) for n in "qk"}
        owners = [f"{place}mlp."]
        if moe:
            found[f"{place}mlp.gate.weight"] = (E, H)
            owners = [f"{place}mlp.experts.{e}." for e in range(E)]
            if generation == "minimind_2025":
                owners += [f"{place}mlp.shared_experts.{s}." for s in range(SHARED)]
        found |= {f"{o}{n}.weight": shape for o in owners for n, shape in ffn.items()}
    return {**found, "lm_head.weight": (V, H)}


def weights(generation: str, moe: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    found = {}
    for name, shape in names(generation, moe).items():
        noise = torch.randn(shape, generator=generator)
        found[name] = 1 + 0.2 * noise if "norm" in name else noise * 1.5 * shape[-1] ** -0.5
    found["lm_head.weight"] = found["model.embed_tokens.weight"].clone()
    return found


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(x: Tensor) -> Tensor:
    """Rotary positions of (B, S, heads, D), base a million, halves as pairs."""
    size = x.shape[-1]
    angles = torch.outer(
        torch.arange(x.shape[1]).double(), 1e6 ** (-torch.arange(0, size, 2).double() / size)
    ).float()
    cos, sin = (torch.cat([f, f], -1)[:, None] for f in (angles.cos(), angles.sin()))
    half = torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1)
    return x * cos + half * sin


def attention(x: Tensor, w: dict[str, Tensor], generation: str) -> Tensor:
    size = H // HEADS
    q, k, v = ((x @ w[f"self_attn.{n}_proj.weight"].T).unflatten(-1, (-1, size)) for n in "qkv")
    if generation == "minimind":
        q, k = (
            norm(y, w[f"self_attn.{n}_norm.weight"], EPS[generation])
            for n, y in (("q", q), ("k", k))
        )
    q, k = turned(q), turned(k)
    copies = HEADS // KV[generation]
    k, v = (y.repeat_interleave(copies, 2) for y in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(size)
    future = torch.ones(scores.shape[-2:]).triu(1).bool()
    mixed = torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(future, -math.inf).softmax(-1), v)
    return mixed.flatten(2) @ w["self_attn.o_proj.weight"].T


def ffn(x: Tensor, w: dict[str, Tensor], place: str) -> Tensor:
    gate, up, down = (w[f"{place}{n}_proj.weight"] for n in ("gate", "up", "down"))
    gated = x @ gate.T
    return (gated * gated.sigmoid() * (x @ up.T)) @ down.T


def mixture(x: Tensor, w: dict[str, Tensor], k: int, shared: int) -> Tensor:
    """Token by token: the k likeliest experts, their shares of each other, and the shared ones."""
    out = torch.zeros_like(x)
    for place in range(x.shape[0]):
        scores = (x[place] @ w["mlp.gate.weight"].T).softmax(-1)
        best = scores.sort(descending=True).indices[:k].tolist()
        total = sum(scores[e] for e in best)
        for e in best:
            out[place] = out[place] + scores[e] / total * ffn(x[place], w, f"mlp.experts.{e}.")
        for s in range(shared):
            out[place] = out[place] + ffn(x[place], w, f"mlp.shared_experts.{s}.")
    return out


def layer_weights(w: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    prefix = f"model.layers.{layer}."
    return {n.removeprefix(prefix): t for n, t in w.items() if n.startswith(prefix)}


def logits(w: dict[str, Tensor], ids: Tensor, generation: str, k: int) -> Tensor:
    x, eps = w["model.embed_tokens.weight"][ids], EPS[generation]
    for layer in range(LAYERS):
        own = layer_weights(w, layer)
        x = x + attention(norm(x, own["input_layernorm.weight"], eps), own, generation)
        y = norm(x, own["post_attention_layernorm.weight"], eps)
        if "mlp.gate.weight" in own:
            shared = SHARED if generation == "minimind_2025" else 0
            x = x + mixture(y.flatten(0, 1), own, k, shared).view_as(y)
        else:
            x = x + ffn(y, own, "mlp.")
    return norm(x, w["model.norm.weight"], eps) @ w["model.embed_tokens.weight"].T


# What its trainers' own defaults are: the number of experts for a token.
DEFAULT_K = {"minimind": 1, "minimind_2025": 2}


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
@pytest.mark.parametrize("generation", KV)
def test_a_pth_of_a_trainer_computes_its_formulas(generation, moe, tmp_path):
    saved = weights(generation, moe)
    torch.save(saved, tmp_path / "pretrain.pth")
    read = read_checkpoint(tmp_path / "pretrain.pth")
    assert read.family.name == generation
    assert read.matching.tied == ("lm_head.weight",)
    model = ours(read, tmp_path / "model.safetensors")
    ids = torch.randint(V, (2, 6), generator=torch.Generator().manual_seed(1))
    expected = logits(saved, ids, generation, DEFAULT_K[generation])
    assert expected.std() > 0.1
    torch.testing.assert_close(model(ids), expected, rtol=1e-5, atol=1e-5)


def test_half_precision_of_the_trainer_keeps_its_bits(tmp_path):
    saved = {name: tensor.half() for name, tensor in weights("minimind", False).items()}
    torch.save(saved, tmp_path / "sft.pth")
    model = ours(read_checkpoint(tmp_path / "sft.pth"), tmp_path / "model.safetensors")
    assert (
        model.layers[1].ffn.up_proj.weight.half().equal(saved["model.layers.1.mlp.up_proj.weight"])
    )


@pytest.mark.parametrize("shared", [0, SHARED])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("generation", KV)
def test_a_block_by_name_computes_its_formula(generation, k, shared):
    block = {
        name.removeprefix("mlp."): tensor
        for name, tensor in layer_weights(weights(generation, True), 0).items()
        if name.startswith("mlp.") and (shared or "shared" not in name)
    }
    shared = shared if generation == "minimind_2025" else 0
    experts = "num_experts" if generation == "minimind" else "n_routed_experts"
    config = {
        "hidden_size": H,
        "num_hidden_layers": 1,
        "intermediate_size": I,
        "use_moe": True,
        "num_experts_per_tok": k,
        experts: E,
        "n_shared_experts": shared,
    }
    _, module = load_block(block, generation, config=config)
    x = torch.randn(9, H, generator=torch.Generator().manual_seed(6))
    named = {f"mlp.{name}": tensor for name, tensor in block.items()}
    expected = mixture(x, named, k, shared)
    if generation == "minimind_2025" and k == 1:  # it normalises several weights alone
        best = (x @ block["gate.weight"].T).softmax(-1).max(-1).values[:, None]
        added = sum(ffn(x, named, f"mlp.shared_experts.{s}.") for s in range(shared))
        expected = (expected - added) * best + added
    torch.testing.assert_close(module(x), expected, rtol=1e-5, atol=1e-5)


def test_a_config_beside_the_file_says_what_no_shape_says(tmp_path):
    saved = weights("minimind", True)
    torch.save(saved, tmp_path / "moe.pth")
    (tmp_path / "config.json").write_text('{"model_type": "minimind", "num_experts_per_tok": 2}')
    model = ours(read_checkpoint(tmp_path / "moe.pth"), tmp_path / "model.safetensors")
    ids = torch.randint(V, (1, 5), generator=torch.Generator().manual_seed(1))
    expected = logits(saved, ids, "minimind", 2)
    torch.testing.assert_close(model(ids), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("content", [{"a": torch.ones(2)}, [1, 2], {"model.norm.weight": 3}])
def test_a_pth_of_something_else_is_refused(content, tmp_path):
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(WeightsError, match=r"x\.pth"):
        read_checkpoint(tmp_path / "x.pth")

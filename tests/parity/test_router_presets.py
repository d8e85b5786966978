"""Every router preset against transformers' router of its family and a float64 oracle."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from mlpkit.routers import SparseMixerRouter, TopKRouter

PRESETS = Path(__file__).parents[2] / "conf" / "ffn" / "router"
T, H, E, K = 64, 6, 8, 2
GROUPS = {"n_group": 4, "topk_group": 2}
ONE_GROUP = {"n_group": 4, "topk_group": 1}  # by their best, 2 groups hold the 2 best experts
GROUPED = {
    "deepseek_v2": ONE_GROUP,
    **dict.fromkeys(("deepseek_v3", "glm4_moe", "nemotron_h"), GROUPS),
}
SCORES = {"sigmoid": nn.Sigmoid}

Dense = Tensor  # (T, E): a token's weight for each expert, 0 where it was not chosen


def options_of(family: str) -> tuple[str, dict[str, Any]]:
    """A preset's router and its options."""
    options = OmegaConf.to_container(OmegaConf.load(PRESETS / f"{family}.yaml"))
    base, own = options.pop("defaults")
    assert own == "_self_"
    return base, options


def preset(family: str, **changes: Any) -> nn.Module:
    """The router of a preset, with random weights and biases."""
    base, options = options_of(family)
    if "score" in options:
        options["score"] = SCORES[options["score"]]()
    sizes = {"hidden_size": H, "num_experts": E, "num_experts_per_tok": K}
    make = {"topk": TopKRouter, "sparsemixer": SparseMixerRouter}[base]
    router = make(**{**sizes, **options, **changes})
    generator = torch.Generator().manual_seed(7)
    for tensor in (*router.parameters(), *router.buffers()):
        tensor.data.normal_(generator=generator)
    for bias in router.buffers():
        bias.mul_(0.3)  # large enough to change choices, small enough not to make them all
    return router.eval()


def tokens(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(T, H, generator=generator, dtype=torch.float64).to(dtype)


def dense_of(weight: Tensor, expert: Tensor) -> Dense:
    """Weights and choices (T, K) as a dense table."""
    return torch.zeros(T, E, dtype=weight.dtype).scatter(1, expert, weight)


def ours(router: nn.Module, x: Tensor) -> Dense:
    routing = router(x)
    return dense_of(routing.weight.view(T, K), routing.expert.view(T, K))


def gradients(dense: Dense, inputs: list[Tensor]) -> list[Tensor]:
    """Gradients of a fixed random mix of the weights."""
    probe = torch.randn(T, E, generator=torch.Generator().manual_seed(5)).to(dense.dtype)
    return list(torch.autograd.grad((dense * probe).sum(), inputs))


# --- transformers ----------------------------------------------------------------------------


def hf(family: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)


def config(**more: Any) -> SimpleNamespace:
    sizes = {"hidden_size": H, "num_experts_per_tok": K, "num_experts": E, "num_local_experts": E}
    return SimpleNamespace(**{**sizes, **more})


Reference = Callable[[TopKRouter, Tensor], tuple[Dense, list[Tensor]]]


def gate(family: str, name: str, **more: Any) -> Reference:
    """A gate with ``weight`` and maybe ``bias`` that returns (logits, weights, experts)."""

    def reference(router: TopKRouter, x: Tensor) -> tuple[Dense, list[Tensor]]:
        module = hf(family, name)(config(**more))
        given, parameters = (), [module.weight]
        module.weight.data.copy_(router.weight.data)
        if router.bias is not None:
            module.bias.data.copy_(router.bias.data)
            parameters.append(module.bias)
        if family in ("minimax_m2", "lfm2_moe"):  # these are handed the bias
            given = (router.e_score_correction_bias,)
        elif family == "ernie4_5_moe":
            module.moe_statics.e_score_correction_bias.data.copy_(router.e_score_correction_bias)
        elif router.e_score_correction_bias is not None:
            module.e_score_correction_bias.copy_(router.e_score_correction_bias)
        _, weight, expert = module(x, *given)
        return dense_of(weight, expert), parameters

    return reference


def deepseek(name: str, family: str = "deepseek_v3", scale: float = 1.0) -> Reference:
    options = {"norm_topk_prob": True, "routed_scaling_factor": scale, **GROUPS}
    return gate(family, name, **options)


def llama4(router: TopKRouter, x: Tensor) -> tuple[Dense, list[Tensor]]:
    module = hf("llama4", "Llama4Router")(config())
    module.weight.data.copy_(router.weight.data)
    return module(x)[0], [module.weight]


def jetmoe(router: TopKRouter, x: Tensor) -> tuple[Dense, list[Tensor]]:
    module = hf("jetmoe", "JetMoeTopKGating")(H, E, K)
    module.layer.weight.data.copy_(router.weight.data)
    _, token, weight, sizes, _ = module(x)
    expert = torch.arange(E).repeat_interleave(torch.tensor(sizes))
    return torch.zeros(T, E).index_put((token, expert), weight), [module.layer.weight]


def hunyuan(router: TopKRouter, x: Tensor) -> tuple[Dense, list[Tensor]]:
    module = hf("hunyuan_v1_moe", "HunYuanMoEV1Gate")(config(moe_topk=K), layer_idx=0)
    module.wg.weight.data.copy_(router.weight.data)
    _, weight, expert = module(x)
    return dense_of(weight, expert), [module.wg.weight]


def dbrx(router: TopKRouter, x: Tensor) -> tuple[Dense, list[Tensor]]:
    gate_config = importlib.import_module("transformers.models.dbrx.configuration_dbrx")
    ffn = gate_config.DbrxFFNConfig(
        hidden_size=H, ffn_hidden_size=4, moe_num_experts=E, moe_top_k=K
    )
    ffn.moe_normalize_expert_weights = router.norm_p
    module = hf("dbrx", "DbrxFFN")(SimpleNamespace(ffn_config=ffn))
    module.router.layer.weight.data.copy_(router.weight.data)
    weight, expert = module.route_tokens_to_experts(module.router(x))
    return dense_of(weight, expert), [module.router.layer.weight]


def longcat(router: TopKRouter, x: Tensor) -> tuple[Dense, list[Tensor]]:
    sizes = config(n_routed_experts=E - 2, zero_expert_num=2, routed_scaling_factor=6.0)
    module = hf("longcat_flash", "LongcatFlashTopkRouter")(sizes)
    module.classifier.weight.data.copy_(router.weight.data)
    module.e_score_correction_bias.copy_(router.e_score_correction_bias)
    _, weight, expert = module(x)
    return dense_of(weight, expert), [module.classifier.weight]


def phimoe(router: SparseMixerRouter, x: Tensor) -> tuple[Dense, list[Tensor]]:
    jitter = {"router_jitter_noise": router.jitter, "input_jitter_noise": 0.0}
    module = hf("phimoe", "PhimoeTopKRouter")(config(**jitter)).eval()
    module.weight.data.copy_(router.weight.data)
    _, weight, expert = module(x)
    return dense_of(weight, expert), [module.weight]


REFERENCES: dict[str, Reference] = {
    "mixtral": gate("mixtral", "MixtralTopKRouter"),
    "qwen2_moe": gate("qwen2_moe", "Qwen2MoeTopKRouter", norm_topk_prob=False),
    "qwen3_moe": gate("qwen3_moe", "Qwen3MoeTopKRouter", norm_topk_prob=False),
    "olmoe": gate("olmoe", "OlmoeTopKRouter", norm_topk_prob=False),
    "deepseek_v2": gate(
        "deepseek_v2",
        "DeepseekV2TopkRouter",
        topk_method="group_limited_greedy",
        routed_scaling_factor=1.0,
        **ONE_GROUP,
    ),
    "deepseek_v3": deepseek("DeepseekV3TopkRouter", scale=2.5),
    "glm4_moe": deepseek("Glm4MoeTopkRouter", "glm4_moe"),
    "gpt_oss": gate("gpt_oss", "GptOssTopKRouter"),
    "llama4": llama4,
    "granitemoe": gate("granitemoe", "GraniteMoeTopKRouter"),
    "jetmoe": jetmoe,
    "jamba": gate("jamba", "JambaTopKRouter"),
    "ernie4_5_moe": gate("ernie4_5_moe", "Ernie4_5_MoeTopKRouter", moe_norm_min=1e-12),
    "hunyuan_v1_moe": hunyuan,
    "minimax_m2": gate("minimax_m2", "MiniMaxM2TopKRouter"),
    "lfm2_moe": gate(
        "lfm2_moe",
        "Lfm2MoeTopKRouter",
        norm_topk_prob=True,
        use_expert_bias=True,
        routed_scaling_factor=1.0,
    ),
    "nemotron_h": deepseek("NemotronHTopkRouter", "nemotron_h"),
    "cohere2_moe": gate(
        "cohere2_moe", "Cohere2MoeTopKRouter", expert_selection_fn="softmax", norm_topk_prob=True
    ),
    "dbrx": dbrx,
    "longcat_flash": longcat,
    "phimoe": phimoe,
    # MiniMind is no part of transformers; the routers that equal its two generations are.
    "minimind": gate("qwen3_moe", "Qwen3MoeTopKRouter", norm_topk_prob=True),
    "minimind_2025": hunyuan,
}


# --- the oracle: one token at a time, in float64, from the formula -----------------------------

Row = dict[int, Tensor]  # expert to weight


def best(values: list[float], count: int) -> list[int]:
    return sorted(range(len(values)), key=lambda i: -values[i])[:count]


def softmax(z: Tensor) -> list[Tensor]:
    exp = [(v - z.max().detach()).exp() for v in z]
    return [e / sum(exp) for e in exp]


def sigmoid(z: Tensor) -> list[Tensor]:
    return [1 / (1 + (-v).exp()) for v in z]


def floats(values: Any) -> list[float]:
    return [v.item() for v in values]


def raw(z: Tensor, bias: list[float]) -> Row:
    p = softmax(z)
    return {e: p[e] for e in best([v.item() + b for v, b in zip(p, bias, strict=True)], K)}


def normalised(row: Row, eps: float = 0.0, floor: float = 0.0) -> Row:
    total = sum(row.values()) + eps
    total = total if total.item() > floor else torch.tensor(floor, dtype=torch.float64)
    return {e: w / total for e, w in row.items()}


def times(row: Row, scale: float) -> Row:
    return {e: w * scale for e, w in row.items()}


def softmax_of_chosen(z: Tensor, bias: list[float]) -> Row:
    chosen = best(floats(z), K)
    return dict(zip(chosen, softmax(torch.stack([z[e] for e in chosen])), strict=True))


def in_best_groups(
    choice: list[float], worth: Callable[[list[float]], float], count: int
) -> list[int]:
    size = E // GROUPS["n_group"]
    groups = [choice[i : i + size] for i in range(0, E, size)]
    kept = best([worth(group) for group in groups], count)
    allowed = [e for e in range(E) if e // size in kept]
    return [allowed[i] for i in best([choice[e] for e in allowed], K)]


def deepseek_v2(z: Tensor, bias: list[float]) -> Row:
    p = softmax(z)
    return {e: p[e] for e in in_best_groups(floats(p), max, 1)}


def deepseek_v3(z: Tensor, bias: list[float], scale: float = 1.0) -> Row:
    s = sigmoid(z)
    choice = [v.item() + b for v, b in zip(s, bias, strict=True)]
    chosen = in_best_groups(choice, lambda group: sum(sorted(group)[-2:]), 2)
    return times(normalised({e: s[e] for e in chosen}, eps=1e-20), scale)


def biased_sigmoid(z: Tensor, bias: list[float], eps: float = 0.0) -> Row:
    s = sigmoid(z)
    chosen = best([v.item() + b for v, b in zip(s, bias, strict=True)], K)
    return normalised({e: s[e] for e in chosen}, eps)


def sparsemixer(z: Tensor, bias: list[float]) -> Row:
    row: Row = {}
    for _ in range(K):
        left = [e for e in range(E) if e not in row]
        top = max(left, key=lambda e: z[e].item())
        m = z[top].item()
        near = [e for e in left if (m - z[e].item()) / max(abs(z[e].item()), m) <= 0.02]
        row[top] = softmax(torch.stack([z[e] for e in near]))[near.index(top)]
    return row


ORACLES: dict[str, Callable[[Tensor, list[float]], Row]] = {
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmoe", "jamba"), raw),
    **dict.fromkeys(
        ("mixtral", "hunyuan_v1_moe", "dbrx"), lambda z, bias: normalised(raw(z, bias))
    ),
    **dict.fromkeys(
        ("minimind", "minimind_2025"), lambda z, bias: normalised(raw(z, bias), eps=1e-20)
    ),
    **dict.fromkeys(("gpt_oss", "granitemoe", "jetmoe", "cohere2_moe"), softmax_of_chosen),
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": lambda z, bias: deepseek_v3(z, bias, 2.5),
    **dict.fromkeys(("glm4_moe", "nemotron_h"), deepseek_v3),
    "llama4": lambda z, bias: {e: sigmoid(z)[e] for e in best(floats(z), K)},
    "ernie4_5_moe": lambda z, bias: normalised(raw(z, bias), floor=1e-12),
    "minimax_m2": biased_sigmoid,
    "lfm2_moe": lambda z, bias: biased_sigmoid(z, bias, 1e-6),
    "longcat_flash": lambda z, bias: times(raw(z, bias), 6.0),
    "phimoe": sparsemixer,
}


def oracle(family: str, router: nn.Module, x: Tensor) -> Dense:
    z = x @ router.weight.T
    if getattr(router, "bias", None) is not None:
        z = z + router.bias
    buffer = getattr(router, "e_score_correction_bias", None)
    bias = [0.0] * E if buffer is None else buffer.tolist()
    zero = torch.zeros((), dtype=torch.float64)
    rows = [ORACLES[family](token, bias) for token in z]
    return torch.stack([torch.stack([row.get(e, zero) for e in range(E)]) for row in rows])


FAMILIES = sorted(path.stem for path in PRESETS.glob("*.yaml"))


def changes(family: str) -> dict[str, int]:
    return GROUPED.get(family, {})


def test_every_preset_has_a_reference_and_an_oracle():
    assert set(FAMILIES) == set(REFERENCES) == set(ORACLES)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_preset_routes_as_transformers_does(family):
    pytest.importorskip("transformers")
    router = preset(family, **changes(family))
    x, y = tokens(torch.float32).requires_grad_(), tokens(torch.float32).requires_grad_()
    dense, (expected, parameters) = ours(router, x), REFERENCES[family](router, y)
    assert torch.equal(dense > 0, expected > 0)
    torch.testing.assert_close(dense, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        gradients(dense, [x, *router.parameters()]),
        gradients(expected, [y, *parameters]),
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_preset_is_its_formula_in_float64(family):
    router = preset(family, **changes(family)).double()
    x = tokens(torch.float64).requires_grad_()
    inputs = [x, *router.parameters()]
    dense, expected = ours(router, x), oracle(family, router, x)
    assert torch.equal(dense > 0, expected > 0)
    torch.testing.assert_close(dense, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        gradients(dense, inputs), gradients(expected, inputs), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_biases_and_groups_of_the_test_change_what_is_chosen(family):
    """Or the two tests above would hold without them."""
    router, x = preset(family, **changes(family)), tokens(torch.float32)
    chosen = ours(router, x) > 0
    if getattr(router, "e_score_correction_bias", None) is not None:
        router.e_score_correction_bias.zero_()
        assert not torch.equal(ours(router, x) > 0, chosen)
    if getattr(router, "bias", None) is not None:
        router.bias.data.zero_()
        assert not torch.equal(ours(router, x) > 0, chosen)
    if family in GROUPED:
        other = preset(family, n_group=1, topk_group=1)
        assert not torch.equal(ours(other, x) > 0, ours(preset(family, **GROUPED[family]), x) > 0)
    if family == "phimoe":  # some token has a rival, so that its weight is not 1
        weight = router(x).weight
        assert ((weight > 0.1) & (weight < 0.9)).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_preset_builds_at_the_default_size_and_trains_its_router(family):
    router = preset(family)
    dense = ours(router, tokens(torch.float32))
    assert (dense > 0).sum() == T * K
    norm = gradients(dense, [router.weight])[0].norm()
    assert math.isfinite(norm)
    assert norm > 1e-3


def test_deepseek_v2_is_greedy_without_groups():
    more = {"topk_method": "greedy", "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1}
    router, x = preset("deepseek_v2"), tokens(torch.float32)
    expected, _ = gate("deepseek_v2", "DeepseekV2TopkRouter", **more)(router, x)
    torch.testing.assert_close(ours(router, x), expected)


def test_dbrx_divides_by_any_norm():
    router, x = preset("dbrx", norm_p=2.0), tokens(torch.float32)
    torch.testing.assert_close(ours(router, x), dbrx(router, x)[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_only_llama4_weighs_the_experts_input(family):
    assert preset(family).apply_on == ("input" if family == "llama4" else "output")

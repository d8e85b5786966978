"""FFNs equal the transformers classes that use them, in float64 with the same weights."""

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.models.bart.modeling_bart import BartEncoderLayer
from transformers.models.bert.modeling_bert import BertIntermediate, BertOutput
from transformers.models.clip.modeling_clip import CLIPMLP
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Experts
from transformers.models.distilbert.modeling_distilbert import FFN as DistilBertFFN
from transformers.models.gemma.modeling_gemma import GemmaMLP
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextMLP
from transformers.models.glm.modeling_glm import GlmMLP
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXMLP
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.kosmos2.modeling_kosmos2 import Kosmos2TextFFN
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLDenseMLP
from transformers.models.mistral.modeling_mistral import MistralMLP
from transformers.models.nemotron.modeling_nemotron import NemotronMLP
from transformers.models.phi3.modeling_phi3 import Phi3MLP
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.starcoder2.modeling_starcoder2 import Starcoder2MLP
from transformers.models.t5.modeling_t5 import T5DenseActDense, T5DenseGatedActDense

from mlpkit.build import build_ffn

H, I = 12, 20  # noqa: E741 - not square
SIZES = {"hidden_size": H, "intermediate_size": I}
HEADS = {"num_attention_heads": 1, "num_key_value_heads": 1}  # unused here, but it must divide H
P = 0.25  # dropout: the same elements fall where both ask the generator in the same order
CLAMP = {"limit": 0.75, "alpha": 1.3}  # low enough that much is clamped
HF_CLAMP = {"swiglu_limit": 0.75, "swiglu_alpha": 1.3}
EXPERT = 1  # of two


class Calling(nn.Module):
    """A reference that wants more than x, or whose FFN is spread over a layer."""

    def __init__(self, call, **parts):
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self.call = call

    def forward(self, x):
        return self.call(x, **self.parts)


# How a reference's tensors become ours; gradients are mapped as the weights are.


def same(tensors):
    return tensors


def renamed(**ours_to_theirs):
    places = {theirs: ours for ours, theirs in ours_to_theirs.items()}

    def translate(tensors):
        split = {tuple(name.rsplit(".", 1)): tensor for name, tensor in tensors.items()}
        return {f"{places[path]}.{kind}": tensor for (path, kind), tensor in split.items()}

    return translate


def transposed(**ours_to_theirs):
    """Conv1D keeps its weight as (in, out)."""
    names = renamed(**ours_to_theirs)
    return lambda tensors: {n: t.mT if t.ndim == 2 else t for n, t in names(tensors).items()}


def fused(tensors):
    gate, up = tensors["gate_up_proj.weight"].chunk(2)
    down = tensors["down_proj.weight"]
    return {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down}


def fused_expert(tensors):
    mine = {n.removeprefix("parts.experts."): t[EXPERT] for n, t in tensors.items()}
    return fused({f"{n}.weight": t for n, t in mine.items()})


def interleaved_expert(tensors):
    """GPT-OSS: (in, out), the gate in even and the up half in odd columns."""
    mine = {n.removeprefix("parts.experts."): t[EXPERT] for n, t in tensors.items()}
    packed, bias = mine["gate_up_proj"].mT, mine["gate_up_proj_bias"]
    return {
        "gate_proj.weight": packed[::2],
        "gate_proj.bias": bias[::2],
        "up_proj.weight": packed[1::2],
        "up_proj.bias": bias[1::2],
        "down_proj.weight": mine["down_proj"].mT,
        "down_proj.bias": mine["down_proj_bias"],
    }


def shared_expert(tensors):
    """Qwen2-MoE's block without what is routed."""
    ours = {n.removeprefix("parts.block.shared_expert"): t for n, t in tensors.items()}
    ours = {n.lstrip("._"): t for n, t in ours.items() if not n.startswith("parts")}
    return {n.replace("gate.weight", "output_gate.weight"): t for n, t in ours.items()}


# The references.


def t5(kind, act, dropout=0.0):
    return kind(hf.T5Config(d_model=H, d_ff=I, dense_act_fn=act, dropout_rate=dropout))


def bert():
    config = hf.BertConfig(**SIZES, num_attention_heads=1)
    parts = {"up": BertIntermediate(config), "down": BertOutput(config).dense}
    return Calling(lambda x, up, down: down(up(x)), **parts)


def bart():
    config = hf.BartConfig(d_model=H, encoder_ffn_dim=I, encoder_attention_heads=1)
    layer = BartEncoderLayer(config)

    def call(x, fc1, fc2):
        return fc2(layer.activation_fn(fc1(x)))

    return Calling(call, fc1=layer.fc1, fc2=layer.fc2)


def gpt2():
    config = hf.GPT2Config(n_embd=H, n_head=1, activation_function="gelu_new", resid_pdrop=P)
    return GPT2MLP(I, config)


def distilbert():
    config = hf.DistilBertConfig(dim=H, hidden_dim=I, n_heads=1, activation="gelu", dropout=P)
    return DistilBertFFN(config)


def kosmos2():
    text = {"embed_dim": H, "ffn_dim": I, "activation_dropout": P, "dropout": P}
    return Kosmos2TextFFN(hf.Kosmos2Config(text_config=text).text_config)


def gemma3n():
    config = hf.Gemma3nTextConfig(
        **SIZES, **HEADS, num_hidden_layers=1, activation_sparsity_pattern=[0.0]
    )
    return Gemma3nTextMLP(config)


def one_expert(kind, config):
    config._experts_implementation = "eager"  # its grouped product takes no float64

    def call(x, experts):
        rows = x.reshape(-1, H)
        choice = torch.full((len(rows), 1), EXPERT)
        return experts(rows, choice, torch.ones(len(rows), 1, dtype=x.dtype)).view_as(x)

    return Calling(call, experts=kind(config))


def gpt_oss():
    return one_expert(GptOssExperts, hf.GptOssConfig(**SIZES, num_local_experts=2, **HF_CLAMP))


def deepseek_v4():
    config = hf.DeepseekV4Config(hidden_size=H, moe_intermediate_size=I, n_routed_experts=2)
    config.swiglu_limit = CLAMP["limit"]
    return one_expert(DeepseekV4Experts, config)


def minimax():
    config = hf.MiniMaxM3VLConfig(text_config={"hidden_size": H, **HF_CLAMP}).text_config
    return MiniMaxM3VLDenseMLP(config, intermediate_size=I)


def qwen2_moe():
    config = hf.Qwen2MoeConfig(
        **HEADS,
        hidden_size=H,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=I,
        num_experts=2,
        num_experts_per_tok=1,
    )
    config._experts_implementation = "eager"
    return Calling(lambda x, block: block(x), block=Qwen2MoeSparseMoeBlock(config))


GATED_T5 = renamed(gate_proj="wi_0", up_proj="wi_1", down_proj="wo")
FC = {"up_proj": "fc1", "down_proj": "fc2"}
BIAS, GELU = {"bias": True}, {"activation": "gelu"}
TANH = {"activation": "gelu_pytorch_tanh"}
NEOX = renamed(up_proj="dense_h_to_4h", down_proj="dense_4h_to_h")
# class → (reference, entry, options, mapping)
CASES = {
    "mistral": (lambda: MistralMLP(hf.MistralConfig(**SIZES, **HEADS)), "swiglu", {}, same),
    "gemma": (
        lambda: GemmaMLP(hf.GemmaConfig(**SIZES, hidden_act="gelu_pytorch_tanh")),
        "gated",
        TANH,
        same,
    ),
    "gemma3n": (gemma3n, "gated", TANH, same),
    "phi3": (lambda: Phi3MLP(hf.Phi3Config(**SIZES, pad_token_id=0)), "swiglu", {}, fused),
    "glm": (lambda: GlmMLP(hf.GlmConfig(**SIZES)), "swiglu", {}, fused),
    "t5_gated_gelu": (lambda: t5(T5DenseGatedActDense, "gelu_new"), "gated", TANH, GATED_T5),
    "t5_gated_exact_gelu": (lambda: t5(T5DenseGatedActDense, "gelu"), "geglu", {}, GATED_T5),
    "t5_gated_relu": (lambda: t5(T5DenseGatedActDense, "relu"), "reglu", {}, GATED_T5),
    "t5_gated_linear": (lambda: t5(T5DenseGatedActDense, "linear"), "bilinear", {}, GATED_T5),
    "t5": (
        lambda: t5(T5DenseActDense, "relu", P),
        "naive",
        {"inner_dropout": P},
        renamed(up_proj="wi", down_proj="wo"),
    ),
    "bert": (
        bert,
        "naive",
        {**BIAS, **GELU},
        renamed(up_proj="parts.up.dense", down_proj="parts.down"),
    ),
    "bart": (
        bart,
        "naive",
        {**BIAS, **GELU},
        renamed(up_proj="parts.fc1", down_proj="parts.fc2"),
    ),
    "gpt2": (
        gpt2,
        "naive",
        {**BIAS, **TANH, "dropout": P},
        transposed(up_proj="c_fc", down_proj="c_proj"),
    ),
    "gpt_neox": (
        lambda: GPTNeoXMLP(hf.GPTNeoXConfig(**SIZES, num_attention_heads=1)),
        "naive",
        {**BIAS, **GELU},
        NEOX,
    ),
    "distilbert": (
        distilbert,
        "naive",
        {**BIAS, **GELU, "dropout": P},
        renamed(up_proj="lin1", down_proj="lin2"),
    ),
    "starcoder2": (
        lambda: Starcoder2MLP(hf.Starcoder2Config(**SIZES, **HEADS, residual_dropout=P)),
        "naive",
        {**BIAS, **TANH, "dropout": P},
        renamed(up_proj="c_fc", down_proj="c_proj"),
    ),
    "clip": (
        lambda: CLIPMLP(hf.CLIPTextConfig(**SIZES, num_attention_heads=1)),
        "naive",
        {**BIAS, "activation": "quick_gelu"},
        renamed(**FC),
    ),
    "nemotron": (
        lambda: NemotronMLP(hf.NemotronConfig(**SIZES, **HEADS, mlp_bias=True)),
        "naive",
        {**BIAS, "activation": "relu2"},
        same,
    ),
    "kosmos2": (
        kosmos2,
        "naive",
        {**BIAS, **GELU, "inner_norm": "layer", "inner_dropout": P, "dropout": P},
        renamed(**FC, inner_norm="ffn_layernorm"),
    ),
    "gpt_oss": (gpt_oss, "clamped_gated", {**BIAS, **CLAMP}, interleaved_expert),
    "minimax": (minimax, "clamped_gated", CLAMP, fused),
    "deepseek_v4": (
        deepseek_v4,
        "clamped_gated",
        {"limit": CLAMP["limit"], "alpha": 1.0, "up_offset": 0.0},
        fused_expert,
    ),
    "qwen2_moe": (qwen2_moe, "output_gated", {}, shared_expert),
}


def pair(name):
    """A reference with random weights, our FFN with the same, and the mapping."""
    make, ffn, options, translate = CASES[name]
    rng = torch.Generator().manual_seed(0)
    reference = make().double()
    for key, parameter in reference.named_parameters():
        # several of these classes leave their weights uninitialised; vectors are around 1
        values = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
        values = values / parameter.shape[-1] ** 0.5 if values.ndim > 1 else 1 + values / 4
        idle = "block.experts" in key or "block.gate" in key  # the routed part adds nothing
        parameter.data = torch.zeros_like(values) if idle else values
    ours = build_ffn(ffn, hidden_size=H, intermediate_size=I, **options).double()
    ours.load_state_dict(translate({k: p.detach() for k, p in reference.named_parameters()}))
    return reference, ours, translate


def run(module, training):
    """The output, and the gradients of the input and of every parameter."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, H, generator=rng, dtype=torch.float64).requires_grad_()
    torch.manual_seed(2)
    y = module.train(training)(x)
    (y * torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y)).sum().backward()
    return y.detach(), x.grad, {name: p.grad for name, p in module.named_parameters()}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_an_ffn_equals_the_class_that_uses_it_in_output_and_gradient(name, training):
    reference, ours, translate = pair(name)
    want, want_x, their_gradients = run(reference, training)
    got, got_x, gradients = run(ours, training)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got_x, want_x, rtol=1e-12, atol=1e-12)
    assert want.abs().max() > 0.1  # zeros would agree with anything
    expected = translate({k: g for k, g in their_gradients.items() if g is not None})
    assert expected.keys() == gradients.keys()
    for key, gradient in gradients.items():
        assert gradient.abs().max() > 1e-3
        torch.testing.assert_close(gradient, expected[key], rtol=1e-12, atol=1e-12, msg=key)


def test_dropout_is_compared_while_it_drops():
    dropping = [n for n, (_, _, options, _) in CASES.items() if "dropout" in " ".join(options)]
    assert len(dropping) >= 4
    for name in dropping:
        _, ours, _ = pair(name)
        assert not torch.equal(run(ours, True)[0], run(ours, False)[0])


@pytest.mark.parametrize("name", ["gpt_oss", "minimax", "deepseek_v4"])
def test_the_clamps_are_compared_where_they_clamp_and_where_not(name):
    _, ours, _ = pair(name)
    x = torch.randn(2, 5, H, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gate, up, limit = ours.gate_proj(x), ours.up_proj(x), CLAMP["limit"]
    for share in ((gate > limit), (gate < -limit), (up > limit), (up < -limit), up.abs() < limit):
        assert share.double().mean() > 0.05


def test_at_least_ten_classes_are_compared():
    classes = {type(make()).__name__ for make, *_ in CASES.values()} - {"Calling"}
    assert len(classes) >= 10

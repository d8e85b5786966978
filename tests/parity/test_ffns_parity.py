"""The dense FFNs equal those of transformers and an article's with the same weights."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import ArceeConfig, LlamaConfig
from transformers.activations import ACT2FN as HF_ACT2FN
from transformers.models.arcee.modeling_arcee import ArceeMLP
from transformers.models.llama.modeling_llama import LlamaMLP

from mlpkit.activations import ACT2FN
from mlpkit.build import build_ffn

H, I = 12, 20  # noqa: E741 - not square, and neither a multiple of 64
# buffers of the reference's xIELU that are options here
REFERENCE_CONSTANTS = ("act_fn.beta", "act_fn.eps")
# the reference writes √(2/π) with ten digits
TOLERANCE = {"gelu_fast": 1e-10}
SHARED_NAMES = sorted(set(HF_ACT2FN) & set(ACT2FN))


def pair(reference, name, activation, bias=False, dtype=torch.float64):
    """A reference and our FFN with its weights."""
    torch.manual_seed(0)
    reference = reference.to(dtype)
    ours = build_ffn(name, hidden_size=H, intermediate_size=I, activation=activation, bias=bias)
    ours.to(dtype).load_state_dict(
        {
            name.replace("act_fn.", "activation."): value
            for name, value in reference.state_dict().items()
            if name not in REFERENCE_CONSTANTS
        }
    )
    return reference, ours


def of_transformers(config_class, module_class, hidden_act, bias):
    config = config_class(
        hidden_size=H,
        intermediate_size=I,
        hidden_act=hidden_act,
        mlp_bias=bias,
        num_attention_heads=1,  # unused here, but it must divide H
    )
    return module_class(config)


def llama(hidden_act, bias=False):
    return of_transformers(LlamaConfig, LlamaMLP, hidden_act, bias)


def arcee(hidden_act, bias=False):
    return of_transformers(ArceeConfig, ArceeMLP, hidden_act, bias)


def assert_same(reference, ours, tolerance=0.0, dtype=torch.float64):
    """Outputs and all gradients, also that of the input."""
    x = torch.randn(2, 3, H, dtype=dtype, generator=torch.Generator().manual_seed(1))
    results = []
    for module in (reference, ours):
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        (y * torch.linspace(-1, 1, y.numel(), dtype=dtype).view_as(y)).sum().backward()
        gradients = {name: p.grad for name, p in module.named_parameters()}
        results.append({"y": y.detach(), "x": leaf.grad, **gradients})
    expected, found = results
    assert expected["y"].abs().max() > 0.01  # zeros would agree with anything
    for name, value in found.items():
        other = expected.get(name, expected.get(name.replace("activation.", "act_fn.")))
        torch.testing.assert_close(value, other, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_swiglu_is_llama_s_to_the_bit(dtype, bias):
    reference, ours = pair(llama("silu", bias), "swiglu", None, bias, dtype)
    assert_same(reference, ours, dtype=dtype)


@pytest.mark.parametrize("bias", [False, True])
def test_naive_is_arcee_s_to_the_bit(bias):
    assert_same(*pair(arcee("relu2", bias), "naive", "relu2", bias))


# The reference's own shortcut against a closed form: tanh and erf to float64's last bits.
@pytest.mark.parametrize("name", SHARED_NAMES)
def test_gated_with_any_activation_is_llama_s_with_that_hidden_act(name):
    assert_same(*pair(llama(name), "gated", name), tolerance=TOLERANCE.get(name, 1e-12))


@pytest.mark.parametrize("name", SHARED_NAMES)
def test_naive_with_any_activation_is_arcee_s_with_that_hidden_act(name):
    assert_same(*pair(arcee(name), "naive", name), tolerance=TOLERANCE.get(name, 1e-12))


def test_every_name_of_transformers_is_compared():
    assert {"gelu", "gelu_new", "relu", "relu2", "silu", "swish", "sigmoid"} <= set(SHARED_NAMES)
    assert set(HF_ACT2FN) - set(SHARED_NAMES) == set()


class ArticleFeedForward(nn.Module):
    """A SwiGLU as tutorials write it: a config object and ACT2FN."""

    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x):
        gated = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.dropout(self.down_proj(gated))


@pytest.mark.parametrize("training", [False, True])
def test_an_article_s_feed_forward_runs_on_our_act2fn_and_equals_swiglu(training):
    config = SimpleNamespace(hidden_size=H, intermediate_size=I, hidden_act="silu", dropout=0.25)
    article = ArticleFeedForward(config).double().train(training)
    ours = build_ffn("swiglu", hidden_size=H, intermediate_size=I, dropout=0.25)
    ours.double().train(training).load_state_dict(article.state_dict())
    x = torch.randn(2, 3, H, dtype=torch.float64)
    outputs = []
    for module in (article, ours):
        torch.manual_seed(3)  # the same elements are dropped
        outputs.append(module(x))
    assert torch.equal(*outputs)
    assert bool((outputs[0] == 0).any()) == training

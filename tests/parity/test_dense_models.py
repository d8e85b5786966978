"""Dense decoders equal Llama and Qwen3 of transformers with the same weights."""

import inspect
from types import MethodType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from mlpkit.ffns import GatedFFN
from mlpkit.model import Attention, Block, Decoder, KVCache, generate

V, H, INTERMEDIATE, HEADS, LAYERS, THETA, EPS = 13, 16, 24, 4, 2, 300.0, 1e-4
CASES = [  # family, key/value heads, head_dim, tied
    pytest.param("llama", 2, 4, True, id="llama-gqa-tied"),
    pytest.param("llama", 4, 4, False, id="llama-mha-untied"),
    pytest.param("llama", 1, 6, False, id="llama-mqa-wide-heads"),
    pytest.param("qwen3", 2, 4, False, id="qwen3-gqa-untied"),
    pytest.param("qwen3", 2, 10, True, id="qwen3-wide-heads-tied"),
]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def reference(family, kv_heads, head_dim, tied, dtype):
    """A tiny model of transformers; all weights random, those of the norms too."""
    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }[family]
    config = config_class(
        vocab_size=V,
        hidden_size=H,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=tied,
        attn_implementation="sdpa",
    )
    model = model_class(config).to(dtype).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(std=0.3).add_(1.0 if "norm" in name else 0.0)
    return in_float64(model, head_dim) if dtype == torch.float64 else model


def in_float64(model, head_dim):
    """Lifts the two places where transformers computes in float32 whatever the dtype."""

    def norm(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)

    def angles(self, x, position_ids):
        frequency = THETA ** (-torch.arange(0, head_dim, 2).double() / head_dim)
        angle = torch.cat((position_ids[..., None] * frequency,) * 2, dim=-1)
        return angle.cos(), angle.sin()

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(norm, module)
    model.model.rotary_emb.forward = MethodType(angles, model.model.rotary_emb)
    return model


def decoder_like(model, family, kv_heads, head_dim, tied, dtype):
    """An mlpkit Decoder with the weights of a reference."""
    blocks = [
        Block(
            attention=Attention(
                hidden_size=H,
                num_attention_heads=HEADS,
                num_key_value_heads=kv_heads,
                head_dim=head_dim,
                qk_norm=family == "qwen3",
                norm_eps=EPS,
            ),
            ffn=GatedFFN(hidden_size=H, intermediate_size=INTERMEDIATE, activation=nn.SiLU()),
            hidden_size=H,
            norm_eps=EPS,
        )
        for _ in range(LAYERS)
    ]
    decoder = Decoder(
        vocab_size=V,
        hidden_size=H,
        layers=blocks,
        head_dim=head_dim,
        rope_theta=THETA,
        norm_eps=EPS,
        tie_word_embeddings=tied,
    )
    weights = {
        our_name(name): value
        for name, value in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
    decoder.to(dtype).load_state_dict(weights)  # the other order would round the weights
    return decoder.eval()


def our_name(name):
    return name.removeprefix("model.").replace(".mlp.", ".ffn.")


def cache_word(model):
    """The argument for the cache: ``past_key_values`` became ``cache`` within transformers 5."""
    known = inspect.signature(model.forward).parameters
    return "cache" if "cache" in known else "past_key_values"


def pair(case, dtype):
    model = reference(*case, dtype)
    return model, decoder_like(model, *case, dtype)


def some_tokens(batch=3, length=7):
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(1))


def assert_near(found, expected):
    assert found.dtype == expected.dtype
    assert expected.abs().max() > 0.1  # zeros would agree with anything
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@DTYPES
@pytest.mark.parametrize(("family", "kv_heads", "head_dim", "tied"), CASES)
def test_logits_and_gradients_are_those_of_transformers(family, kv_heads, head_dim, tied, dtype):
    model, decoder = pair((family, kv_heads, head_dim, tied), dtype)
    tokens = some_tokens()
    expected, found = model(tokens).logits, decoder(tokens)
    assert_near(found, expected)

    for logits in (expected, found):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    gradients = {our_name(name): p.grad for name, p in model.named_parameters()}
    assert gradients.keys() == dict(decoder.named_parameters()).keys()
    for name, parameter in decoder.named_parameters():
        assert parameter.grad.abs().max() > 0, name
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(
            parameter.grad, gradients[name], rtol=tolerance, atol=tolerance, msg=name
        )


@DTYPES
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("family", "kv_heads", "head_dim", "tied"), CASES)
def test_padded_logits_and_gradients_are_those_of_transformers(
    family, kv_heads, head_dim, tied, side, dtype
):
    model, decoder = pair((family, kv_heads, head_dim, tied), dtype)
    tokens, mask = some_tokens(), torch.ones(3, 7, dtype=torch.bool)
    padding = slice(None, 3) if side == "left" else slice(4, None)
    mask[1, padding] = False
    mask[2, padding][..., :1] = side == "right"
    positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
    expected = model(tokens, attention_mask=mask.long(), position_ids=positions).logits[mask]
    found = decoder(tokens, mask=mask)[mask]
    assert_near(found, expected)

    for logits in (expected, found):
        logits.logsumexp(-1).square().sum().backward()
    gradients = {our_name(name): p.grad for name, p in model.named_parameters()}
    for name, parameter in decoder.named_parameters():
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(
            parameter.grad / gradients[name].abs().max(),
            gradients[name] / gradients[name].abs().max(),
            rtol=tolerance,
            atol=tolerance,
            msg=name,
        )


@DTYPES
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("family", "kv_heads", "head_dim", "tied"), CASES)
def test_cached_logits_are_those_of_transformers(family, kv_heads, head_dim, tied, padded, dtype):
    model, decoder = pair((family, kv_heads, head_dim, tied), dtype)
    tokens, mask = some_tokens(), torch.ones(3, 7, dtype=torch.bool)
    mask[1, :2] = not padded
    positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
    cache, theirs, start = KVCache(num_layers=LAYERS, max_length=7), None, 0
    for end in (4, 5, 7):  # a prompt, one token, a chunk
        out = model(
            tokens[:, start:end],
            attention_mask=mask[:, :end].long(),
            position_ids=positions[:, start:end],
            use_cache=True,
            **{cache_word(model): theirs},
        )
        theirs = out.past_key_values
        given = mask[:, :end] if padded else None
        found = decoder(tokens[:, start:end], cache=cache, mask=given)
        real = mask[:, start:end]
        assert_near(found[real], out.logits[real])
        start = end


@pytest.mark.parametrize(("family", "kv_heads", "head_dim", "tied"), CASES)
def test_greedy_generation_is_that_of_transformers(family, kv_heads, head_dim, tied):
    model, decoder = pair((family, kv_heads, head_dim, tied), torch.float64)
    tokens, mask = some_tokens(3, 4), torch.ones(3, 4, dtype=torch.bool)
    mask[1, :2] = False
    expected = model.generate(
        tokens,
        attention_mask=mask.long(),
        max_new_tokens=9,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    found = generate(decoder, tokens, max_new_tokens=9, temperature=0, mask=mask)
    assert found.equal(expected)

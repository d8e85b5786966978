"""The Decoder: norms, rotary positions, attention, cache, compilation, generation."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.testing import CompileCounter

from mlpkit.model import (
    Attention,
    Block,
    CacheError,
    Decoder,
    GenerationError,
    KVCache,
    RMSNorm,
    generate,
)
from mlpkit.model.attention import rotary_table, rotate
from mlpkit.model.decoder import visible_keys
from mlpkit.sizing import ModelShapeError, check_heads

V, H, HEADS, KV, D = 11, 8, 4, 2, 4


class TwoLinears(nn.Module):
    """A stand-in for any FFN, so that these tests need no other module."""

    def __init__(self):
        super().__init__()
        self.up_proj = nn.Linear(H, 2 * H, bias=False)
        self.down_proj = nn.Linear(2 * H, H, bias=False)

    def forward(self, x):
        return self.down_proj(self.up_proj(x).relu())


def decoder(*, layers=2, dtype=torch.float64, dropout=0.0, seed=0, **options):
    torch.manual_seed(seed)
    blocks = [
        Block(
            attention=Attention(
                hidden_size=H,
                num_attention_heads=HEADS,
                num_key_value_heads=KV,
                head_dim=D,
                qk_norm=True,
            ),
            ffn=TwoLinears(),
            hidden_size=H,
            norm_eps=1e-5,
            dropout=dropout,
        )
        for _ in range(layers)
    ]
    model = Decoder(vocab_size=V, hidden_size=H, layers=blocks, head_dim=D, **options)
    with torch.no_grad():  # an embedding of std 0.02 would leave all logits nearly equal
        model.embed_tokens.weight.normal_()
    return model.to(dtype).eval()


def some_tokens(batch=2, length=6, seed=1):
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(seed))


# --- RMSNorm ------------------------------------------------------------------------------------


def test_rms_norm_equals_the_hand_computed_value():
    norm = RMSNorm(size=2, eps=0.0).double()
    norm.weight.data = torch.tensor([2.0, 10.0]).double()
    # rms of (3, 4) is sqrt(12.5)
    expected = [2 * 3 / math.sqrt(12.5), 10 * 4 / math.sqrt(12.5)]
    assert norm(torch.tensor([3.0, 4.0]).double()).tolist() == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_keeps_the_dtype_and_its_precision(dtype):
    torch.manual_seed(0)
    x, norm = torch.randn(3, 64).to(dtype), RMSNorm(size=64).to(dtype)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    result = norm(x)
    assert result.dtype == dtype
    torch.testing.assert_close(
        result.double(), exact, rtol=0, atol=4 * torch.finfo(dtype).eps * exact.abs().max().item()
    )


def test_rms_norm_of_half_precision_does_not_overflow_in_the_square():
    x = torch.full((1, 4), 1000.0, dtype=torch.float16)  # 1000² is beyond float16's 65504
    assert RMSNorm(size=4).half()(x).tolist() == [[1.0] * 4]


def test_rms_norm_with_float32_weight_returns_the_dtype_of_x():
    assert RMSNorm(size=4)(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


# --- rotary positions ---------------------------------------------------------------------------


def test_rotation_is_multiplication_by_a_complex_number():
    torch.manual_seed(0)
    x, theta = torch.randn(1, 1, 5, 8).double(), 500.0
    rotated = rotate(x, rotary_table(torch.arange(5)[None], 8, theta, torch.float64))
    for position in range(5):
        for pair in range(4):
            number = complex(x[0, 0, position, pair], x[0, 0, position, pair + 4])
            angle = position * theta ** (-2 * pair / 8)
            turned = number * complex(math.cos(angle), math.sin(angle))
            found = rotated[0, 0, position, [pair, pair + 4]].tolist()
            assert found == pytest.approx([turned.real, turned.imag], rel=1e-13, abs=1e-13)


def test_rotated_products_depend_on_the_distance_alone():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 16).double()

    def product(at, other):
        table = [rotary_table(torch.tensor([[p]]), 16, 1e4, torch.float64) for p in (at, other)]
        return (rotate(q, table[0]) * rotate(k, table[1])).sum().item()

    assert product(7, 3) == pytest.approx(product(5007, 5003), rel=1e-10)
    assert product(7, 3) != pytest.approx(product(7, 5), rel=1e-2)


@pytest.mark.parametrize(
    ("model", "angles"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_angles_are_never_computed_below_float32(model, angles):
    cos, sin = rotary_table(torch.arange(3000)[None], D, 1e4, model)
    assert cos.dtype == sin.dtype == angles
    # bfloat16 holds integers up to 256 only: its position 2999 would be 3008.
    assert cos[0, 0, 2999, 0].item() == pytest.approx(math.cos(2999), abs=1e-4)
    assert rotate(torch.ones(1, 1, 3000, D, dtype=model), (cos, sin)).dtype == model


# --- sizes --------------------------------------------------------------------------------------


def test_head_dim_is_the_width_shared_by_the_heads():
    assert check_heads(hidden_size=128, num_attention_heads=4, num_key_value_heads=2) == 32
    explicit = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 6}
    assert check_heads(hidden_size=7, **explicit) == 6  # heads need not divide the width then


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((129, 4, 4, None), r"hidden_size 129 .*num_attention_heads 4; .* 128 or 136,"),
        ((12, 4, 4, None), r"hidden_size 12 .*odd size 3 .* 8 or 16,"),
        ((3, 4, 4, None), r"hidden_size 3 .*use model.hidden_size 8, or"),
        ((8, 4, 3, None), r"num_attention_heads 4 .*num_key_value_heads 3; .*fit: 1, 2, 4$"),
        ((8, 4, 8, None), r"num_attention_heads 4 .*num_key_value_heads 8; .*fit: 1, 2, 4$"),
        ((8, 4, 2, 5), r"head_dim 5 is odd.* 4 or 6$"),
        ((8, 4, 2, 1), r"head_dim 1 is odd.*use 2$"),
        ((8, 0, 2, None), r"num_attention_heads is 0"),
        ((8, 4, 0, None), r"num_key_value_heads is 0"),
        ((0, 4, 2, None), r"hidden_size is 0"),
        ((8, 4, 2, -2), r"head_dim is -2"),
    ],
)
def test_sizes_that_do_not_fit_are_named_with_the_nearest_that_do(sizes, words):
    keys = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    options = dict(zip(keys, sizes, strict=True))
    with pytest.raises(ModelShapeError, match=words) as caught:
        check_heads(**options)
    assert caught.value.exit_code == 2
    with pytest.raises(ModelShapeError, match=words):
        Attention(**options)


@given(hidden=st.integers(1, 300), heads=st.integers(1, 12), kv=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_every_size_that_a_message_advises_is_accepted(hidden, heads, kv):
    try:
        assert (
            check_heads(hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv)
            == hidden // heads
        )
    except ModelShapeError as error:
        *_, advice = str(error).split(";")
        if "key/value heads that fit" in advice:
            assert all(heads % int(d) == 0 for d in advice.split(":")[1].split(","))
            return
        for size in advice.split(",")[0].replace("use model.hidden_size", "").split("or"):
            check_heads(hidden_size=int(size), num_attention_heads=heads, num_key_value_heads=1)


def test_layers_with_other_heads_than_the_decoders_are_refused():
    blocks = list(decoder().layers)
    with pytest.raises(ModelShapeError, match=r"layer 0 .* 4 .* head_dim 6"):
        Decoder(vocab_size=V, hidden_size=H, layers=blocks, head_dim=6)


# --- structure ----------------------------------------------------------------------------------


def test_state_dict_has_the_names_of_hugging_face_and_holds_no_buffers():
    model = decoder(layers=1, tie_word_embeddings=False)
    assert set(model.state_dict()) == {
        "embed_tokens.weight",
        "layers.0.input_layernorm.weight",
        "layers.0.self_attn.q_proj.weight",
        "layers.0.self_attn.k_proj.weight",
        "layers.0.self_attn.v_proj.weight",
        "layers.0.self_attn.o_proj.weight",
        "layers.0.self_attn.q_norm.weight",
        "layers.0.self_attn.k_norm.weight",
        "layers.0.post_attention_layernorm.weight",
        "layers.0.ffn.up_proj.weight",
        "layers.0.ffn.down_proj.weight",
        "norm.weight",
        "lm_head.weight",
    }
    assert not list(model.buffers())


def test_tied_model_holds_the_embedding_once_and_the_untied_one_twice():
    sizes = {
        tied: sum(p.numel() for p in decoder(tie_word_embeddings=tied).state_dict().values())
        for tied in (True, False)
    }
    assert sizes[False] - sizes[True] == V * H
    assert "lm_head.weight" not in decoder().state_dict()


def test_tied_and_untied_models_of_one_seed_share_the_embedding():
    weights = []
    for tied in (True, False):
        torch.manual_seed(0)
        model = Decoder(
            vocab_size=500, hidden_size=H, layers=[], head_dim=D, tie_word_embeddings=tied
        )
        weights.append(model.embed_tokens.weight)
    assert weights[0].equal(weights[1])
    assert weights[0].std().item() == pytest.approx(H**-0.5, rel=0.05)


def test_gradient_of_a_tied_weight_is_the_sum_of_both_uses():
    tied, untied, tokens = decoder(), decoder(tie_word_embeddings=False), some_tokens()
    untied.load_state_dict(tied.state_dict() | {"lm_head.weight": tied.embed_tokens.weight})
    for model in (tied, untied):
        model(tokens).logsumexp(-1).sum().backward()
    both = untied.embed_tokens.weight.grad + untied.lm_head.weight.grad
    torch.testing.assert_close(tied.embed_tokens.weight.grad, both, rtol=1e-12, atol=1e-12)


def test_hidden_and_logits_are_the_two_halves_of_forward():
    model, tokens = decoder(), some_tokens()
    assert model.hidden(tokens).shape == (2, 6, H)
    assert model.logits(model.hidden(tokens)).equal(model(tokens))


def test_dropout_acts_on_both_residuals_in_training_only():
    model, tokens = decoder(dropout=1.0), some_tokens()
    without = decoder(dropout=0.0)
    assert model(tokens).equal(without(tokens))
    model.train()
    # Everything that a block adds is dropped: the embedding goes straight to the last norm.
    expected = F.linear(model.norm(model.embed_tokens(tokens)), model.embed_tokens.weight)
    assert model(tokens).equal(expected)


def test_a_model_is_made_on_the_meta_device_and_filled_later():
    with torch.device("meta"):
        empty = Decoder(
            vocab_size=V, hidden_size=H, layers=[copy.deepcopy(decoder().layers[0])], head_dim=D
        )
    filled = decoder(layers=1)
    empty.layers[0].to("meta")
    empty.to_empty(device="cpu").double().load_state_dict(filled.state_dict())
    assert empty.eval()(some_tokens()).equal(filled(some_tokens()))


def test_a_model_can_be_copied_and_pickled():
    model, tokens = decoder(), some_tokens()
    assert copy.deepcopy(model)(tokens).equal(model(tokens))
    assert pickle.loads(pickle.dumps(model))(tokens).equal(model(tokens))


@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0), (1, 1)])
def test_empty_batches_and_sequences_keep_their_shape(batch, length):
    assert decoder()(some_tokens(batch, length)).shape == (batch, length, V)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_float64_and_stays_half(dtype):
    exact, tokens = decoder(), some_tokens()
    logits = decoder(dtype=dtype)(tokens)
    assert logits.dtype == dtype
    error = (logits.double() - exact(tokens)).abs().max() / exact(tokens).abs().max()
    assert error < 8 * torch.finfo(dtype).eps


def test_autocast_computes_near_float32_with_gradients_in_float32():
    model, tokens = decoder(dtype=torch.float32), some_tokens()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens)
    torch.testing.assert_close(logits.float(), model(tokens), rtol=0.05, atol=0.2)
    logits.float().logsumexp(-1).sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


# --- causality and padding ----------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_no_position_sees_the_future(masked):
    model, tokens = decoder(), some_tokens(1, 6)
    mask = torch.ones(1, 6, dtype=torch.bool) if masked else None
    table = model.embed_tokens(tokens).detach().requires_grad_()
    model.embed_tokens.forward = lambda _: table
    for position in range(6):
        (grad,) = torch.autograd.grad(model(tokens, mask=mask)[0, position].sum(), table)
        assert (grad[0, : position + 1].abs().sum(-1) > 0).all()
        assert (grad[0, position + 1 :] == 0).all()


def test_a_mask_of_real_tokens_changes_nothing():
    model, tokens = decoder(), some_tokens()
    mask = torch.ones_like(tokens, dtype=torch.bool)
    torch.testing.assert_close(model(tokens, mask=mask), model(tokens), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("before", [[], [0] * 3, [5], [0, 0, 5, 5, 5, 5], [0, 2, 3, 3, 6]])
@pytest.mark.parametrize("filling", [0, 7])
def test_padding_anywhere_changes_no_real_position(before, filling):
    model, tokens = decoder(), some_tokens()
    padded, mask = [], []
    for index in range(7):
        padded += [torch.full((2,), filling)] * before.count(index)
        mask += [False] * before.count(index)
        if index < 6:
            padded.append(tokens[:, index])
            mask.append(True)
    mask = torch.tensor(mask).expand(2, -1)
    real = model(torch.stack(padded, 1), mask=mask)[mask].view(2, 6, V)
    torch.testing.assert_close(real, model(tokens), rtol=1e-11, atol=1e-11)


def test_a_prompt_padded_on_the_right_continues_where_it_ended():
    model, tokens, cache = decoder(), some_tokens(1, 6), KVCache(num_layers=2, max_length=9)
    mask = torch.tensor([[True] * 4 + [False] * 3 + [True] * 2])
    model(F.pad(tokens[:, :4], (0, 3)), cache=cache, mask=mask[:, :7])
    found = model(tokens[:, 4:], cache=cache, mask=mask)
    torch.testing.assert_close(found, model(tokens)[:, 4:], rtol=1e-11, atol=1e-11)


def test_no_query_is_left_without_a_key():
    # Kernels differ in what a softmax over nothing gives: zero in some, NaN in others.
    mask = torch.tensor([[False] * 4, [False, True, False, True]])
    expected = [
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]],
    ]
    assert visible_keys(some_tokens(2, 4), 0, mask)[:, 0].int().tolist() == expected
    assert visible_keys(some_tokens(2, 2), 2, mask)[:, 0].int().tolist() == [
        rows[2:] for rows in expected
    ]


def test_a_row_of_nothing_but_padding_gives_finite_values_and_gradients():
    model, tokens = decoder(), some_tokens()
    mask = torch.tensor([[True] * 6, [False] * 6])
    model(tokens, mask=mask).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(2, 5, dtype=torch.bool), r"torch.bool of shape \(2, 5\).*\(2, 6\)"),
        (torch.ones(2, 6, dtype=torch.long), r"torch.int64 .*must be torch.bool"),
        (torch.ones(1, 6, dtype=torch.bool), r"shape \(1, 6\).*\(2, 6\)"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask, words):
    with pytest.raises(ModelShapeError, match=words):
        decoder()(some_tokens(), mask=mask)


# --- cache --------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [[1] * 6, [6], [3, 1, 2], [2, 4]])
@pytest.mark.parametrize("left", [0, 2])
def test_cached_logits_equal_those_of_the_whole_sequence(steps, left):
    model, tokens = decoder(), some_tokens()
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1, :left] = False
    cache, seen, pieces = KVCache(num_layers=2, max_length=6), 0, []
    for size in steps:
        seen += size
        given = mask[:, :seen] if left else None
        pieces.append(model(tokens[:, seen - size : seen], cache=cache, mask=given))
        assert cache.length == seen
    whole = model(tokens, mask=mask if left else None)
    torch.testing.assert_close(torch.cat(pieces, 1)[mask], whole[mask], rtol=1e-11, atol=1e-11)


def test_a_full_cache_is_refused_and_keeps_what_it_holds():
    model, tokens, cache = decoder(), some_tokens(), KVCache(num_layers=2, max_length=6)
    model(tokens[:, :5], cache=cache)
    with pytest.raises(CacheError, match=r"5 of at most 6 .* 2 more .*max_length=7") as caught:
        model(tokens[:, :2], cache=cache)
    assert caught.value.exit_code == 2
    assert cache.length == 5
    last = model(tokens[:, 5:], cache=cache)
    torch.testing.assert_close(last[:, 0], model(tokens)[:, -1], rtol=1e-11, atol=1e-11)


def test_a_cache_refuses_another_batch_or_dtype():
    cache = KVCache(num_layers=2, max_length=9)
    decoder()(some_tokens(2), cache=cache)
    with pytest.raises(CacheError, match=r"B=2.* is given \(B=1"):
        decoder()(some_tokens(1, 1), cache=cache)
    with pytest.raises(CacheError, match=r"float64.*float32"):
        decoder(dtype=torch.float32)(some_tokens(2, 1), cache=cache)


def test_a_cache_for_another_depth_is_refused():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        decoder(layers=2)(some_tokens(), cache=KVCache(num_layers=1, max_length=9))


def test_a_cache_without_room_cannot_be_made():
    with pytest.raises(CacheError, match="max_length is 0"):
        KVCache(num_layers=1, max_length=0)


def test_training_through_a_cache_twice_fails_instead_of_losing_gradients():
    model, cache = decoder(), KVCache(num_layers=2, max_length=6)
    first = model(some_tokens()[:, :3], cache=cache)
    second = model(some_tokens()[:, 3:], cache=cache)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (first.sum() + second.sum()).backward()


# --- compilation --------------------------------------------------------------------------------


def test_the_decoder_compiles_as_one_graph_with_equal_results_and_gradients():
    torch._dynamo.reset()
    model, tokens = decoder(layers=1), some_tokens()
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    mask = F.pad(torch.ones(2, 5, dtype=torch.bool), (1, 0), value=False)
    for given_tokens, given_mask in ((tokens, None), (tokens, mask), (some_tokens(3, 9), None)):
        expected = model(given_tokens, mask=given_mask)
        found = compiled(given_tokens, mask=given_mask)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        for each, logits in ((model, expected), (compiled, found)):
            each.zero_grad()
            logits.logsumexp(-1).sum().backward()
        for one, other in zip(model.parameters(), compiled.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-11, atol=1e-11)


def test_decoding_with_a_cache_compiles_twice_however_long_it_is():
    torch._dynamo.reset()
    model, tokens, graphs = decoder(), some_tokens(2, 20), CompileCounter()
    compiled = torch.compile(copy.deepcopy(model), backend=graphs, fullgraph=True)
    cache = KVCache(num_layers=2, max_length=20)
    with torch.no_grad():
        pieces = [compiled(tokens[:, i : i + 1], cache=cache) for i in range(20)]
        torch.testing.assert_close(torch.cat(pieces, 1), model(tokens), rtol=1e-11, atol=1e-11)
    assert graphs.frame_count == 2  # the first token, and all that have a past


def test_the_decoder_is_exported_for_any_length():
    model = decoder()
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(model, (some_tokens(),), dynamic_shapes=({1: length},))
    other = some_tokens(2, 11)
    torch.testing.assert_close(program.module()(other), model(other), rtol=1e-12, atol=1e-12)


# --- generation ---------------------------------------------------------------------------------


def greedy_without_cache(model, tokens, steps):
    for _ in range(steps):
        tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), dim=1)
    return tokens


def test_greedy_generation_equals_the_uncached_loop():
    model, tokens = decoder(), some_tokens(3, 4)
    found = generate(model, tokens, max_new_tokens=7, temperature=0)
    assert found.equal(greedy_without_cache(model, tokens, 7))


def test_prompts_of_different_length_generate_as_if_alone():
    model, long, short = decoder(), some_tokens(1, 5), some_tokens(1, 2, seed=3)
    batch = torch.cat((long, F.pad(short, (3, 0))))
    mask = torch.tensor([[True] * 5, [False] * 3 + [True] * 2])
    found = generate(model, batch, max_new_tokens=6, temperature=0, mask=mask)
    for row, alone, start in ((0, long, 0), (1, short, 3)):
        expected = generate(model, alone, max_new_tokens=6, temperature=0)
        assert found[row : row + 1, start:].equal(expected)


def test_one_seed_gives_one_continuation_and_the_global_generator_is_left_alone():
    model, tokens = decoder(), some_tokens()
    state = torch.get_rng_state()
    first, again, other = (
        generate(model, tokens, max_new_tokens=20, generator=torch.Generator().manual_seed(seed))
        for seed in (5, 5, 6)
    )
    assert first.equal(again)
    assert not first.equal(other)
    assert torch.get_rng_state().equal(state)


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (0.5, None), (2.0, 3), (1.0, 99)])
def test_sampled_frequencies_are_the_tempered_softmax(temperature, top_k):
    model, draws = decoder(), 4000
    tokens = some_tokens(1, 3).expand(draws, 3)
    found = generate(
        model,
        tokens,
        max_new_tokens=1,
        temperature=temperature,
        top_k=top_k,
        generator=torch.Generator().manual_seed(0),
    )
    logits = model(tokens[:1])[0, -1] / temperature
    if top_k == 3:
        logits[logits.argsort()[:-3]] = -math.inf
    expected = logits.softmax(-1)
    frequency = found[:, -1].bincount(minlength=V) / draws
    # Five standard deviations of a frequency over the draws; excluded tokens never appear.
    assert ((frequency - expected).abs() <= 5 * (expected * (1 - expected) / draws).sqrt()).all()


@pytest.mark.parametrize("options", [{"top_k": 1}, {"temperature": 1e-38}])
def test_the_limits_of_sampling_are_greedy(options):
    model, tokens = decoder(dtype=torch.float32), some_tokens()
    assert model(tokens).max() / 1e-38 == math.inf  # a plain division would overflow
    greedy = generate(model, tokens, max_new_tokens=5, temperature=0)
    assert generate(model, tokens, max_new_tokens=5, **options).equal(greedy)


def test_after_the_end_token_only_end_tokens_follow():
    model, tokens = decoder(), some_tokens(3, 4)
    draw = {"max_new_tokens": 8, "temperature": 2.0}
    free = generate(model, tokens, **draw, generator=torch.Generator().manual_seed(0))
    eos = int(free[0, 5])
    assert set(free[0, 6:].tolist()) != {eos}  # it would have gone on, as another row does
    assert any(eos not in row[4:] for row in free.tolist())
    found = generate(model, tokens, **draw, eos=eos, generator=torch.Generator().manual_seed(0))
    for row, expected in zip(found.tolist(), free.tolist(), strict=True):
        new = expected[4:]
        end = new.index(eos) + 1 if eos in new else len(new)
        assert row == expected[:4] + new[:end] + [eos] * (8 - end)


def test_generation_stops_computing_when_all_sequences_have_ended():
    model, tokens, calls = decoder(), some_tokens(1, 4), []
    eos = int(generate(model, tokens, max_new_tokens=1, temperature=0)[0, -1])
    model.norm.register_forward_hook(lambda *_: calls.append(1))
    found = generate(model, tokens, max_new_tokens=50, temperature=0, eos=eos)
    assert found[0, 4:].tolist() == [eos] * 50
    assert len(calls) == 1


def test_generation_leaves_every_module_in_its_own_mode_and_uses_no_dropout():
    model, tokens = decoder(dropout=0.5), some_tokens()
    quiet = generate(model, tokens, max_new_tokens=5, temperature=0)
    model.train()
    model.layers[0].eval()
    assert generate(model, tokens, max_new_tokens=5, temperature=0).equal(quiet)
    assert model.training
    assert model.layers[1].dropout.training
    assert not model.layers[0].dropout.training


def test_generated_sequences_can_be_trained_on():
    model = decoder()
    model(generate(model, some_tokens(), max_new_tokens=3)).sum().backward()
    assert model.embed_tokens.weight.grad.abs().sum() > 0


def test_no_new_tokens_returns_the_prompt():
    assert generate(decoder(), some_tokens(), max_new_tokens=0).equal(some_tokens())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"temperature": -0.5}, r"temperature is -0\.5"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"tokens": torch.zeros(2, 0, dtype=torch.long)}, r"shape \(2, 0\)"),
        ({"tokens": torch.zeros(3, dtype=torch.long)}, r"shape \(3,\)"),
        ({"mask": torch.tensor([[True] * 5 + [False]] * 2)}, "pad prompts on the left"),
    ],
)
def test_settings_out_of_range_are_named(options, words):
    given = {"tokens": some_tokens(), "max_new_tokens": 2} | options
    with pytest.raises(GenerationError, match=words) as caught:
        generate(decoder(), given.pop("tokens"), **given)
    assert caught.value.exit_code == 2

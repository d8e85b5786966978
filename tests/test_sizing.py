"""Widths, parameters and FLOPs equal published shapes, built modules and torch's counter."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mlpkit.build import build_ffn
from mlpkit.model import Attention
from mlpkit.model.attention import rotary_table
from mlpkit.sizing import (
    WIDTH_RULES,
    BudgetError,
    ModelShapeError,
    WidthError,
    attention_flops,
    attention_params,
    bytes_text,
    check_heads,
    explain_width,
    gated_flops,
    gated_params,
    naive_flops,
    naive_params,
    nearest_width,
    resolve_width,
    training_flops,
    training_memory,
)

H = 24
FORMULAS = {"naive": (naive_params, naive_flops), "gated": (gated_params, gated_flops)}


# By hand: 8/3 of 4096 is 10922.67, of 768 exactly 2048; the multiples of 64 above follow.
@pytest.mark.parametrize(
    ("hidden_size", "width"),
    [
        (256, 704),
        (384, 1024),
        (512, 1408),
        (640, 1728),
        (768, 2048),
        (1024, 2752),
        (4096, 10944),
        (1, 64),
    ],
)
def test_eight_thirds_is_rounded_up_to_a_multiple_of_64(hidden_size, width):
    assert resolve_width(None, hidden_size, "8/3") == width
    assert resolve_width("8/3", hidden_size, "4x") == width


def test_a_width_that_is_exactly_eight_thirds_is_not_rounded_further():
    assert all(resolve_width("8/3", 24 * n, "4x") == 64 * n for n in range(1, 50))


def test_pi_is_minimind_s_width_and_4x_is_not_rounded():
    assert resolve_width("pi", 768, "8/3") == 2432
    assert resolve_width("pi", 512, "8/3") == 1664  # 1608.5
    assert resolve_width("4x", 768, "8/3") == 3072
    assert resolve_width("4x", 5, "8/3") == 20


# The intermediate_size of the published checkpoints, with the two numbers of their params.json.
@pytest.mark.parametrize(
    ("rule", "hidden_size", "width"),
    [
        ("llama", 4096, 11008),  # Llama 7B
        ("llama", 5120, 13824),  # 13B
        ("llama", 6656, 17920),  # 30B
        ("llama", 8192, 22016),  # 65B
        ("llama:1.3:4096", 8192, 28672),  # Llama 2 and 3, 70B
        ("llama:1.3:1024", 4096, 14336),  # Llama 3 8B
        ("llama:1.5:256", 2048, 8192),  # Llama 3.2 1B
        ("llama:1.0:256", 3072, 8192),  # Llama 3.2 3B
        ("llama:1.3", 768, 2816),  # int(1.3 · 2048) = 2662
        ("llama:1:64", 512, 1408),  # int(8/3 · 512) = 1365
    ],
)
def test_llama_s_rule_gives_the_widths_of_its_checkpoints(rule, hidden_size, width):
    assert resolve_width(rule, hidden_size, "8/3") == width
    assert explain_width(rule, hidden_size, "8/3").endswith(f" {width}")


@pytest.mark.parametrize(
    ("value", "hidden_size", "steps"),
    [
        (None, 512, "8/3·512 = 1365.33 ↑64 → 1408"),
        (None, 768, "8/3·768 = 2048"),
        ("4x", 5, "4·5 = 20"),
        ("pi", 768, "π·768 = 2412.74 ↑64 → 2432"),
        ("llama:1.3:1024", 4096, "⌊8/3·4096⌋ = 10922, ⌊1.3·10922⌋ = 14198 ↑1024 → 14336"),
        ("llama", 768, "⌊8/3·768⌋ = 2048"),
        (100, 512, "100, as given"),
    ],
)
def test_the_rounding_of_a_width_is_shown(value, hidden_size, steps):
    assert explain_width(value, hidden_size, "8/3") == steps


@pytest.mark.parametrize("rule", WIDTH_RULES)
def test_the_shown_steps_end_in_the_width(rule):
    for hidden_size in range(1, 500):
        shown = explain_width(rule, hidden_size, rule).split()[-1]
        assert int(shown) == resolve_width(rule, hidden_size, rule)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 63, 65])
@pytest.mark.parametrize("rule", WIDTH_RULES)
def test_an_explicit_number_is_always_kept(width, rule):
    assert resolve_width(width, 256, rule) == width


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        0,
        -64,
        4.0,
        "4",
        "8/4",
        "",
        "PI",
        [64],
        "llama:",
        "llama::64",
        "llama:0",
        "llama:1:0",
    ],
)
def test_what_is_no_width_is_refused_with_what_was_found(value):
    with pytest.raises(WidthError) as refused:
        resolve_width(value, 256, "8/3")
    assert f"intermediate_size is {value!r}" in str(refused.value)
    assert refused.value.exit_code == 2


def test_an_unknown_rule_is_answered_with_the_rules():
    with pytest.raises(WidthError, match=r"'8/2'.*8/3, 4x, pi, llama.* \(null means 4x\)"):
        resolve_width("8/2", 256, "4x")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", [None, "pi", 17])
@pytest.mark.parametrize("name", FORMULAS)
def test_parameters_and_flops_are_those_of_the_built_module(name, width, bias):
    module = build_ffn(name, hidden_size=H, intermediate_size=width, bias=bias)
    count_params, count_flops = FORMULAS[name]
    options = {"intermediate_size": width, "bias": bias, "activation": None, "dropout": 0.0}
    assert count_params(H, **options) == sum(p.numel() for p in module.parameters())
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(5, H))
    assert 5 * count_flops(H, **options) == counter.get_total_flops() > 0


def test_a_naive_ffn_has_8_h_squared_and_a_gated_one_of_equal_budget_too():
    assert naive_params(768) == 8 * 768**2
    assert gated_params(768) == 3 * 768 * 2048 == 8 * 768**2
    assert naive_params(3, intermediate_size=5, bias=True) == 2 * 3 * 5 + 5 + 3
    assert gated_params(3, intermediate_size=5, bias=True) == 3 * 3 * 5 + 2 * 5 + 3


@pytest.mark.parametrize("multiple", [1, 3, 64])
@pytest.mark.parametrize(
    "count",
    [lambda w: 3 * w, lambda w: w**2 + 7, lambda w: 100 * (w // 10), lambda w: 5 + (w > 4) * w],
    ids=["line", "square", "steps", "jump"],
)
def test_the_solver_finds_the_nearest_of_all_widths(count, multiple):
    widths = range(multiple, 1300, multiple)
    for target in (1, 2, 99, 100, 101, 144, 151, 777, 1000):
        solution = nearest_width(count, target, multiple=multiple)
        assert abs(solution.residual) == min(abs(count(w) - target) for w in widths)
        assert solution.width in widths
        assert solution.reached == count(solution.width)
        assert solution.share == (solution.reached - target) / target


def test_of_two_equally_near_widths_the_smaller_is_taken():
    assert nearest_width(lambda w: 4 * w, 10).width == 2


def test_a_solution_shows_what_is_left_over():
    exact = nearest_width(lambda w: gated_params(768, intermediate_size=w), naive_params(768))
    assert (exact.width, exact.residual) == (2048, 0)
    near = nearest_width(lambda w: gated_params(512, intermediate_size=w), naive_params(512))
    assert str(near) == "width 1365: 2,096,640 of 2,097,152 (-0.0244%)"


def test_a_budget_that_no_width_meets_is_refused():
    with pytest.raises(BudgetError, match="budget is 0"):
        nearest_width(lambda w: w, 0)
    with pytest.raises(BudgetError, match=r"comes to 10; .*counts 7: does it depend"):
        nearest_width(lambda w: 7, 10)


def test_weights_gradients_and_moments_are_those_of_a_real_step():
    module = build_ffn("swiglu", hidden_size=H, bias=True)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.randn(5, H)).sum().backward()
    optimizer.step()
    parameters = list(module.parameters())
    memory = training_memory(sum(p.numel() for p in parameters), activations=1000)
    states = [s for state in optimizer.state.values() for n, s in state.items() if n != "step"]
    assert memory.weights == sum(p.nbytes for p in parameters)
    assert memory.gradients == sum(p.grad.nbytes for p in parameters)
    assert memory.optimizer == sum(s.nbytes for s in states)
    assert memory.total == memory.weights + memory.gradients + memory.optimizer + 1000
    assert training_memory(10).total == 4 * 40


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 * 2**20 + 2**19, "3.5 MiB"),
        (2**40, "1.0 TiB"),
        (2**65, "32768.0 PiB"),
    ],
)
def test_bytes_are_shown_in_the_largest_unit_that_fits(size, text):
    assert bytes_text(size) == text


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 6), (4, 2, 6), (6, 1, 10)])
def test_attention_is_counted_as_torch_counts_it(heads, kv_heads, head_dim, qk_norm):
    batch, length = 2, 7
    module = Attention(
        hidden_size=H,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        qk_norm=qk_norm,
    )
    shape = {"num_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    params = attention_params(H, qk_norm=qk_norm, **shape)
    assert params == sum(p.numel() for p in module.parameters())
    rotary = rotary_table(torch.arange(length)[None], head_dim, 10000.0, torch.float32)
    # the counter knows no fused kernel and would count 0
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(torch.randn(batch, length, H), rotary)
    per_token = attention_flops(H, sequence_length=length, **shape)
    assert batch * length * per_token == counter.get_total_flops()


def test_a_training_step_costs_three_forwards_of_a_linear_stack():
    module = build_ffn("swiglu", hidden_size=H)
    x = torch.randn(5, H, requires_grad=True)  # inner layers pass a gradient on
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    assert counter.get_total_flops() == 5 * training_flops(gated_flops(H))


def test_a_head_has_its_own_size_or_its_share_of_the_width():
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    assert check_heads(**sizes) == 16
    assert check_heads(**sizes, head_dim=10) == 10


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": 129}, r"129.*num_attention_heads 4; use model.hidden_size 128 or 136"),
        ({"hidden_size": 12}, r"12 gives heads of odd size 3 .* 8 or 16"),
        ({"hidden_size": 0}, r"hidden_size is 0"),
        ({"num_key_value_heads": 3}, r"not a multiple of .*num_key_value_heads 3; .*: 1, 2, 4"),
        ({"num_key_value_heads": 0}, r"num_key_value_heads is 0"),
        ({"num_attention_heads": -1}, r"num_attention_heads is -1"),
        ({"head_dim": 5}, r"head_dim 5 is odd.* 4 or 6"),
        ({"head_dim": 0}, r"head_dim is 0"),
    ],
)
def test_heads_that_do_not_fit_are_refused_with_the_nearest_that_do(changed, message):
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    with pytest.raises(ModelShapeError, match=message):
        check_heads(**(sizes | changed))

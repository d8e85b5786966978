"""The way to rows and back against sums written out, with every derivative; grouped products."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mlpkit.experts import Experts, Grouped, Loop, Padded
from mlpkit.experts.operators import (
    grouped_mm,
    grouped_outer,
    has_native,
    multiply,
    native_mm,
    native_outer,
)
from mlpkit.experts.rows import gathered_sum, places, to_rows
from mlpkit.ffns import GatedFFN

T, K, E, H = 5, 3, 4, 6


def routed(seed=0):
    """A routing's tokens, the order of its triples by expert, and their places."""
    rng = torch.Generator().manual_seed(seed)
    chosen = torch.stack([torch.randperm(E, generator=rng)[:K] for _ in range(T)])
    order = chosen.flatten().argsort(stable=True)
    token = order // K
    return order, token, places(order, token, K)


def values(*shape, seed=1, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=dtype)


def test_each_token_is_copied_to_its_rows_and_its_weighted_rows_are_added():
    order, token, where = routed()
    tokens, rows, weight = values(T, H), values(T * K, H, seed=2), values(T, K, seed=3)
    torch.testing.assert_close(to_rows(tokens, where), tokens[token], rtol=0, atol=0)
    want = torch.zeros(T, H, dtype=torch.float64)
    for row, triple in enumerate(order.tolist()):
        want[triple // K] += weight[triple // K, triple % K] * rows[row]
    torch.testing.assert_close(gathered_sum(rows, weight, where), want)
    unweighted = gathered_sum(rows, None, where)
    torch.testing.assert_close(
        unweighted, gathered_sum(rows, torch.ones(T, K, dtype=torch.float64), where)
    )


@pytest.mark.parametrize("frozen", ["none", "rows", "weight"])
def test_the_first_and_second_derivatives_are_right(frozen):
    _, _, where = routed()
    rows = values(T * K, H).requires_grad_(frozen != "rows")
    weight = values(T, K, seed=2).requires_grad_(frozen != "weight")
    tokens = values(T, H, seed=3).requires_grad_()

    def way(tokens, rows, weight):
        there = to_rows(tokens, where)
        return gathered_sum(rows * there, weight, where)

    assert torch.autograd.gradcheck(way, (tokens, rows, weight))
    assert torch.autograd.gradgradcheck(way, (tokens, rows, weight))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_sum_is_rounded_once(dtype):
    _, _, where = routed()
    rows, weight = values(T * K, H).to(dtype), values(T, K, seed=2).to(dtype)
    grad = values(T, H, seed=3).to(dtype)
    exact = gathered_sum(rows.double(), weight.double(), where)
    spacing = torch.finfo(dtype).eps
    leaf = weight.clone().requires_grad_()
    out = gathered_sum(rows, leaf, where)
    torch.testing.assert_close(out.double(), exact, rtol=spacing, atol=spacing)
    out.backward(grad)
    products = torch.einsum("tkh,th->tk", rows.double()[where.row], grad.double())
    torch.testing.assert_close(leaf.grad.double(), products, rtol=spacing, atol=4 * spacing)


def test_no_tokens_and_no_gradient_cost_nothing():
    empty = torch.zeros(0, dtype=torch.int64)
    where = places(empty, empty, K)
    rows = torch.zeros(0, H, requires_grad=True)
    out = gathered_sum(rows, torch.zeros(0, K, requires_grad=True), where)
    assert out.shape == (0, H)
    out.sum().backward()
    assert rows.grad.shape == (0, H)
    _, _, where = routed()
    assert gathered_sum(values(T * K, H), values(T, K), where).grad_fn is None


def test_a_compiled_sum_is_the_same():
    _, _, where = routed()
    rows, weight = values(T * K, H), values(T, K, seed=2)
    compiled = torch.compile(gathered_sum, fullgraph=True, backend="aot_eager")
    for given in (weight, None):
        leaf = rows.clone().requires_grad_()
        compiled(leaf, given, where).square().sum().backward()
        plain = rows.clone().requires_grad_()
        gathered_sum(plain, given, where).square().sum().backward()
        torch.testing.assert_close(leaf.grad, plain.grad)


def products(rows, weight, counts):
    out = rows.new_zeros(len(rows), weight.shape[2])
    start = 0
    for expert, size in enumerate(counts.tolist()):
        out[start : start + size] = rows[start : start + size] @ weight[expert]
        start += size
    return out


def outer(left, right, counts):
    out = left.new_zeros(len(counts), left.shape[1], right.shape[1])
    start = 0
    for expert, size in enumerate(counts.tolist()):
        out[expert] = left[start : start + size].t() @ right[start : start + size]
        start += size
    return out


LOADS = {
    "uneven": (3, 0, 5, 1),
    "even": (2, 2, 2, 2),
    "one_each": (1, 1, 1, 1),
    "none": (0, 0, 0, 0),
    "one_expert": (0, 7, 0, 0),
}


@pytest.mark.parametrize("rest", [0, 2])
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_grouped_products_equal_the_products_one_by_one(load, rest):
    counts = torch.tensor(load)
    rows = values(sum(load) + rest, H)
    weight, right = values(E, 8, H, seed=2).transpose(1, 2), values(len(rows), 8, seed=3)
    for run in (multiply, grouped_mm):
        torch.testing.assert_close(run(rows, weight, counts), products(rows, weight, counts))
    torch.testing.assert_close(grouped_outer(rows, right, counts), outer(rows, right, counts))


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_torchs_own_grouped_product_gives_the_same(load):
    if not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("this torch has none")
    counts = torch.tensor(load)
    rows = values(sum(load) + 2, 16, dtype=torch.bfloat16)
    weight = values(E, 8, 16, seed=2, dtype=torch.bfloat16).transpose(1, 2)
    right = values(len(rows), 8, seed=3, dtype=torch.bfloat16)
    close = {"rtol": 2e-2, "atol": 4e-2}
    torch.testing.assert_close(
        native_mm(rows, weight, counts), products(rows, weight, counts), **close
    )
    torch.testing.assert_close(
        native_outer(rows, right, counts), outer(rows, right, counts), **close
    )
    assert not has_native(rows, 16, 8)  # on a CPU the loop is as fast, and skips idle experts


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_nothing_waits_for_the_counts():
    ffns = [
        GatedFFN(hidden_size=64, intermediate_size=32, activation=torch.nn.SiLU()) for _ in range(E)
    ]
    experts = Experts(ffns).to("cuda", torch.bfloat16)
    counts = torch.tensor([3, 0, 5, 1], device="cuda")
    rows = torch.randn(9, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    experts(rows, counts).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        experts(rows, counts).float().square().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_products_without_a_gradient_are_counted_as_with_one():
    counts, rows, weight = torch.tensor([3, 0, 5, 1]), values(9, H), values(E, H, 8)
    found = []
    for leaf in (rows, rows.clone().requires_grad_()):
        with FlopCounterMode(display=False) as counter:
            multiply(leaf, weight, counts)
        found.append(counter.get_total_flops())
    assert found == [2 * 9 * H * 8] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("load", [(3, 0, 5, 1), (1, 0, 0, 0), (4, 4, 4, 4)], ids=str)
def test_padding_for_the_grouped_products_equals_the_loop(load, dtype):
    torch.manual_seed(0)
    ffns = [
        GatedFFN(hidden_size=H, intermediate_size=8, activation=torch.nn.SiLU(), bias=True)
        for _ in range(E)
    ]
    experts = Experts(ffns, backend="loop").to(dtype)
    template, tensors, counts = experts._template[0], experts.tensors(), torch.tensor(load)
    rows = values(sum(load) + 1, H, dtype=dtype)
    gradients = []
    for way in (Loop(template), Padded(template, grouped=Grouped(template))):
        leaf = rows.clone().requires_grad_()
        experts.zero_grad()
        out = way(tensors, leaf, counts)
        out.float().square().sum().backward()
        gradients.append([out, leaf.grad, *(p.grad.clone() for p in experts.parameters())])
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 0.1, "atol": 0.1}
    for want, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, **close)


def test_a_template_has_its_own_tensors_again_also_after_an_error():
    class Fails(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(H, H)

        def forward(self, x):
            if x.shape[0] > 2:
                raise RuntimeError("three rows")
            return self.linear(x)

    experts = Experts([Fails(), Fails()], backend="loop")
    template = experts._template[0]
    before = dict(template.named_parameters())
    with pytest.raises(RuntimeError, match="three rows"):
        experts(torch.randn(4, H), torch.tensor([1, 3]))
    after = dict(template.named_parameters())
    assert all(after[name] is before[name] for name in before)
    assert experts(torch.randn(3, H), torch.tensor([1, 2])).shape == (3, H)


def test_auto_goes_by_the_dtype_that_autocast_computes_in(monkeypatch):
    ffns = [
        GatedFFN(hidden_size=128, intermediate_size=64, activation=torch.nn.SiLU())
        for _ in range(64)
    ]
    experts = Experts(ffns)
    assert experts.pick([40] * 63 + [80], torch.float32) == "grouped"
    assert experts.pick([40] * 63 + [80], torch.bfloat16) == "padded"
    counts = torch.tensor([40] * 63 + [80])
    rows = torch.randn(int(counts.sum()), 128)
    taken = []
    for way in (Grouped, Padded):
        run = way.__call__
        monkeypatch.setattr(
            way, "__call__", lambda self, *a, run=run: (taken.append(self.name), run(self, *a))[1]
        )
    with torch.no_grad():
        experts(rows, counts)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            experts(rows, counts)
    assert taken == ["grouped", "padded", "grouped"]  # side by side runs the grouped products

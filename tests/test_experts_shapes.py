"""Products of rows in bfloat16 on a CPU: of few sizes, so that few are compiled, and right."""

import pytest
import torch
from torch import nn

from mlpkit.experts import Auto, Experts
from mlpkit.experts.operators import grouped_mm
from mlpkit.experts.shapes import rounded
from mlpkit.ffns import GatedFFN


@pytest.mark.parametrize("counts", [(37, 0, 129, 1, 33), (0, 300, 17, 19, 2), (40, 3)])
@pytest.mark.parametrize("rest", [0, 50])
def test_rounded_products_in_bfloat16_equal_exact_ones(counts, rest):
    torch.manual_seed(0)
    rows = torch.randn(sum(counts) + rest, 6).bfloat16().requires_grad_()
    weight = torch.randn(len(counts), 6, 9).bfloat16().requires_grad_()
    out = grouped_mm(rows, weight, torch.tensor(counts))
    grad = torch.randn_like(out)
    out.backward(grad)
    start = 0
    for expert, size in enumerate(counts):
        part, own = rows[start : start + size].double(), weight[expert].double()
        slope = grad[start : start + size].double()
        near = {"rtol": 1e-2, "atol": 1e-2}
        assert torch.allclose(out[start : start + size].double(), part @ own, **near)
        assert torch.allclose(rows.grad[start : start + size].double(), slope @ own.T, **near)
        error = (weight.grad[expert].double() - part.T @ slope).norm()
        assert error <= 5e-3 * (part.T @ slope).norm()
        start += size
    assert not out[start:].any()
    assert not rows.grad[start:].any()


def test_a_size_is_rounded_up_by_less_than_an_eighth_to_one_of_few():
    sizes = [rounded(size) for size in range(4097)]
    assert sizes[:17] == list(range(17))
    assert all(size <= up < size * 9 / 8 for size, up in enumerate(sizes) if size)
    assert len(set(sizes)) == 17 + 8 * 8
    assert [rounded(size) for size in sizes] == sizes


@pytest.mark.parametrize("way", ["in_turn", "padded"])
def test_in_bfloat16_any_routing_multiplies_few_shapes(way, monkeypatch):
    ffns = [GatedFFN(hidden_size=8, intermediate_size=16, activation=nn.SiLU()) for _ in range(4)]
    experts = Experts(ffns).bfloat16()
    monkeypatch.setattr(Auto, "pick", lambda auto, *_: getattr(auto, way))
    seen = set()
    for name in ("mm", "bmm"):
        product = getattr(torch, name)

        def recorded(left, right, *, product=product, **options):
            seen.add((left.shape, right.shape))
            return product(left, right, **options)

        monkeypatch.setattr(torch, name, recorded)
    random = torch.Generator().manual_seed(0)
    for _ in range(30):
        chosen = torch.randint(4, (200,), generator=random)
        rows = torch.randn(200, 8, dtype=torch.bfloat16)
        experts(rows, chosen.bincount(minlength=4)).sum().backward()
    allowed = {4, 8, 16} | {rounded(size) for size in range(20, 101)}
    assert len(seen) > 4
    assert {size for shapes in seen for shape in shapes for size in shape} <= allowed

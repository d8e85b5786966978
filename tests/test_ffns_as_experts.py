"""Every registered FFN is an expert: on every backend it equals its dense copies."""

import inspect

import pytest
import torch

from mlpkit.build import build_ffn
from mlpkit.experts import Experts
from mlpkit.plugins import load
from mlpkit.schema import holds_experts
from mlpkit.specs import resolve

H, INNER, COUNTS = 8, 16, (3, 0, 5, 1)
BACKENDS = ("loop", "grouped", "padded", "gather", "auto")
FFNS = [spec for spec in load().registries.ffn.list() if not holds_experts(spec)]
EXTRA = {
    "naive": [{"inner_norm": "rms"}, {"inner_norm": "layer", "bias": True}],
    "clamped_gated": [{"limit": 0.3, "alpha": 1.0, "up_offset": 0.0}],
    "low_rank": [{"rank": 3}],
}


def variants():
    """Each entry as it is, with biases where it has them, and with options of its own."""
    for spec in FFNS:
        known = inspect.signature(resolve(spec.target)).parameters
        biased = [{"bias": True}] if "bias" in known else []
        for options in [{}, *biased, *EXTRA.get(spec.name, [])]:
            width = {} if spec.width is None else {spec.width: INNER}
            label = ",".join([spec.name, *(f"{k}={v}" for k, v in options.items())])
            yield pytest.param(spec.name, {**width, **options}, id=label)


VARIANTS = list(variants())


def copies_of(name, options):
    torch.manual_seed(0)
    copies = [build_ffn(name, hidden_size=H, **options).double() for _ in COUNTS]
    for copy in copies:
        for parameter in copy.parameters():  # norms and constants start all alike
            parameter.data += 0.1 * torch.randn_like(parameter)
    return copies


def backward(out):
    (out * torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_an_ffn_as_experts_equals_its_dense_copies_in_output_and_gradient(name, options, backend):
    copies = copies_of(name, options)
    experts = Experts(copies, backend=backend)
    rows = torch.randn(sum(COUNTS), H, dtype=torch.float64).requires_grad_()
    own = rows.detach().clone().requires_grad_()
    got = experts(rows, torch.tensor(COUNTS))
    parts = zip(copies, own.split(list(COUNTS)), strict=True)
    want = torch.cat([copy(part) for copy, part in parts])
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    if want.requires_grad:
        backward(got)
        backward(want)
    assert (rows.grad is None) == (own.grad is None)
    if own.grad is not None:
        torch.testing.assert_close(rows.grad, own.grad, rtol=1e-12, atol=1e-12)
    for key, stack in experts.named_parameters():
        for index, copy in enumerate(copies):
            expected = copy.get_parameter(key).grad
            torch.testing.assert_close(stack.grad[index], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_what_is_made_of_plain_linears_is_grouped(name, options):
    experts = Experts(copies_of(name, options), backend="grouped")
    if "inner_norm" in options:
        assert "inner_norm" in experts.backend_reason
    elif name not in ("zero", "copy", "constant"):
        assert (experts.backend_name, experts.backend_reason) == ("grouped", "")


def test_each_family_of_the_catalogue_is_among_them():
    names = {variant.values[0] for variant in VARIANTS}
    assert {"naive", "gated", "swiglu", "clamped_gated", "output_gated", "low_rank"} <= names
    assert "moe" not in names

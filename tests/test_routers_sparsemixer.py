"""SparseMixer in training: the draws, weights and gradients of transformers with the same noise."""

from __future__ import annotations

import pytest
import torch
from transformers.models.phimoe.modeling_phimoe import sparsemixer

from mlpkit.routers import SparseMixerRouter


def router(**options: object) -> SparseMixerRouter:
    torch.manual_seed(0)
    sizes = {"hidden_size": 6, "num_experts": 8, "num_experts_per_tok": 2}
    return SparseMixerRouter(**{**sizes, "jitter": 0.4, "sample": True, **options})


def test_training_is_that_of_transformers_with_the_same_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, x = router(), torch.randn(200, 6)
    torch.manual_seed(1)
    routing = own(x)
    direction = torch.randn(200, 2)
    (routing.weight.view(200, 2) * direction).sum().backward()

    draw, calls = torch.rand_like, []

    def once(like: torch.Tensor) -> torch.Tensor:
        """For its second choice transformers draws this noise twice, and uses the latter."""
        calls.append(like)
        return torch.empty_like(like) if len(calls) == 2 else draw(like)

    matrix = own.weight.detach().clone().requires_grad_()
    torch.manual_seed(1)
    monkeypatch.setattr(torch, "rand_like", once)
    weight, expert = sparsemixer(x @ matrix.T, 0.4, True)
    assert torch.equal(routing.expert.view(200, 2), expert)
    # it writes a third as 0.3333
    torch.testing.assert_close(routing.weight.view(200, 2), weight, rtol=2e-4, atol=0)
    (weight * direction).sum().backward()
    torch.testing.assert_close(own.weight.grad, matrix.grad, rtol=1e-4, atol=1e-6)


def test_choices_are_drawn_with_the_softmax_of_the_rivals() -> None:
    """Three rivals in 20,000 draws; the fourth is too far below."""
    one = router(hidden_size=1, num_experts=4, num_experts_per_tok=1)
    with torch.no_grad():
        one.weight.copy_(torch.tensor([[2.0], [1.5], [1.0], [0.1]]))
    routing = one(torch.ones(20_000, 1))
    p = torch.tensor([2.0, 1.5, 1.0]).softmax(0)
    counts = routing.load()
    assert counts[3] == 0
    torch.testing.assert_close(counts[:3] / 20_000, p, rtol=0, atol=0.015)
    second = routing.weight[routing.expert == 1]
    whole = (second - p[1]).abs() < 1e-6
    assert whole.float().mean() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(second[~whole], torch.full_like(second[~whole], p[1] / 3))
    assert (routing.weight[routing.expert == 0] - p[0]).abs().max() < 1e-6


@pytest.mark.parametrize("options", [{"sample": False}, {"sample": True}])
def test_evaluation_takes_the_best_and_draws_nothing(options: dict[str, bool]) -> None:
    own, x = router(**options).eval(), torch.randn(50, 6)
    state = torch.get_rng_state()
    routing = own(x)
    assert torch.equal(torch.get_rng_state(), state)
    weight, expert = sparsemixer(x @ own.weight.T, 0.4, False)
    assert torch.equal(routing.expert.view(50, 2), expert)
    torch.testing.assert_close(routing.weight.view(50, 2), weight)

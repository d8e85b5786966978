"""The gradient that the task alone gives each router: one that gets none does not learn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

# The router of top-1 with renormalised weights gets rounding errors, about 1e-7 of its experts'
# gradient; one that learns gets 1e-3 and more.
DEAD_RATIO = 1e-5


def router_gradients(
    model: nn.Module, layers: Mapping[str, nn.Module], loss: Tensor
) -> dict[str, dict[str, Any]]:
    """Gradient norms of routers and experts, from one backward of the task's loss.

    Gradients that the model has are put back afterwards.

    Args:
        model: The model.
        layers: Name to MoE layer, with ``router`` and ``experts``.
        loss: The task's loss alone, without balance terms; a scalar with a graph.

    Returns:
        Layer name to ``router`` (norm of its gradient), ``router_weight`` (norm of its
        parameters), ``relative`` (their ratio), ``experts`` (norm of the experts' gradient),
        ``ratio`` (router to experts), ``dead`` (whether that is below ``DEAD_RATIO``). All None
        for a router without anything to learn.
    """
    before = [(p, p.grad) for p in model.parameters()]
    for parameter, _ in before:
        parameter.grad = None
    try:
        torch.autograd.backward(loss)  # not autograd.grad: a sharded model gathers by its hooks
        return {name: _of_layer(layer) for name, layer in layers.items()}
    finally:
        for parameter, grad in before:
            parameter.grad = grad


def _of_layer(layer: nn.Module) -> dict[str, Any]:
    learned = [p for p in _parameters(layer, "router") if p.requires_grad]
    if not learned:
        names = ("router", "router_weight", "relative", "experts", "ratio", "dead")
        return dict.fromkeys(names)
    router, weight = gradient_norm(learned), norm(learned)
    experts = gradient_norm(_parameters(layer, "experts"))
    dead = router < DEAD_RATIO * experts if experts else router == 0
    return {
        "router": router,
        "router_weight": weight,
        "relative": router / weight if weight else None,
        "experts": experts,
        "ratio": router / experts if experts else None,
        "dead": dead,
    }


def gradient_norm(parameters: Iterable[Tensor]) -> float:
    """The Euclidean norm of all gradients together; one that has none counts as zero."""
    return norm(p.grad for p in parameters if p.grad is not None)


def norm(tensors: Iterable[Tensor]) -> float:
    """The Euclidean norm of all elements together, in float64."""
    return float(sum(_squared(tensor.detach()) for tensor in tensors) ** 0.5)


def _squared(tensor: Tensor) -> float:
    length = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    whole: Tensor = length.full_tensor() if hasattr(length, "full_tensor") else length  # if sharded
    return whole.item() ** 2


def _parameters(layer: nn.Module, part: str) -> list[nn.Parameter]:
    module = getattr(layer, part, None)
    return list(module.parameters()) if isinstance(module, nn.Module) else []

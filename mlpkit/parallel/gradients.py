"""Clipping by the norm of a whole model, some of whose gradients are spread over processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

# torch's own, so that a step is the same with and without processes
EPS = 1e-6


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scales gradients to a norm of at most ``max_norm``, each counted once however it is spread.

    torch's function stacks the norms of all parameters, which it cannot where they are spread
    over different meshes.

    Args:
        parameters: Those of the whole model; every process of a mesh calls this.
        max_norm: The largest norm, above 0.

    Returns:
        The norm before.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = grad_norm(gradients)
    scale = min(1.0, max_norm / (norm + EPS))
    if scale < 1.0 or norm != norm:
        torch._foreach_mul_([local(gradient) for gradient in gradients], scale)
    return norm


def grad_norm(gradients: Sequence[Tensor]) -> float:
    """The Euclidean norm of all gradients together.

    Args:
        gradients: Plain ones, the same in each process, or DTensors.
    """
    spread: dict[Any, list[Tensor]] = {}
    for gradient in gradients:
        spread.setdefault(_spread(gradient), []).append(local(gradient))
    total = 0.0
    for (mesh, axes), parts in spread.items():
        square = torch.stack(torch._foreach_norm(parts)).double().square().sum()
        for axis in axes:
            dist.all_reduce(square, group=mesh.get_group(axis))
        total += square.item()
    return float(total**0.5)


def local(gradient: Tensor) -> Tensor:
    """The part of a gradient that this process holds."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _spread(gradient: Tensor) -> tuple[DeviceMesh | None, tuple[int, ...]]:
    """Over which axes of which mesh a gradient's parts stand; along others they are copies."""
    if not isinstance(gradient, DTensor):
        return None, ()
    axes = enumerate(gradient.placements)
    return gradient.device_mesh, tuple(i for i, where in axes if not where.is_replicate())

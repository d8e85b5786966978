"""AdamW with decay on matrices only, and the learning rate of a step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from mlpkit.configs.run import TrainingConfig
from mlpkit.parallel import OneProcess, Parallel


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices with decay, vectors (norms, biases, activations' parameters) without.

    In a stack of experts (E in front) it is the expert's own tensor that counts.
    """
    stacks = [m for m in model.modules() if {"num_experts", "_template"} <= vars(m).keys()]
    stacked = {id(p) for stack in stacks for p in stack.parameters()}
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() - (id(p) in stacked) >= 2]
    chosen = {id(p) for p in matrices}
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": [p for p in trained if id(p) not in chosen], "weight_decay": 0.0},
    ]


def build_optimizer(
    model: nn.Module, options: TrainingConfig, parallel: Parallel | None = None
) -> torch.optim.AdamW:
    """AdamW (Loshchilov 2017, arXiv:1711.05101) in its fused form.

    Args:
        model: The model, spread over the processes.
        options: The run's training options.
        parallel: The processes; None: this one alone.
    """
    groups = parameter_groups(model, options.weight_decay)
    return torch.optim.AdamW(
        (parallel or OneProcess()).parameter_groups(groups),
        lr=options.learning_rate,
        betas=(options.beta1, options.beta2),
        fused=True,
    )


def learning_rate(step: int, options: TrainingConfig) -> float:
    """The rate of a step: linear warm-up to the peak, then half a cosine to its last value.

    Args:
        step: The step to be taken, from 0.
        options: The run's training options.
    """
    peak, last = options.learning_rate, options.learning_rate * options.min_learning_rate_ratio
    if step < options.warmup_steps:
        return peak * (step + 1) / options.warmup_steps
    steps = max(1, options.max_steps - 1 - options.warmup_steps)
    progress = min(1.0, (step - options.warmup_steps) / steps)
    return last + (peak - last) * 0.5 * (1 + math.cos(math.pi * progress))

"""The tensors of a run: weights, buffers and the optimizer's, by names that a person can read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from mlpkit.configs.run import TrainingConfig

WEIGHTS, OPTIMIZER = "model.", "optimizer."
MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's, in the shape of their parameter
PER_TENSOR = 2048  # bytes of a tensor's place in the archive and in the lists; measured 1,900
STEPS = "step"  # AdamW's own count of a parameter's updates, a scalar


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Name to tensor (or DTensor) of all that training changes; nothing is copied.

    Args:
        model: The model; under DDP the one inside.
        optimizer: Its optimizer.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    tensors = {f"{WEIGHTS}{name}": value for name, value in model.state_dict().items()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            tensors[f"{OPTIMIZER}{names[id(parameter)]}.{key}"] = value
    return {name: value.detach() for name, value in tensors.items()}


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Puts a verified checkpoint's tensors into a model and its optimizer.

    Args:
        folder: The checkpoint.
        model: The model, as it was built.
        optimizer: Its optimizer, which has not taken a step.

    Raises:
        CheckpointError: It is of another model; says how they differ.
    """
    # torch.distributed.checkpoint takes a second to import: a run that starts anew does without
    from mlpkit.training.checkpoints.reading import forms, read_tensors

    stored = forms(folder)
    for name, parameter in model.named_parameters():
        # a parameter that no step has reached has no moments
        if parameter.requires_grad and any(_key(name, key) in stored for key in (STEPS, *MOMENTS)):
            optimizer.state[parameter] = {
                STEPS: torch.zeros((), dtype=torch.float32, device=parameter.device),
                **{key: torch.zeros_like(parameter) for key in MOMENTS},
            }
    read_tensors(folder, snapshot(model, optimizer))


def bytes_needed(model: nn.Module, options: TrainingConfig, *, present: int = 0) -> int:
    """Bytes that a run will add to its disk: checkpoints, one of them new, and the weights.

    Args:
        model: The model.
        options: The run's training options.
        present: Checkpoints that are there already.
    """
    state = list(model.state_dict().values())
    trained = [p for p in model.parameters() if p.requires_grad]
    moments = [tensor for tensor in trained for _ in MOMENTS]
    one = _bytes([*state, *moments]) + PER_TENSOR * len(trained)  # with their counts of steps
    every = options.checkpoint_every
    written = -(-options.max_steps // every) if every else 0
    # the newest, the best, and the one that is being written
    at_once = min(written, options.keep_last + 2)
    return _bytes(state) + one * max(at_once - present, min(at_once, 1))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(PER_TENSOR + tensor.numel() * tensor.element_size() for tensor in tensors)


def _key(name: str, key: str) -> str:
    return f"{OPTIMIZER}{name}.{key}"

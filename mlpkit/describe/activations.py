"""The memory of a forward's activations: what the backward will need, in bytes."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mlpkit.model import Decoder


class EvenExperts(nn.Module):
    """One expert of each type on its even share of the rows: what E experts cost, however routed.

    Args:
        groups: An expert and how many of them there are, for each type.
    """

    def __init__(self, groups: list[tuple[nn.Module, int]]) -> None:
        super().__init__()
        self.chosen = nn.ModuleList(expert for expert, _ in groups)
        self.numbers = [number for _, number in groups]
        self.num_experts = sum(self.numbers)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Maps (N, H) to (N, H)."""
        before = (sum(self.numbers[:i]) for i in range(1, len(self.numbers)))
        parts = rows.tensor_split([len(rows) * n // self.num_experts for n in before])
        return torch.cat([run(part) for run, part in zip(self.chosen, parts, strict=True)])


def activation_bytes(model: Decoder, *, batch_size: int, sequence_length: int) -> int:
    """Bytes that autograd keeps between the forward of (B, S) tokens and their backward.

    Counted are the tensors that operations save, in float32 and as the CPU's kernels save them,
    each storage once and parameters not: inputs of the matrix products and elementwise
    operations, attention's queries, keys, values and output, logits and their softmax. Experts
    run on even shares as the loop runs them, none dropped (gather keeps copies of weights on
    top). Not counted are buffers that live within one operation, the gradients that flow back,
    balance terms, and what an allocator wastes.

    Args:
        model: The model; it is neither run nor changed.
        batch_size: B, sequences of one micro-batch.
        sequence_length: S.

    Raises:
        Exception: Whatever an FFN raises that cannot run without values.
    """
    shadow = copy.deepcopy(model).to("meta").train()
    without_routing(shadow)
    saved: dict[int, Tensor] = {}  # held until the end, so that no storage's identity comes twice

    def keep(tensor: Tensor) -> Tensor:
        saved.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with FakeTensorMode(), torch.random.fork_rng(devices=[]):
        # Fake tensors say they are on the CPU, so kernels are chosen as there; a meta tensor
        # would get the attention that keeps (S, S) scores.
        shadow._apply(lambda t: torch.empty(t.shape, dtype=t.dtype))  # type: ignore[no-untyped-call]
        tokens = torch.zeros(batch_size, sequence_length, dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logits = shadow(tokens).flatten(0, 1)  # (B*S, V)
            F.cross_entropy(logits.float(), tokens.flatten(), reduction="sum")
        for parameter in shadow.parameters():
            saved.pop(parameter.untyped_storage()._cdata, None)
        return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def without_routing(module: nn.Module) -> None:
    """Replaces stacks of experts by one expert of each type, so that no shape depends on data.

    Args:
        module: On the meta device; changed.
    """
    stacked: list[Any] = list(module.modules())
    found = [m for m in stacked if hasattr(getattr(m, "experts", None), "backend_name")]
    for layer in found:
        experts = layer.experts
        groups: list[Any] = list(experts) if isinstance(experts, nn.ModuleList) else [experts]
        even = EvenExperts([(group.expert(0), group.num_experts) for group in groups])
        without_routing(even.chosen)  # a MoE may be an expert
        layer.experts, layer.capacity_factor = even, None

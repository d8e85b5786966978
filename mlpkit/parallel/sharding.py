"""Sharding: DDP, fully_shard and experts over a device mesh, for a model that is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from mlpkit.experts import Experts
from mlpkit.parallel.exchange import Exchange
from mlpkit.parallel.layout import Layout, ParallelError

# A Decoder is not always called by its forward: generation asks these.
FORWARD_METHODS = ("hidden", "logits")


class Meshes(NamedTuple):
    """The processes in the two arrangements that a layout has.

    Args:
        dense: What is no expert: (data, shard), without data where there is one copy.
        replica: The copies of an expert's process: (expert_data, expert_shard), likewise.
        expert: Those that a stack's experts are spread over.
    """

    dense: DeviceMesh
    replica: DeviceMesh
    expert: DeviceMesh


def meshes_of(layout: Layout, device_type: str) -> Meshes:
    """The device meshes of a layout; every process makes them at the same time."""
    dense = init_device_mesh(
        device_type, (layout.data, layout.shard), mesh_dim_names=("data", "shard")
    )
    sizes = (layout.expert_data, layout.expert_shard, layout.expert)
    names = ("expert_data", "expert_shard", "expert")
    experts = init_device_mesh(device_type, sizes, mesh_dim_names=names)
    replica = experts[names[:2]] if layout.expert_data > 1 else experts[names[1]]
    return Meshes(dense if layout.data > 1 else dense["shard"], replica, experts["expert"])


def expert_stacks(model: nn.Module) -> dict[str, Experts]:
    """The stacks of a model whose experts hold tensors, by name; a zero expert needs no place."""
    stacks = {n: m for n, m in model.named_modules() if isinstance(m, Experts)}
    return {name: stack for name, stack in stacks.items() if stack.tensors()}


def matching(model: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    """The modules that a plan's patterns name.

    Args:
        model: The model.
        patterns: As ``layers.*``, which names each layer and nothing inside it.

    Raises:
        ParallelError: A pattern names nothing: a plan with a slip would shard nothing, silently.
    """
    found: dict[str, nn.Module] = {}
    for pattern in patterns:
        fits = {
            name: module
            for name, module in model.named_modules()
            if name.count(".") == pattern.count(".") and fnmatchcase(name, pattern)
        }
        if not fits:
            children = ", ".join(name for name, _ in model.named_children())
            raise ParallelError(
                f"the sharding plan names {pattern!r}, and no module of "
                f"{type(model).__name__} is called so; its children are: {children}"
            )
        found |= fits
    return list(found.values())


def spread_experts(stacks: Mapping[str, Experts], mesh: DeviceMesh) -> None:
    """Leaves each process its part of the experts, and puts the exchange of rows in.

    Args:
        stacks: Stacks whose numbers of experts the mesh's size divides.
        mesh: One dimension of processes.
    """
    exchange = Exchange(group=mesh.get_group())
    for stack in stacks.values():
        parts: dict[int, Tensor] = {}
        for holder in stack.modules():
            for table in (holder._parameters, holder._buffers):
                for key, tensor in table.items():
                    if tensor is not None:
                        part = parts.setdefault(id(tensor), _part(tensor, mesh))
                        cast(dict[str, Tensor], table)[key] = part
        stack.exchange = exchange


def _part(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    # Every process built the same stack, so each keeps its own part and nothing is sent.
    part = distribute_tensor(tensor.detach(), mesh, [Shard(0)], src_data_rank=None)
    return nn.Parameter(part, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else part


def shard_model(model: nn.Module, layout: Layout, meshes: Meshes, units: Sequence[str]) -> None:
    """Spreads experts over ``meshes.expert`` and everything over its copies, in place.

    Args:
        model: The same in every process.
        layout: What each process holds.
        meshes: Its meshes.
        units: Patterns of the modules that are gathered as a whole.

    Raises:
        ParallelError: A pattern names nothing.
    """
    wrapped = matching(model, units)
    alone: set[nn.Parameter] = set()
    if layout.expert > 1:
        stacks = expert_stacks(model)
        spread_experts(stacks, meshes.expert)
        if meshes.replica.size() > 1:
            for stack in stacks.values():
                fully_shard(stack, mesh=meshes.replica)
        else:  # one process has all there is of an expert: nothing to gather, nothing to average
            alone = {p for stack in stacks.values() for p in stack.parameters()}
    for unit in wrapped:
        fully_shard(unit, mesh=meshes.dense, ignored_params=alone)
    fully_shard(model, mesh=meshes.dense, ignored_params=alone)
    for method in FORWARD_METHODS:
        if hasattr(model, method):
            register_fsdp_forward_method(model, method)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The first gathering makes the buffers of all later ones. Under inference_mode, in a
            # validation before the first step, they could not be written to in training.
            module.unshard()
            module.reshard()


def mesh_of(parameter: Tensor) -> DeviceMesh | None:
    """The mesh that a parameter is spread over; None: each process has the whole."""
    return parameter.device_mesh if isinstance(parameter, DTensor) else None


def wait_for_more(forward: nn.Module, more: bool) -> None:
    """Whether the gradients of a sharded model wait for further backwards."""
    assert isinstance(forward, FSDPModule)
    forward.set_requires_gradient_sync(not more)

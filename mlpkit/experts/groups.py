"""Groups of experts behind one router, and experts that hardly compute: zero, copy, constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import torch
from torch import Tensor, nn

from mlpkit.experts.backends import host_sizes
from mlpkit.experts.copies import CopiesError
from mlpkit.experts.stack import Experts


@final
class ExpertGroups(nn.ModuleList):
    """Experts of different types or widths: stacks side by side, numbered through.

    With groups of E₀ and E₁ experts the router's expert E₀ is the second group's first.

    Args:
        groups: One stack for each type or width.

    Raises:
        CopiesError: There is no group.
    """

    def __init__(self, groups: Sequence[Experts]) -> None:
        if not groups:
            raise CopiesError("expert groups need at least one stack of experts, got none")
        super().__init__(groups)
        self._sizes = [group.num_experts for group in groups]
        self.num_experts = sum(self._sizes)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Runs each expert on its rows.

        Args:
            rows: (N, H), sorted by expert.
            counts: (E,) int64 over the experts of all groups; their sum is at most N.

        Returns:
            (N, H); zeros for the rows past the last expert's.
        """
        parts = torch.split(counts, self._sizes)
        sizes = host_sizes(torch.stack([part.sum() for part in parts]))
        if sizes is None:
            return self._rolled(rows, parts)
        rest = rows.shape[0] - sum(sizes)
        split = torch.split(rows, [*sizes, rest])
        out = [group(r, c) for group, r, c in zip(self._parts(), split[:-1], parts, strict=True)]
        return torch.cat([*out, torch.zeros_like(split[-1])])

    def _parts(self) -> list[Experts]:
        return [cast(Experts, group) for group in self]

    def _rolled(self, rows: Tensor, parts: Sequence[Tensor]) -> Tensor:
        # For a full graph no shape may depend on the routing: each group sees all rows, turned
        # so that its own come first, and leaves zeros for the others.
        position = torch.arange(rows.shape[0], device=rows.device)
        out, start = torch.zeros_like(rows), torch.zeros_like(parts[0].sum())
        for group, counts in zip(self._parts(), parts, strict=True):
            turned = rows.index_select(0, (position + start) % max(1, len(rows)))
            done = group(turned, counts)
            out = out + done.index_select(0, (position - start) % max(1, len(rows)))
            start = start + counts.sum()
        return out

    @property
    def backend_name(self) -> str:
        """The backends of the groups, e.g. ``"grouped + loop"``."""
        return " + ".join(group.backend_name for group in self._parts())

    @property
    def backend_reason(self) -> str:
        """Why groups run in another way than they were asked to, group by group."""
        named = enumerate(group.backend_reason for group in self._parts())
        return "; ".join(f"group {index}: {reason}" for index, reason in named if reason)

    def expert(self, index: int) -> nn.Module:
        """One expert by its number over all groups; see Experts.expert.

        Raises:
            IndexError: There is no such expert.
        """
        if not 0 <= index < self.num_experts:
            raise IndexError(f"expert {index} of {self.num_experts}; they count from 0")
        for group in self._parts():
            if index < group.num_experts:
                return group.expert(index)
            index -= group.num_experts
        raise AssertionError("the sizes of the groups add up to num_experts")


@final
class ZeroExpert(nn.Module):
    """Drops the token: its output is 0 (MoE++, Jin 2024, arXiv:2410.07348).

    Args:
        hidden_size: H; taken as every FFN takes it.
    """

    def __init__(self, *, hidden_size: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H)."""
        return torch.zeros_like(x)


@final
class CopyExpert(nn.Module):
    """Returns the token itself (MoE++, Jin 2024, arXiv:2410.07348).

    Args:
        hidden_size: H; taken as every FFN takes it.
    """

    def __init__(self, *, hidden_size: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H)."""
        return x.clone()


@final
class ConstantExpert(nn.Module):
    """Mixes the token with a learned vector v (MoE++, Jin 2024, arXiv:2410.07348).

    ``a·x + b·v`` with (a, b) = softmax(W·x): the constant is a token-free answer.

    Args:
        hidden_size: H, the length of the vector.
    """

    def __init__(self, *, hidden_size: int) -> None:
        super().__init__()
        self.mix = nn.Linear(hidden_size, 2, bias=False)
        self.constant = nn.Parameter(torch.empty(hidden_size).normal_(std=0.02))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., H) to (..., H)."""
        own, constant = self.mix(x).softmax(-1).unsqueeze(-1).unbind(-2)  # two of (..., 1)
        mixed: Tensor = own * x + constant * self.constant
        return mixed

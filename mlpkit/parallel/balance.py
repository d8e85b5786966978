"""Balance terms over the tokens of all processes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mlpkit.balance.terms import SummedTerm
from mlpkit.parallel.collectives import gather_rows, sum_over
from mlpkit.routing import Routing


def balance_over(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Makes every balance term of a model one over the tokens of a whole group.

    A load term is no mean of the processes' own: each might send its tokens to one expert and
    all together be in balance. Bias rules stay, since ``update_router_bias`` sums their counts.

    Args:
        module: The model.
        group: The processes that share a batch.
    """
    for layer in module.modules():
        balance = vars(layer).get("balance")
        if isinstance(vars(layer).get("taps"), list) and isinstance(balance, Mapping):
            vars(layer)["balance"] = {name: _over(term, group) for name, term in balance.items()}


def _over(term: Any, group: dist.ProcessGroup) -> Any:
    if isinstance(term, SummedTerm):
        over = copy.copy(term)
        vars(over)["total"] = partial(sum_over, group=group)
        return over
    return GatheredTerm(term, group=group) if callable(term) else term


@final
class GatheredTerm:
    """Any other term, on the gathered routing of all processes: right whatever it computes.

    It costs more than a sum does: every process gets every logit.

    Args:
        term: The term, as a single process has it.
        group: The processes that share a batch.
    """

    def __init__(self, term: Callable[..., Tensor], *, group: dist.ProcessGroup) -> None:
        self.term, self.group = term, group
        self.coefficient: float = getattr(term, "coefficient", 0.0)
        self.over_layers: str = getattr(term, "over_layers", "mean")

    def __call__(self, routing: Routing, mask: Tensor | None = None) -> Tensor:
        """The term of the whole batch."""
        masks = None if mask is None else gather_rows(mask, self.group)
        return self.term(gather_routing(routing, self.group), masks)


def gather_routing(routing: Routing, group: dist.ProcessGroup) -> Routing:
    """The routings of all processes as one of all their tokens, with gradient.

    Args:
        routing: This process's.
        group: The processes, whose sequences have the same length.

    Returns:
        A routing whose tokens stand process by process.
    """
    logits = gather_rows(routing.logits, group)
    number = torch.tensor([routing.num_tokens], device=logits.device)
    before = gather_rows(number, group)[: dist.get_rank(group)].sum()
    length = routing.leading[-1:] or (routing.num_tokens,)
    return Routing(
        token=gather_rows(routing.token + before, group),
        expert=gather_rows(routing.expert, group),
        weight=gather_rows(routing.weight, group),
        num_experts_per_tok=routing.num_experts_per_tok,
        logits=logits,
        scores=gather_rows(routing.scores, group),
        leading=(len(logits) // max(1, length[0]), *length),
    )

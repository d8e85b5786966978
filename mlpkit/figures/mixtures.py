"""The diagram of a MoE, read from the built module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from mlpkit.activations import Activation
from mlpkit.experts import ExpertGroups, Experts
from mlpkit.figures.dataflow import Graph, Node, linear_node, trace
from mlpkit.figures.labels import Words
from mlpkit.moe import MoE
from mlpkit.routers import ExpertChoiceRouter, Router


def diagram(module: nn.Module, hidden_size: int, text: Words, *, within: bool = False) -> Graph:
    """The diagram of any FFN.

    Args:
        module: The built FFN.
        hidden_size: H.
        text: The language of the labels.
        within: Whether it stands in a card, whose edges are its input and output.
    """
    if isinstance(module, MoE):
        graph = Graph(nodes=tuple(_moe_nodes(module, text)))
    else:
        graph = trace(module, hidden_size, text)
    if not graph.traced:
        card = Node(name="parts", kind="card", title=text.untraced, inner=graph, sources=("x",))
        graph = Graph(
            nodes=(
                Node(name="x", kind="input", title=text.input),
                card,
                Node(name="y", kind="output", title=text.output, sources=("parts",)),
            )
        )
    return Graph(nodes=tuple(_ended(node, hidden_size, within) for node in graph.nodes))


def _ended(node: Node, hidden_size: int, within: bool) -> Node:
    """An input or output with its shape, or without any text in a card."""
    if node.kind not in ("input", "output"):
        return node
    return replace(node, title="" if within else f"{node.title} (…, {hidden_size})")


def _moe_nodes(moe: MoE, text: Words) -> Iterator[Node]:
    yield Node(name="x", kind="input", title=text.input)
    yield from router_nodes(moe.router, text)
    rows, early = "x", moe.router.apply_on == "input"
    if moe.latent_down_proj is not None:
        yield replace(linear_node("latent_down_proj", moe.latent_down_proj), sources=(rows,))
        rows = "latent_down_proj"
    if early:
        yield _weighted("weigh", "×", rows)
        rows = "weigh"
    cards = list(_expert_cards(moe, text))
    for card in cards:
        yield replace(card, sources=(rows,), hints=() if early else ("choice",))
    names = tuple(card.name for card in cards)
    if early:
        yield Node(name="sum", kind="circle", title="Σ", sources=names)
    else:
        yield replace(_weighted("sum", "Σ", names[0]), sources=("choice", *names))
    routed = "sum"
    if moe.latent_up_proj is not None:
        yield replace(linear_node("latent_up_proj", moe.latent_up_proj), sources=(routed,))
        routed = "latent_up_proj"
    for node in _shared_nodes(moe, routed, text):
        yield node
        routed = node.name
    yield Node(name="y", kind="output", title=text.output, sources=(routed,))


def _weighted(name: str, title: str, source: str) -> Node:
    """Where the router's weights multiply."""
    sources = ("choice", source)
    return Node(name=name, kind="circle", title=title, sources=sources, weights="choice")


def router_nodes(router: Router, text: Words) -> tuple[Node, Node]:
    """The boxes of a router: its scores, and its choice.

    Args:
        router: The router.
        text: The language of the labels.
    """
    details = (type(router).__name__, *_scoring(router))
    first = Node(name="router", kind="router", title=text.router, details=details, sources=("x",))
    k, experts = router.num_experts_per_tok, router.num_experts
    by_experts = isinstance(router, ExpertChoiceRouter)
    second = Node(
        name="choice",
        kind="router",
        title=text.experts_choose if by_experts else text.chooses.format(k=k, experts=experts),
        details=((text.average.format(k=k),) if by_experts else ()) + tuple(_rules(router, text)),
        sources=("router",),
    )
    return first, second


def _scoring(router: Router) -> Iterator[str]:
    """How a router scores: its matrix, and its score function."""
    weight, score = getattr(router, "weight", None), getattr(router, "score", None)
    if weight is not None:
        bias = "" if getattr(router, "bias", None) is None else " + b"
        yield f"{weight.shape[1]} → {weight.shape[0]}{bias}"
    if score is not None:
        yield score.name if isinstance(score, Activation) else type(score).__name__.lower()


def _rules(router: Router, text: Words) -> Iterator[str]:
    """What bends a router's choice and its weights."""
    if getattr(router, "e_score_correction_bias", None) is not None:
        yield text.selection_bias
    groups = getattr(router, "groups", None)
    if groups is not None and groups.n_group > 1:
        yield text.groups.format(k=groups.topk_group, groups=groups.n_group)
    if getattr(router, "norm_topk_prob", False):
        yield text.normalised
    scale = getattr(router, "routed_scaling_factor", 1.0)
    if scale != 1:
        yield f"× {scale:g}"


def _expert_cards(moe: MoE, text: Words) -> Iterator[Node]:
    """A card for each stack of equal experts, one expert's diagram in it."""
    stacks: list[Experts]
    stacks = list(moe.experts) if isinstance(moe.experts, ExpertGroups) else [moe.experts]  # type: ignore[arg-type]
    limit = ""
    if moe.capacity_factor is not None:
        factor = f"{moe.capacity_factor:g}"
        limit = text.pause + text.capacity.format(factor=factor)
    width = moe.hidden_size if moe.latent_down_proj is None else moe.latent_down_proj.out_features
    for index, stack in enumerate(stacks):
        yield Node(
            name=f"experts{index}",
            kind="card",
            title=text.experts.format(count=stack.num_experts) + limit,
            inner=diagram(stack.expert(0), width, text, within=True),
            copies=stack.num_experts,
        )


def _shared_nodes(moe: MoE, routed: str, text: Words) -> Iterator[Node]:
    """The shared expert, its gate, and where it joins."""
    if moe.shared is None:
        return
    inner = diagram(moe.shared, moe.hidden_size, text, within=True)
    shared = Node(name="shared", kind="card", title=text.shared, inner=inner, sources=("x",))
    yield shared
    joined = "shared"
    if moe.shared_gate is not None:
        yield replace(linear_node("shared_gate", moe.shared_gate), sources=("x",))
        yield Node(name="gate", kind="activation", title="sigmoid", sources=("shared_gate",))
        yield Node(name="gated", kind="circle", title="×", sources=("shared", "gate"))
        joined = "gated"
    yield Node(name="total", kind="circle", title="+", sources=(routed, joined))
    if moe.shared_combine == "average":
        yield Node(name="half", kind="plain", title="÷ 2", sources=("total",))

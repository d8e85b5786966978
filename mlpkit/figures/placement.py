"""Where the boxes of a diagram stand: columns by layers, heights by what is below."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlpkit.figures.canvas import NORMAL, SMALL
from mlpkit.figures.dataflow import Graph, Node

# All in inches.
GAP, SIDE, PAD = 0.26, 0.26, 0.13  # between layers, between columns, within a card
LINE, CIRCLE, NARROWEST = 0.135, 0.22, 0.86  # a line of text, a circle's diameter, a box


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Where a node is.

    Args:
        x: Its centre.
        y: Its lower edge.
        width: Its whole width.
        height: Its whole height.
    """

    x: float
    y: float
    width: float
    height: float

    @property
    def top(self) -> float:
        """Its upper edge."""
        return self.y + self.height


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A placed diagram, its lower left corner at (0, 0).

    Args:
        spots: By node name.
        lanes: Where an arrow passes other layers, by (source, target): from which y in which x.
        inner: The plans of the cards, by node name.
        width: Of the whole.
        height: Of the whole.
    """

    spots: Mapping[str, Spot]
    lanes: Mapping[tuple[str, str], Sequence[tuple[float, float]]]
    inner: Mapping[str, Plan]
    width: float
    height: float


def place(graph: Graph) -> Plan:
    """Places a diagram, and the diagrams within its cards.

    Args:
        graph: The diagram.
    """
    inner = {node.name: place(node.inner) for node in graph.nodes if node.inner is not None}
    sizes = {node.name: node_size(node, inner.get(node.name)) for node in graph.nodes}
    if not graph.traced:
        return _column(graph, sizes, inner)
    ranks = _ranks(graph.nodes)
    layers, chains = _layers(graph.nodes, ranks)
    centres = _centres(graph.nodes, layers, chains, sizes)
    left = min(centres[n] - sizes[n][0] / 2 for n in sizes)
    spots: dict[str, Spot] = {}
    # A parameter comes from nowhere; it stands beside what is in its layer, so comes last there.
    for node in sorted(graph.nodes, key=lambda node: (ranks[node.name], not node.sources)):
        width, height = sizes[node.name]
        below = [spots[source].top for source in node.sources]
        level = [s.y for name, s in spots.items() if ranks[name] == ranks[node.name]]
        y = max(below) + GAP if below else max(level, default=0.0)
        spots[node.name] = Spot(x=centres[node.name] - left, y=y, width=width, height=height)
    floors = [min(s.y for n, s in spots.items() if ranks[n] == rank) for rank in range(len(layers))]
    lanes = {
        (source, target): [
            (max(floors[rank], spots[source].top + GAP) - GAP / 2, centres[name] - left)
            for rank, name in enumerate(chain, start=ranks[source] + 1)
        ]
        for (source, target), chain in chains.items()
    }
    return Plan(
        spots=spots,
        lanes=lanes,
        inner=inner,
        width=max(spot.x + spot.width / 2 for spot in spots.values()),
        height=max(spot.top for spot in spots.values()),
    )


def node_size(node: Node, inner: Plan | None) -> tuple[float, float]:
    """Width and height of a node."""
    if node.kind == "circle":
        return CIRCLE, CIRCLE
    texts = [text_width(node.title, NORMAL), *(text_width(d, SMALL) for d in node.details)]
    lines = LINE * (1 + len(node.details))
    if node.kind in ("input", "output"):  # within a card the ends are its edges
        return (max(texts), lines) if node.title else (0.1, 0.0)
    if inner is not None and node.inner is not None:
        # Beside the arrow that leaves at the top there is room for the heading.
        around = 0.0 if node.inner.traced else 2 * PAD + LINE
        heading = (2 if node.inner.traced else 1) * texts[0]
        return max(inner.width, heading) + 2 * PAD, inner.height + around
    slant = 0.22 if node.kind == "linear" else 0.0
    return max(NARROWEST, max(texts) + 0.2 + slant), lines + 0.14


def text_width(text: str, size: float) -> float:
    """About the width of a line in inches; a Chinese character is as wide as it is high."""
    ems = sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.62 for c in text)
    return ems * size / 72


def _column(graph: Graph, sizes: Mapping[str, tuple[float, float]], inner: dict[str, Plan]) -> Plan:
    """Parts one above the other; nothing is known of what joins them."""
    width = max((size[0] for size in sizes.values()), default=NARROWEST)
    spots, y = {}, 0.0
    for node in graph.nodes:
        size = sizes[node.name]
        spots[node.name] = Spot(x=width / 2, y=y, width=size[0], height=size[1])
        y += size[1] + PAD
    return Plan(spots=spots, lanes={}, inner=inner, width=width, height=max(y - PAD, 0.0))


def _ranks(nodes: Sequence[Node]) -> dict[str, int]:
    """The layer of each node: one above its highest source; a parameter just below its use."""
    ranks: dict[str, int] = {}
    for node in nodes:
        ranks[node.name] = max((ranks[source] + 1 for source in node.sources), default=0)
    for node in nodes:
        users = [ranks[other.name] for other in nodes if node.name in other.sources]
        if not node.sources and node.kind != "input" and users:
            ranks[node.name] = max(0, min(users) - 1)
    return ranks


def _layers(
    nodes: Sequence[Node], ranks: Mapping[str, int]
) -> tuple[list[list[str]], dict[tuple[str, str], list[str]]]:
    """The names in each layer, left to right; a long arrow has a stand-in in those it passes."""
    layers: list[list[str]] = [[] for _ in range(max(ranks.values()) + 1)]
    chains: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        layers[ranks[node.name]].append(node.name)
        for source in node.sources:
            passed = range(ranks[source] + 1, ranks[node.name])
            chain = [f"{source}>{node.name}@{rank}" for rank in passed]
            chains[source, node.name] = chain
            for rank, name in zip(passed, chain, strict=True):
                layers[rank].append(name)
    below = _below(nodes, chains)
    for lower, layer in pairwise(layers):
        at = {name: index for index, name in enumerate(lower)}
        middle = {n: _mean([at[s] for s in below[n] if s in at], default=0.0) for n in layer}
        layer.sort(key=middle.__getitem__)  # stable: equal ones stay in the order of the code
    return layers, chains


def _below(
    nodes: Sequence[Node], chains: Mapping[tuple[str, str], Sequence[str]]
) -> dict[str, list[str]]:
    """What each node or stand-in is joined to in the layer below."""
    below: dict[str, list[str]] = {node.name: [] for node in nodes}
    for (source, target), chain in chains.items():
        path = [source, *chain, target]
        for lower, upper in pairwise(path):
            below.setdefault(upper, []).append(lower)
    return below


def _centres(
    nodes: Sequence[Node],
    layers: Sequence[Sequence[str]],
    chains: Mapping[tuple[str, str], Sequence[str]],
    sizes: Mapping[str, tuple[float, float]],
) -> dict[str, float]:
    """The x of each node: above what it comes from, as far as its neighbours allow."""
    below, weights = _below(nodes, chains), {node.name: node.weights for node in nodes}
    widths = _column_widths(nodes, sizes)
    kinds = {node.name: node.kind for node in nodes}
    for (source, _), chain in chains.items():
        # What a branch passes, it passes in a column of its own; the input's only as a line.
        widths.update(dict.fromkeys(chain, 0.1 if kinds[source] == "input" else widths[source]))
    centres: dict[str, float] = {}
    for layer in layers:
        wanted = []
        for name in layer:
            side = weights.get(name, "")
            main = [s for s in below[name] if not side or s.partition(">")[0] != side]
            wanted.append(_mean([centres[s] for s in main], default=0.0))
        gaps = [(widths[a] + widths[b]) / 2 + SIDE for a, b in pairwise(layer)]
        centres.update(zip(layer, spread(wanted, gaps), strict=True))
    return centres


def _column_widths(
    nodes: Sequence[Node], sizes: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """The width each node takes in its layer: that of the widest in its chain.

    So a chain stands in one line although its boxes differ in width.
    """
    users: dict[str, int] = {}
    for node in nodes:
        for source in node.sources:
            users[source] = users.get(source, 0) + 1
    heads: dict[str, str] = {}
    for node in nodes:
        alone = len(node.sources) == 1 and users[node.sources[0]] == 1
        heads[node.name] = heads[node.sources[0]] if alone else node.name
    widest: dict[str, float] = {}
    for name, head in heads.items():
        widest[head] = max(widest.get(head, 0.0), sizes[name][0])
    return {name: widest[head] for name, head in heads.items()}


def spread(wanted: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """The positions nearest to those wanted (least squares) that keep the gaps, in order.

    Args:
        wanted: Positions, left to right.
        gaps: The least distance of each neighbouring pair, one fewer.

    Returns:
        As many positions: the isotonic regression of what is wanted, by pooling neighbours.
    """
    offset, shift = [0.0], 0.0
    for gap in gaps:
        shift += gap
        offset.append(shift)
    pools: list[tuple[float, int]] = []
    for want, start in zip(wanted, offset, strict=False):
        mean, count = want - start, 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        pools.append((mean, count))
    flat = [mean for mean, count in pools for _ in range(count)]
    return [mean + start for mean, start in zip(flat, offset, strict=False)]


def _mean(values: Sequence[float], *, default: float) -> float:
    return sum(values) / len(values) if values else default

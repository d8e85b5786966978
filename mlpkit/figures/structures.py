"""FFNs as diagrams, drawn from the built modules with their real shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from mlpkit.build import Component, build_ffn
from mlpkit.figures.canvas import NORMAL, SMALL, Theme, blank_axes, dress, new_figure, theme
from mlpkit.figures.captions import caption
from mlpkit.figures.dataflow import Graph, Node
from mlpkit.figures.labels import Words, words
from mlpkit.figures.mixtures import diagram
from mlpkit.figures.placement import GAP, LINE, PAD, SIDE, Plan, Spot, place, text_width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN, BETWEEN, CAPTION = 0.15, 0.45, 0.62  # inches
SHADOW = 0.045  # by how much the cards of a stack are shifted


def plot_ffn(
    *names: Component, hidden_size: int = 512, dark: bool = False, lang: str = "en"
) -> Figure:
    """Draws the structure of FFNs, each from its built module, from input (below) to output.

    Args:
        names: Names of registered FFNs or presets, or mappings with a name and options.
        hidden_size: H, the width of input and output.
        dark: Whether the background is dark.
        lang: "en" or "zh".

    Returns:
        A matplotlib figure, which a notebook shows and ``save_figure`` writes.

    Raises:
        UnknownNameError: No FFN or activation has the name.
        BuildError: An FFN has no such option, or refuses its value.
        MissingExtraError: matplotlib is not installed.
        FontError: No installed font has the language's characters.
    """
    text, colours = words(lang), theme(dark)
    with torch.device("meta"):  # a picture needs shapes alone, however many the experts are
        modules = [build_ffn(name, hidden_size=hidden_size) for name in names]
    graphs = [diagram(module, hidden_size, text) for module in modules]
    plans = [place(graph) for graph in graphs]
    captions = [caption(name, module, text) for name, module in zip(names, modules, strict=True)]
    widths = [
        max(plan.width + 3 * SHADOW, *(text_width(line, NORMAL + 1) for line in lines))
        for plan, lines in zip(plans, captions, strict=True)
    ]
    width = sum(widths) + BETWEEN * (len(widths) - 1) + 2 * MARGIN
    height = max(plan.height for plan in plans) + CAPTION + 2 * MARGIN
    figure = new_figure(width, height, dark=dark)
    axes, left = blank_axes(figure), MARGIN
    for graph, plan, lines, room in zip(graphs, plans, captions, widths, strict=True):
        start = left + (room - plan.width) / 2
        draw(axes, graph, plan, (start, MARGIN + CAPTION), text, colours)
        _caption(axes, lines, left + room / 2, colours)
        left += room + BETWEEN
    dress(figure, lang)
    return figure


def draw(
    axes: Any,
    graph: Graph,
    plan: Plan,
    corner: tuple[float, float],
    text: Words,
    colours: Theme,
    level: int = 0,
) -> None:
    """Draws a placed diagram.

    Args:
        axes: Axes in inches.
        graph: The diagram.
        plan: Its places.
        corner: Its lower left corner.
        text: The language.
        colours: The colours.
        level: How far to the front: a card's inner diagram is before the card.
    """
    spots = {
        name: Spot(x=s.x + corner[0], y=s.y + corner[1], width=s.width, height=s.height)
        for name, s in plan.spots.items()
    }
    for node in graph.nodes:
        for source in node.sources:
            lanes = plan.lanes.get((source, node.name), ())
            line = route(
                spots[source],
                spots[node.name],
                [(y + corner[1], x + corner[0]) for y, x in lanes],
                aside=node.kind == "circle" and not _hidden(node, source, plan),
            )
            _arrow(axes, line, colours.ink, level)
        if node.weights:
            where = (spots[node.weights].x + 0.05, spots[node.name].y + 0.2)
            _write(axes, *where, text.weights, colours.faint, level, ha="left")
        for hint in node.hints:
            _hint(axes, spots[hint], spots[node.name], colours, level)
    for node in graph.nodes:
        _box(axes, node, spots[node.name], colours, level)
        if node.inner is not None:
            inner = plan.inner[node.name]
            start = _entry(node.inner, inner, spots[node.name])
            draw(axes, node.inner, inner, start, text, colours, level + 5)


def _entry(graph: Graph, plan: Plan, card: Spot) -> tuple[float, float]:
    """The lower left corner of a card's diagram: its input stands in the middle of the card."""
    entry = next((node.name for node in graph.nodes if node.kind == "input"), "")
    x = plan.spots[entry].x if entry else plan.width / 2
    return card.x - x, card.y + (0.0 if graph.traced else PAD)


def route(
    source: Spot, target: Spot, lanes: Sequence[tuple[float, float]], *, aside: bool
) -> list[tuple[float, float]]:
    """The corners of an arrow between two nodes.

    Args:
        source: Where it begins, at the top.
        target: Where it ends.
        lanes: From which y in which x it passes other layers.
        aside: Whether the target is entered from the side, as a circle is.
    """
    x, points = source.x, [(source.x, source.top)]
    for y, lane in lanes:
        if abs(lane - x) > 0.01:
            points += [(x, y), (lane, y)]
            x = lane
    if abs(x - target.x) <= 0.01:
        return [*points, (x, target.y)]
    if aside:
        middle = target.y + target.height / 2
        side = target.x + (target.width / 2 if x > target.x else -target.width / 2)
        return [*points, (x, middle), (side, middle)]
    level = target.y - GAP / 2
    return [*points, (x, level), (target.x, level), (target.x, target.y)]


def _hidden(target: Node, source: str, plan: Plan) -> bool:
    """Whether something stands between a circle and an arrow that comes from the side."""
    end = plan.spots[target.name]
    lanes = plan.lanes.get((source, target.name), ())
    start, middle = lanes[-1][1] if lanes else plan.spots[source].x, end.y + end.height / 2
    low, high = sorted((start, end.x))
    if target.weights and source != target.weights and start < end.x:
        return True  # the weights come from there
    others = [s for name, s in plan.spots.items() if name not in (source, target.name)]
    return any(s.y < middle < s.top and low < s.x < high for s in others)


def _arrow(
    axes: Any,
    points: list[tuple[float, float]],
    colour: str,
    level: int,
    dashed: bool = False,
) -> None:
    from matplotlib.patches import FancyArrowPatch  # an extra, as in canvas.new_figure
    from matplotlib.path import Path

    style = "-|>,head_length=2.6,head_width=1.4"
    axes.add_patch(
        FancyArrowPatch(
            path=Path(points),
            arrowstyle=style,
            color=colour,
            linewidth=0.8,
            linestyle=(0, (2.5, 2)) if dashed else "-",
            joinstyle="round",
            shrinkA=0,
            shrinkB=0,
            zorder=level + 2,
        )
    )


def _hint(axes: Any, source: Spot, target: Spot, colours: Theme, level: int) -> None:
    """A dashed arrow from a choice to what it chooses, level where that is possible."""
    y = min(max(source.y + source.height / 2, target.y + 0.1), target.top - 0.1)
    start, end = source.x + source.width / 2, target.x - target.width / 2
    middle, bend = source.y + source.height / 2, start + SIDE / 2
    points = [(start, y), (end, y)]
    if abs(y - middle) > 0.01:  # a lower card, reached behind those before it
        points = [(start, middle), (bend, middle), (bend, y), (end, y)]
    _arrow(axes, points, colours.faint, level, dashed=True)


def _box(axes: Any, node: Node, spot: Spot, colours: Theme, level: int) -> None:
    """Draws a node's shape and lines of text."""
    if node.kind in ("input", "output"):
        where = (spot.x, spot.y + spot.height / 2)
        return _write(axes, *where, node.title, colours.ink, level, size=NORMAL)
    fill, edge = colours.boxes.get(node.kind, (colours.card, colours.line))
    for shape in _shapes(node, spot):
        shape.set(facecolor=fill, edgecolor=edge, linewidth=0.8, zorder=level + 3)
        axes.add_patch(shape)
    if node.kind == "circle":
        middle = spot.y + spot.height / 2
        return _write(axes, spot.x, middle, node.title, colours.ink, level, size=NORMAL + 1)
    if node.kind == "card":
        corner = (spot.x - spot.width / 2 + 0.07, spot.top - LINE * 0.85)
        return _write(axes, *corner, node.title, colours.ink, level, size=NORMAL, ha="left")
    lines = (node.title, *node.details)
    top = spot.y + (spot.height + LINE * (len(lines) - 1)) / 2
    for index, line in enumerate(lines):
        size, colour = (SMALL, colours.faint) if index else (NORMAL, colours.ink)
        _write(axes, spot.x, top - LINE * index, line, colour, level, size=size)
    return None


def _shapes(node: Node, spot: Spot) -> list[Any]:
    """A node's outline: a linear narrows or widens as its tensor does; a stack is three cards."""
    from matplotlib.patches import Circle, FancyBboxPatch, Polygon  # see _arrow

    half, y = spot.width / 2, spot.y
    if node.kind == "circle":
        return [Circle((spot.x, y + spot.height / 2), half)]
    if node.sizes is not None:
        below, above = (half * min(1.0, max(0.8, a / max(node.sizes))) for a in node.sizes)
        corners = [(-below, y), (below, y), (above, spot.top), (-above, spot.top)]
        return [Polygon([(spot.x + dx, h) for dx, h in corners], joinstyle="round")]
    return [
        FancyBboxPatch(
            (spot.x - half + shift, y + shift),
            spot.width,
            spot.height,
            boxstyle="round,pad=0,rounding_size=0.06",
        )
        for shift in ((2 * SHADOW, SHADOW, 0.0) if node.copies > 1 else (0.0,))
    ]


def _write(
    axes: Any,
    x: float,
    y: float,
    line: str,
    colour: str,
    level: int = 0,
    *,
    size: float = SMALL,
    ha: str = "center",
) -> None:
    if line:
        axes.text(x, y, line, fontsize=size, color=colour, ha=ha, va="center", zorder=level + 5)


def _caption(axes: Any, lines: tuple[str, ...], x: float, colours: Theme) -> None:
    axes.text(
        x,
        CAPTION - 0.05,
        lines[0],
        fontsize=NORMAL + 1,
        fontweight="bold",
        color=colours.ink,
        ha="center",
        va="center",
    )
    for index, line in enumerate(lines[1:], start=1):
        _write(axes, x, CAPTION - 0.07 - 0.16 * index, line, colours.faint)

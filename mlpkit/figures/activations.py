"""Activation functions and their derivatives side by side, minima and zeros marked."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mlpkit.build import Component
from mlpkit.figures.canvas import NORMAL, SMALL, Theme, dress, frame, new_figure, theme
from mlpkit.figures.functions import Curve, curve
from mlpkit.figures.labels import Words, number, words
from mlpkit.figures.landmarks import Place, grid, minima, zeros

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Inches: the width of a page's text, a panel, a row of text, and where both columns begin.
WIDTH, PANEL, ROW, COLUMNS = 7.2, (3.12, 2.5), 0.38, (0.4, 3.97)
INDENT = 0.35  # of text after the sample of its line
MARKED = 12  # more marks than these would hide the curve
DASHES = ("-", (0, (5, 1.6)), (0, (1.4, 1.2)))  # the second round of colours is dashed, …


class RangeError(ValueError):
    """A range of x that has no inside."""

    exit_code = 2


def plot_activation(
    *names: Component,
    span: tuple[float, float] = (-6.0, 6.0),
    dark: bool = False,
    lang: str = "en",
) -> Figure:
    """Draws activations and their derivatives.

    Args:
        names: Names of registered activations, or mappings with a name and options.
        span: The range of x.
        dark: Whether the background is dark.
        lang: "en" or "zh".

    Returns:
        A matplotlib figure, which a notebook shows and ``save_figure`` writes.

    Raises:
        UnknownNameError: No activation has the name.
        ActivationOptionError: An activation has no such option, or refuses its value.
        RangeError: The range is empty or infinite.
        MissingExtraError: matplotlib is not installed.
        FontError: No installed font has the language's characters.
    """
    low, high = float(span[0]), float(span[1])
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise RangeError(f"the range of x is {low:g} to {high:g}; give two numbers, smaller first")
    text, colours = words(lang), theme(dark)
    curves = [curve(name, text) for name in names]
    below = 0.45 + ROW * len(curves) + 0.155 * sum(bool(c.note) for c in curves)
    width, height = WIDTH, PANEL[1] + below + 0.3
    figure = new_figure(width, height, dark=dark)
    panels = [
        figure.add_axes((left / width, below / height, PANEL[0] / width, PANEL[1] / height))
        for left in COLUMNS
    ]
    functions = [[c.function for c in curves], [c.slope for c in curves]]
    titles = (text.function, text.derivative)
    found = [
        _panel(axes, title, several, (low, high), colours)
        for axes, title, several in zip(panels, titles, functions, strict=True)
    ]
    _table(figure, curves, found, (low, high), text, colours, top=below - 0.45)
    dress(figure, lang)
    return figure


def _panel(
    axes: Any,
    title: str,
    functions: Sequence[Callable[[Tensor], Tensor]],
    span: tuple[float, float],
    colours: Theme,
) -> list[tuple[list[Place], list[Place]]]:
    """Draws functions of x; returns the minima and zeros of each."""
    x = grid(*span)
    values = [function(x) for function in functions]
    found = []
    for index, (function, y) in enumerate(zip(functions, values, strict=True)):
        colour, dashes = stroke(index, colours)
        # Where curves coincide, those below show beside those above.
        share = index / (len(functions) - 1) if len(functions) > 1 else 0.6
        axes.plot(x, broken(y), color=colour, ls=dashes, lw=2.2 - 0.8 * share, zorder=3)
        places = (minima(function, *span), zeros(function, *span))
        found.append(places)
        # A zero that is a minimum too shows both: the filled mark within the open one.
        for marked, size, fill in (
            (places[1], 7.5 - 3 * share, colours.background),
            (places[0], 3.2, colour),
        ):
            ends = [end for p in marked for end in _ends(p, span)]
            if len(ends) <= MARKED:
                xs, ys = [a for a, _ in ends], [b for _, b in ends]
                axes.plot(xs, ys, "o", ms=size, mfc=fill, mec=colour, mew=1.0, zorder=4)
    _dress_panel(axes, title, span, values, colours)
    return found


def stroke(index: int, colours: Theme) -> tuple[str, Any]:
    """The colour and dashes of a curve by its place in the list."""
    number_of = len(colours.series)
    return colours.series[index % number_of], DASHES[index // number_of % len(DASHES)]


def broken(y: Tensor) -> Tensor:
    """The values with a gap at each jump, so that no line pretends to join its sides.

    A step is a jump when it is 8 times the steps on both its sides and 2 % of the whole height.
    """
    step = y.diff().abs()
    sides = torch.maximum(
        torch.nn.functional.pad(step[:-1], (1, 0)), torch.nn.functional.pad(step[1:], (0, 1))
    )
    jump = (step > 8 * sides) & (step > 0.02 * (y.max() - y.min()))
    gapped = y.clone()
    gapped[:-1][jump] = torch.nan
    return gapped


def _ends(place: Place, span: tuple[float, float]) -> list[tuple[float, float]]:
    """Where a place is marked: a point, or an interval's ends inside of the range."""
    ends = (place.low, place.high) if place.flat else (place.low,)
    return [(end, place.value) for end in ends if not place.flat or end not in span]


def _dress_panel(
    axes: Any,
    title: str,
    span: tuple[float, float],
    values: Sequence[Tensor],
    colours: Theme,
) -> None:
    axes.set_title(title, fontsize=NORMAL + 1, color=colours.ink, loc="left", pad=6)
    frame(axes, colours)
    axes.axhline(0, color=colours.faint, linewidth=0.7, zorder=1)
    if span[0] < 0 < span[1]:
        axes.axvline(0, color=colours.faint, linewidth=0.7, zorder=1)
    axes.set_xlim(*span)
    low, high = axes.get_ylim()
    # Of several curves one may dwarf the others, as ReLU² does ReLU; it leaves through the frame.
    tallest = 2 * statistics.median_low([float(y.abs().max()) for y in values])
    if len(values) > 1 and tallest > 0:
        low, high = max(low, -tallest), min(high, tallest)
    axes.set_ylim(low, high)


def _table(
    figure: Figure,
    curves: Sequence[Curve],
    found: Sequence[Sequence[tuple[list[Place], list[Place]]]],
    span: tuple[float, float],
    text: Words,
    colours: Theme,
    *,
    top: float,
) -> None:
    """Writes under the panels, for each curve, its formula and what is marked."""
    _key(figure, text, colours)
    first, second = COLUMNS
    y = top
    for index, entry in enumerate(curves):
        _head(figure, entry, stroke(index, colours), y, colours)
        for left, places in zip((first + INDENT, second), found, strict=True):
            line = text.pause.join(summary(*places[index], span, text))
            _write(figure, left, y - 0.15, line, SMALL, colours.faint)
        if entry.note:
            y -= 0.155
            _write(figure, first + INDENT, y - 0.15, entry.note, SMALL, colours.faint)
        y -= ROW


def _head(figure: Figure, entry: Curve, style: tuple[str, Any], y: float, colours: Theme) -> None:
    """A curve's sample, name and formula, and its derivative where there is room."""
    from matplotlib.lines import Line2D  # an extra, as in canvas.new_figure

    (width, height), (first, second) = figure.get_size_inches(), COLUMNS
    colour, dashes = style
    ends = (first / width, (first + INDENT - 0.07) / width)
    line = {"transform": figure.transFigure, "color": colour, "linestyle": dashes}
    figure.add_artist(Line2D(ends, [(y + 0.035) / height] * 2, linewidth=1.8, **line))
    name = _write(figure, first + INDENT, y, entry.name, NORMAL, colour, fontweight="bold")
    end = _right(name) + 0.1
    if entry.formula:
        end = _right(_write(figure, end, y, f"f(x) = {entry.formula}", NORMAL, colours.ink))
    if entry.derivative and end < second - 0.1:
        slope = _write(figure, second, y, f"f′(x) = {entry.derivative}", NORMAL, colours.ink)
        slope.set_visible(_right(slope) < width)


def _write(
    figure: Figure, x: float, y: float, line: str, size: float, colour: str, **more: Any
) -> Any:
    width, height = figure.get_size_inches()
    return figure.text(x / width, y / height, line, fontsize=size, color=colour, **more)


def _right(text: Any) -> float:
    """Where a text ends, in inches."""
    return float(text.get_window_extent().x1 / text.figure.dpi)


def _key(figure: Figure, text: Words, colours: Theme) -> None:
    """Explains both marks, above the right panel's end."""
    from matplotlib.lines import Line2D  # an extra, as in canvas.new_figure

    marks = [
        Line2D([], [], marker="o", linestyle="", color=colours.faint, markersize=size, mfc=fill)
        for size, fill in ((3.2, colours.faint), (5.0, colours.background))
    ]
    figure.legend(
        marks,
        (text.key_minimum, text.key_zero),
        loc="upper right",
        bbox_to_anchor=((WIDTH - 0.05) / WIDTH, 1.0),
        ncols=2,
        frameon=False,
        fontsize=SMALL,
        labelcolor=colours.faint,
        handletextpad=0.1,
        columnspacing=1.0,
    )


def summary(
    lowest: Sequence[Place], zero: Sequence[Place], span: tuple[float, float], text: Words
) -> list[str]:
    """Minima and zeros in words.

    Args:
        lowest: The minima.
        zero: The zeros.
        span: The range of x.
        text: The language.

    Returns:
        Phrases such as "min −0.27846 at x = −1.2785" and "zero at x = 0".
    """
    parts = []
    for place in lowest if len(lowest) <= 2 else ():
        where = spots([place], span, text)
        parts.append(text.minimum.format(value=number(place.value), place=where))
    if len(lowest) > 2:
        best = min(lowest, key=lambda place: place.value)
        value, where = number(best.value), spots([best], span, text)
        parts.append(text.minima.format(count=len(lowest), value=value, place=where))
    if not lowest:
        parts.append(text.no_minimum)
    if len(zero) > 4:
        return [*parts, text.zeros.format(count=len(zero))]
    return [*parts, text.zero.format(places=spots(zero, span, text)) if zero else text.no_zero]


def spots(places: Sequence[Place], span: tuple[float, float], text: Words) -> str:
    """Where places are, e.g. "x = −1, 0", or "x ≤ 0" for what is flat to the range's end."""
    points = [number(place.low) for place in places if not place.flat]
    parts = [f"x = {text.separator.join(points)}"] if points else []
    for place in places:
        low, high = number(place.low), number(place.high)
        if not place.flat:
            continue
        if place.low <= span[0] and place.high >= span[1]:
            parts.append(text.everywhere)
        elif place.low <= span[0]:
            parts.append(f"x ≤ {high}")
        elif place.high >= span[1]:
            parts.append(f"x ≥ {low}")
        else:
            parts.append(f"{low} ≤ x ≤ {high}")
    return text.separator.join(parts)

"""What the tutorial draws: which positions a part mixes, and how gradients fade with depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from mlpkit.figures.charts import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Chart, Label, scale_over, tip
from mlpkit.figures.experts import Table, draw_table
from mlpkit.figures.labels import words as known_language

HEIGHT = 300.0
LEGEND = 18.0
Part = Callable[[Tensor], Tensor]


def influence(part: Part, x: Tensor, position: int) -> list[float]:
    """How far each position's output moves when one position's input changes.

    Args:
        part: Maps (B, S, H) to (B, S, H).
        x: The input (B, S, H).
        position: The position whose input becomes its negative.

    Returns:
        For each of the S positions the length of the change over the largest one, in [0, 1]; 0,
        but for rounding, where nothing of that position arrives.
    """
    changed = x.clone()
    changed[:, position] = -changed[:, position]
    with torch.no_grad():
        moved = (part(changed) - part(x)).norm(dim=(0, 2))  # (S,)
    return [float(value / moved.max()) if value else 0.0 for value in moved]


def plot_influence(
    parts: Mapping[str, Part], x: Tensor, position: int, *, lang: str = "en", dark: bool = False
) -> Chart:
    """Draws ``influence`` for several parts, a row for each and a column for each position.

    Args:
        parts: Name to what maps (B, S, H) to (B, S, H).
        x: The input (B, S, H).
        position: The position whose input changes, counted from 0.
        lang: "en" or "zh".
        dark: Whether its background is dark.

    Raises:
        LanguageError: There is no such language.
    """
    known_language(lang)
    table = Table(
        rows=list(parts),
        columns=[str(number) for number in range(x.shape[1])],
        cells=[influence(part, x, position) for part in parts.values()],
        full=1.0,
        row_name={"en": "part", "zh": "部件"},
        column_name={
            "en": f"position; the input of position {position} is changed",
            "zh": f"位置；只改动位置 {position} 的输入",
        },
    )
    title = {"en": "where a change arrives", "zh": "改动传到哪些位置"}
    return draw_table(table, title=title, langs=(lang,), dark=dark)


def gradient_norms(layers: Sequence[nn.Module], x: Tensor) -> list[float]:
    """The gradient that reaches the input of each layer of a stack.

    Args:
        layers: From first to last; each takes what the one before it gives.
        x: The input of the first.

    Returns:
        For each layer the norm of the gradient at its input, over that at the last output, where a
        loss has put a random direction. In a stack that passes gradients on it stays near 1.
    """
    inputs = [x.detach().requires_grad_()]
    for layer in layers:
        inputs.append(layer(inputs[-1]))
    # not the output itself, whose zeros behind a ReLU are where no gradient passes either
    direction = torch.randn(
        inputs[-1].shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0)
    )
    gradients = torch.autograd.grad(inputs[-1], inputs[:-1], direction)
    return [float(gradient.norm() / direction.norm()) for gradient in gradients]


def plot_gradients(
    stacks: Mapping[str, Sequence[float]], *, lang: str = "en", dark: bool = False
) -> Chart:
    """Draws gradients against the layer that they reach, on a logarithmic scale.

    Args:
        stacks: Name to a positive number for each layer; see ``gradient_norms``.
        lang: "en" or "zh".
        dark: Whether its background is dark.

    Raises:
        LanguageError: There is no such language.
    """
    known_language(lang)
    label: Label = {"en": "gradient at a layer's input", "zh": "到达该层输入的梯度"}
    height = HEIGHT + LEGEND
    chart = Chart(width=WIDTH, height=height, title=label, langs=(lang,), dark=dark)
    deepest = max(len(values) for values in stacks.values())
    x = scale_over([1, deepest], LEFT, WIDTH - RIGHT, margin=0.02)
    every = [value for values in stacks.values() for value in values]
    y = scale_over(every, HEIGHT - BOTTOM, TOP, log=True)
    chart.axes(x, y, x_label={"en": "layer", "zh": "层"}, y_label=label)
    for index, (name, values) in enumerate(stacks.items()):
        places = [(x(layer), y(value)) for layer, value in enumerate(values, start=1)]
        line = " ".join(f"{left:g},{top:g}" for left, top in places)
        chart.add(f'<g class="series s{index}"><polyline class="line" points="{line}"/>')
        for (left, top), (layer, value) in zip(places, enumerate(values, start=1), strict=True):
            heard = tip(f"{name}, {layer}: {value:.3g}")
            chart.add(f'<circle class="dot" cx="{left:g}" cy="{top:g}" r="2.8">{heard}</circle>')
        start = LEFT + index * (WIDTH - LEFT) / len(stacks)
        chart.add(f'<path class="line" d="M{start:g} {HEIGHT + 4:g}h22"/></g>')
        chart.text(start + 28, HEIGHT + 8, name)
    return chart

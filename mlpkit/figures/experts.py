"""What the experts of a run do: load, pairs, and categories of text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlpkit.figures.charts import Chart, Label, clipped, tip

FEW = 16  # tokens of a category below which its lift is chance
MOST_PAIRS = 64  # experts whose pairs are drawn: 4,096 cells
CATEGORIES = {
    **{"space": "空格", "newline": "换行", "other": "其他", "number": "数字", "keyword": "关键字"},
    **{"name": "名称", "string": "字符串", "comment": "注释", "operator": "运算符"},
    **{"function_word": "虚词", "word": "单词", "capitalised": "大写词", "cjk": "中日韩"},
    **{"punctuation": "标点", "end": "文末"},
}


@dataclass(frozen=True, kw_only=True)
class Table:
    """Numbers in rows and columns.

    Args:
        rows: Names.
        columns: Names.
        cells: A row of numbers for each row; None where there is none.
        full: The number that is darkest.
        row_name: What a row is.
        column_name: What a column is.
        percent: Whether numbers are shares, written in percent.
    """

    rows: Sequence[Label]
    columns: Sequence[Label]
    cells: Sequence[Sequence[float | None]]
    full: float
    row_name: Label
    column_name: Label
    percent: bool = False


def read_mixture(run: str | Path) -> dict[str, Any]:
    """The analysis of a run's experts.

    Args:
        run: The run's directory.

    Raises:
        OSError: It has none: a dense model, or a run that has not ended.
        ValueError: The file is damaged.
    """
    content: dict[str, Any] = json.loads((Path(run) / "mixture.json").read_text("utf-8"))
    return content


def plot_expert_load(
    mixture: Mapping[str, Any], *, langs: Sequence[str] = ("en",), dark: bool = False
) -> Chart:
    """Draws how often each expert of each layer is used, as a multiple of its fair share.

    Args:
        mixture: The analysis; see ``read_mixture``.
        langs: The languages of its texts, "en" and "zh".
        dark: Whether a file of it is dark.
    """
    layers: Mapping[str, Any] = mixture["layers"]
    most = max((layer["num_experts"] for layer in layers.values()), default=0)
    cells = [_over_fair_share(layer["load"], most) for layer in layers.values()]
    table = Table(
        rows=[layer_label(name) for name in layers],
        columns=[str(number) for number in range(most)],
        cells=cells,
        full=max([2.0, *(v for row in cells for v in row if v is not None)]),
        row_name={"en": "layer", "zh": "层"},
        column_name={"en": "expert", "zh": "专家"},
    )
    title = {"en": "load over fair share", "zh": "负载与均分之比"}
    return draw_table(table, title=title, langs=langs, dark=dark)


def plot_co_activation(
    mixture: Mapping[str, Any],
    layer: str,
    *,
    langs: Sequence[str] = ("en",),
    dark: bool = False,
) -> Chart:
    """Draws, of the tokens of each expert, the share that each other one has too.

    Args:
        mixture: The analysis; see ``read_mixture``.
        layer: The layer's name, such as "layers.2.ffn".
        langs: The languages of its texts, "en" and "zh".
        dark: Whether a file of it is dark.
    """
    found = mixture["layers"][layer]
    size = min(found["num_experts"], MOST_PAIRS)
    shares = found["co_activation"]["conditional"]
    cells = [[None if i == j else shares[i][j] for j in range(size)] for i in range(size)]
    table = Table(
        rows=[str(number) for number in range(size)],
        columns=[str(number) for number in range(size)],
        cells=cells,
        full=max([0.01, *(v for row in cells for v in row if v is not None)]),
        row_name={"en": "of expert", "zh": "该专家"},
        column_name={"en": "tokens that this one has too", "zh": "同时选中的专家"},
        percent=True,
    )
    title = {"en": f"shared tokens, {layer}", "zh": f"共同激活，{layer}"}
    return draw_table(table, title=title, langs=langs, dark=dark)


def plot_expert_categories(
    mixture: Mapping[str, Any],
    layer: str,
    *,
    langs: Sequence[str] = ("en",),
    dark: bool = False,
) -> Chart:
    """Draws how many times as often as uniform each expert takes each category of text.

    Categories of fewer than 16 tokens are left out.

    Args:
        mixture: The analysis; see ``read_mixture``.
        layer: The layer's name, such as "layers.2.ffn".
        langs: The languages of its texts, "en" and "zh".
        dark: Whether a file of it is dark.
    """
    found = mixture["layers"][layer]
    title = {"en": f"lift over uniform, {layer}", "zh": f"相对均匀的倍数，{layer}"}
    if not found["categories"]:
        return Chart(width=300, height=60, title=title, langs=langs, dark=dark).nothing()
    tokens = mixture["category_tokens"]
    used = [number for number, count in enumerate(tokens) if count >= FEW]
    lifts = found["categories"]["lift_over_uniform"]
    table = Table(
        rows=[str(number) for number in range(found["num_experts"])],
        columns=[category_label(mixture["categories"][number]) for number in used],
        cells=[[row[number] for number in used] for row in lifts],
        full=max(found["num_experts"] / found["num_experts_per_tok"], 1.0),
        row_name={"en": "expert", "zh": "专家"},
        column_name={"en": "category", "zh": "类别"},
    )
    return draw_table(table, title=title, langs=langs, dark=dark)


def draw_table(
    table: Table, *, title: Label, langs: Sequence[str] = ("en",), dark: bool = False
) -> Chart:
    """Draws numbers as cells, the darker the larger, with the number where there is room.

    Args:
        table: The numbers.
        title: What the chart shows.
        langs: The languages of its texts.
        dark: Whether a file of it is dark.
    """
    wide, tall = _cell_size(table)
    left = 20 + 6.6 * max(_length(name) for name in (*table.rows, table.row_name))
    top = 48.0
    chart = Chart(
        width=left + wide * len(table.columns) + 16,
        height=top + tall * len(table.rows) + 8,
        title=title,
        langs=langs,
        dark=dark,
    )
    chart.text(left, 16, table.column_name, kind="strong")
    chart.text(left - 8, top - 10, table.row_name, kind="strong", anchor="end")
    every = 1 if wide >= 16 else 8
    for number, name in enumerate(table.columns):
        if number % every == 0:
            chart.text(left + wide * (number + 0.5), top - 10, name, kind="tick", anchor="middle")
    for line, row in enumerate(table.cells):
        if line % (1 if tall >= 10 else 8) == 0:
            base = top + tall * (line + 0.5) + 3.5
            chart.text(left - 8, base, table.rows[line], kind="tick", anchor="end")
        for column, value in enumerate(row):
            box = (left + wide * column, top + tall * line, wide, tall)
            _draw_cell(chart, table, (line, column), value, box)
    return chart


def layer_label(name: str) -> str:
    """A layer's name, short: "2" for layers.2.ffn, else the name itself."""
    parts = name.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == "layers" else clipped(name, 24)


def category_label(name: str) -> Label:
    """A category's name in both languages; a source's own has one."""
    return {"en": name.replace("_", " "), "zh": CATEGORIES[name]} if name in CATEGORIES else name


def _draw_cell(
    chart: Chart,
    table: Table,
    place: tuple[int, int],
    value: float | None,
    box: tuple[float, float, float, float],
) -> None:
    left, top, wide, tall = box
    frame = f'x="{left:g}" y="{top:g}" width="{wide:g}" height="{tall:g}"'
    if value is None:
        return chart.add(f'<rect class="empty" {frame}/>')
    name = f"{_english(table.rows[place[0]])} × {_english(table.columns[place[1]])}"
    shown = f"{100 * value:.0f} %" if table.percent else f"{value:.2f}"
    # at most 0.55, so that ink stays readable on it in light and in dark
    opacity = f"{0.55 * min(1.0, value / table.full):.3f}"
    words = tip(f"{name}: {shown}")
    chart.add(f'<rect class="cell" fill-opacity="{opacity}" {frame}>{words}</rect>')
    if wide >= 34:
        short = shown.removesuffix(" %")
        chart.text(left + wide / 2, top + tall / 2 + 3.5, short, anchor="middle")
    return None


def _cell_size(table: Table) -> tuple[float, float]:
    """Width and height in pixels: room for numbers in up to 16 columns, a stripe in hundreds."""
    sizes, count = ((16, 38.0), (32, 20.0), (64, 11.0)), len(table.columns)
    wide = next((size for most, size in sizes if count <= most), 5.0)
    named = max((_length(name) for name in table.columns), default=1)
    wide = max(wide, 5.8 * named + 8) if named > 3 else wide
    return wide, next((t for most, t in ((16, 24.0), (64, 13.0)) if len(table.rows) <= most), 6.0)


def _length(label: Label) -> int:
    # a Chinese character is as wide as two letters
    words = [label] if isinstance(label, str) else list(label.values())
    return max(sum(2 if ord(c) > 0x2E7F else 1 for c in word) for word in words)


def _english(label: Label) -> str:
    return label if isinstance(label, str) else label["en"]


def _over_fair_share(load: Sequence[int], most: int) -> list[float | None]:
    fair = sum(load) / len(load)
    known: list[float | None] = [count / fair if fair else 0.0 for count in load]
    return known + [None] * (most - len(load))

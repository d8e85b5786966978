"""The ratios as a picture: a row for each case, a dot for each contender."""

from __future__ import annotations

from collections.abc import Sequence

from mlpkit.figures.charts import Chart, clipped, scale_over, short, tip

from .cases import Case, own

WIDTH, ROW, LEFT, TOP, BOTTOM = 820.0, 22.0, 350.0, 34.0, 46.0
KINDS = (("mlpkit", "s0"), ("peers", "s1"), ("dense of equal FLOPs", "s2"))


def drawn(cases: Sequence[Case]) -> Chart:
    """Times over mlpkit's, on a logarithmic axis; left of 1 is faster than mlpkit."""
    rows = [case for case in cases if case.ratio is not None]
    height = TOP + BOTTOM + ROW * max(1, len(rows))
    chart = Chart(width=WIDTH, height=height, title="Contenders over mlpkit, lower is better")
    if not rows:
        return chart.nothing()
    shown = [ratios(case) for case in rows]
    x = scale_over([v for row in shown for v in row.values()], LEFT, WIDTH - 20, log=True)
    base = height - BOTTOM
    for value in x.ticks(6):
        chart.add(f'<path class="grid" d="M{x(value)} {TOP}V{base}"/>')
        chart.text(x(value), base + 15, short(value), kind="tick", anchor="middle")
    chart.text((x.start + x.end) / 2, base + 32, "over mlpkit, log scale", anchor="middle")
    for index, (case, values) in enumerate(zip(rows, shown, strict=True)):
        y = TOP + ROW * (index + 0.5)
        chart.text(LEFT - 10, y + 4, clipped(case.title, 62), anchor="end")
        for name, value in values.items():
            mark = tip(f"{name}: {value:.2f}")
            dot = f'<circle class="dot" cx="{x(value)}" cy="{y:.1f}" r="4">{mark}</circle>'
            chart.add(f'<g class="{colour(case, name)}">{dot}</g>')
    for index, (label, kind) in enumerate(KINDS):
        place = LEFT + 150 * index
        chart.add(f'<g class="{kind}"><circle class="dot" cx="{place}" cy="14" r="4"/></g>')
        chart.text(place + 9, 18, label)
    return chart


def ratios(case: Case) -> dict[str, float]:
    """Each contender's time or bytes over ours; of rates ours over the contender's."""
    reference = case.values[case.ours or ""]
    if case.unit == "tokens/s":
        return {name: reference / value for name, value in case.values.items()}
    return {name: value / reference for name, value in case.values.items()}


def colour(case: Case, name: str) -> str:
    """The class of a contender's dot."""
    if name == case.floor:
        return KINDS[2][1]
    return KINDS[0][1] if own(name) else KINDS[1][1]

"""Charts of compared runs: places by arithmetic, exact values in their marks, safe in any name."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from mlpkit.figures.canvas import PictureError
from mlpkit.figures.charts import Chart, Scale, clipped, scale_over, short, tick
from mlpkit.figures.comparison import (
    Curve,
    Effect,
    Grid,
    Point,
    draw_curves,
    draw_effects,
    draw_front,
    draw_heatmap,
)

SVG = "{http://www.w3.org/2000/svg}"
LABELS = {"title": "t", "x_label": {"en": "tokens", "zh": "数"}, "y_label": "loss"}


def parsed(chart):
    return ElementTree.fromstring(chart.file())


def titles(chart):
    return [element.text for element in parsed(chart).iter(f"{SVG}title")]


def texts(chart):
    return [element.text for element in parsed(chart).iter(f"{SVG}text")]


def test_a_scale_puts_values_where_arithmetic_puts_them():
    scale = Scale(low=0, high=10, start=100, end=0)
    assert [scale(v) for v in (0, 2.5, 10)] == [100, 75, 0]
    logarithmic = Scale(low=1, high=10000, start=0, end=400, log=True)
    assert [logarithmic(v) for v in (1, 10, 100, 10000)] == [0, 100, 200, 400]
    assert Scale(low=3, high=3, start=0, end=10)(3) == 5


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (1.452, 1.566, [1.46, 1.48, 1.5, 1.52, 1.54, 1.56]),
        (-0.3, 0.1, [-0.3, -0.2, -0.1, 0, 0.1]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_and_within(low, high, ticks):
    assert Scale(low=low, high=high, start=0, end=1).ticks() == pytest.approx(ticks)


def test_ticks_of_a_logarithm_are_powers_of_ten_with_steps_between_where_few():
    assert Scale(low=1, high=1000, start=0, end=1, log=True).ticks() == [1, 10, 100, 1000]
    narrow = Scale(low=2e5, high=3e6, start=0, end=1, log=True).ticks()
    assert narrow == [3e5, 1e6, 3e6]
    tiny = Scale(low=8.2e5, high=8.3e5, start=0, end=1, log=True).ticks()
    assert all(8.2e5 <= value <= 8.3e5 for value in tiny)
    assert len(tiny) >= 3


def test_a_scale_over_one_value_or_several_has_a_margin():
    one = scale_over([5.0], 0, 10)
    assert one.low < 5 < one.high
    many = scale_over([1, 2, 3], 0, 1, margin=0.1)
    assert (many.low, many.high) == pytest.approx((0.8, 3.2))
    ratios = scale_over([1, 100], 0, 1, log=True, margin=0.5)
    assert (ratios.low, ratios.high) == pytest.approx((0.1, 1000))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        *((0, "0"), (820480, "820k"), (999.4, "999.4"), (999_900, "1M"), (2.887e6, "2.89M")),
        *((1.45e13, "14.5T"), (-1234, "−1.23k"), (0.12346, "0.1235"), (float("nan"), "nan")),
        *((1e21, "1000E"), (999.96, "1k")),
    ],
)
def test_a_number_is_written_short(value, written):
    assert short(value) == written


@pytest.mark.parametrize("high", [115_070, 115_900, 117_000, 1.15008e9 + 3, 2.30012])
@pytest.mark.parametrize("below", [1e-3, 3e-5, 1e-6, 2e-9])
@pytest.mark.parametrize("log", [False, True])
def test_ticks_of_nearly_equal_values_are_told_apart(high, below, log):
    ticks = scale_over([high * (1 - below), high], 0, 1, log=log).ticks()
    written = [tick(value) for value in ticks]
    assert len(set(written)) == len(written) >= 3
    powers = {"k": 1e3, "M": 1e6, "G": 1e9}
    read = [float(text.rstrip("kMG")) * powers.get(text[-1], 1) for text in written]
    assert read == pytest.approx(ticks, rel=1e-12)


def test_the_points_of_a_curve_carry_its_exact_values():
    curve = Curve(
        name="moe", x=[1e6, 2e6], y=[1.52345, 1.45], low=[1.5, 1.4], high=[1.6, 1.5], index=8
    )
    chart = draw_curves([curve], **LABELS)
    assert titles(chart) == ["moe: 1.45 [1.4, 1.5] @ 2M", "moe: 1.5234 [1.5, 1.6] @ 1M"]
    line = next(e for e in parsed(chart).iter(f"{SVG}polyline"))
    (x0, y0), (x1, y1) = (map(float, p.split(",")) for p in line.get("points").split())
    assert x0 < x1
    assert y0 < y1  # lower is further down
    assert line.get("stroke-dasharray")  # the eighth colour is the first one, dashed
    group = next(e for e in parsed(chart).iter(f"{SVG}g") if "series" in e.get("class", ""))
    assert group.get("class") == "series v8 s1"
    assert "moe" in texts(chart)
    assert "tokens" in texts(chart)


def test_an_untrained_first_point_does_not_flatten_the_rest():
    y = [8.2, 1.6, 1.55, 1.52, 1.51, 1.5]
    chart = draw_curves([Curve(name="a", x=range(6), y=y)], **LABELS)
    line = next(e for e in parsed(chart).iter(f"{SVG}polyline")).get("points")
    heights = [float(point.split(",")[1]) for point in line.split()]
    assert heights[0] < 0  # above the frame, where the inner picture cuts it off
    assert max(heights[1:]) - min(heights[1:]) > 200


def test_gaps_and_absent_curves_are_left_out():
    curves = [
        Curve(name="a", x=[0, 1, 2], y=[2.0, math.nan, 1.0]),
        Curve(name="b", x=[], y=[], index=1),
    ]
    chart = draw_curves(curves, **LABELS)
    assert len(titles(chart)) == 2
    assert "b" not in texts(chart)
    assert "nan" not in chart.file()
    assert texts(draw_curves([], **LABELS)) == ["–"]


def test_a_front_is_a_staircase_through_its_points():
    points = [
        Point(name="cheap", x=1, y=3, low=2.9, high=3.1, front=True),
        Point(name="good", x=2, y=1, front=True, index=1),
        Point(name="beaten", x=2, y=2, index=2),
    ]
    chart = draw_front(points, **LABELS)
    path = next(e for e in parsed(chart).iter(f"{SVG}path") if e.get("class") == "front")
    assert re.fullmatch(r"M[\d.]+ [\d.]+H[\d.]+V[\d.]+", path.get("d"))  # across, then down
    assert titles(chart)[:2] == ["cheap: 3 [2.9, 3.1] @ 1", "good: 1 @ 2"]
    faster = draw_front(points, more_is_better=True, **LABELS)
    path = next(e for e in parsed(faster).iter(f"{SVG}path") if e.get("class") == "front")
    assert re.fullmatch(r"M[\d.]+ [\d.]+V[\d.]+H[\d.]+", path.get("d"))
    assert texts(draw_front([], **LABELS)) == ["–"]


def test_names_of_points_do_not_cover_each_other():
    points = [Point(name=f"variant {n}", x=1, y=1 + n / 1e4, index=n) for n in range(30)]
    chart = draw_front(points, **LABELS)
    places = [
        (float(e.get("x")), float(e.get("y")))
        for e in parsed(chart).iter(f"{SVG}text")
        if e.text.startswith("variant")
    ]
    assert len(places) < 30
    heights = sorted(y for _, y in places)
    assert all(b - a > 12 for a, b in pairwise(heights))
    assert len(titles(chart)) == 30  # all can still be pointed at


def test_a_heatmap_writes_its_numbers_and_marks_the_best():
    grid = Grid(
        x_name="act", y_name="ffn", x=["a", "b"], y=["c", "d"], cells=[[1.5, 1.25], [None, 2]]
    )
    chart = draw_heatmap(grid, title="t")
    assert titles(chart) == ["c × a: 1.5", "c × b: 1.25", "d × a: –", "d × b: 2"]
    shown = texts(chart)
    assert all(number in shown for number in ("1.5000", "1.2500", "2.0000", "–", "act", "ffn"))
    cells = [e for e in parsed(chart).iter(f"{SVG}rect") if e.get("class") == "cell"]
    opacities = [float(cell.get("fill-opacity")) for cell in cells]
    assert opacities == pytest.approx([0.05 + 0.5 * 2 / 3, 0.55, 0.05], abs=1e-3)
    (best,) = (e for e in parsed(chart).iter(f"{SVG}rect") if e.get("class") == "best")
    assert float(best.get("x")) == float(cells[1].get("x")) + 2


def test_effects_have_a_mark_and_an_interval_for_each_level():
    effect = Effect(
        axis="ffn", levels=["a", "b"], means=[1.5, 1.4], low=[1.4, 1.3], high=[1.6, 1.5]
    )
    alone = Effect(axis="act", levels=["c"], means=[1.45], low=[math.nan], high=[math.nan])
    chart = draw_effects([effect, alone], title="t", x_label="loss")
    assert titles(chart) == ["ffn=a: 1.5 [1.4, 1.6]", "ffn=b: 1.4 [1.3, 1.5]", "act=c: 1.45"]
    circles = [float(e.get("cx")) for e in parsed(chart).iter(f"{SVG}circle")]
    assert circles[1] < circles[2] < circles[0]
    whiskers = [e for e in parsed(chart).iter(f"{SVG}path") if e.get("class") == "whisker"]
    assert len(whiskers) == 2


def test_hostile_names_stay_text_in_a_file():
    name = '</text><script>x</script>"&\x00\x1b \ud800'
    charts = [
        draw_curves([Curve(name=name, x=[0, 1], y=[1, 2])], **LABELS),
        draw_front([Point(name=name, x=1, y=1)], **LABELS),
        draw_heatmap(Grid(x_name=name, y_name=name, x=[name], y=[name], cells=[[1]]), title=name),
        draw_effects([Effect(axis=name, levels=[name], means=[1])], title=name, x_label=name),
    ]
    for chart in charts:
        tags = {element.tag for element in parsed(chart).iter()}
        assert f"{SVG}script" not in tags
        assert any("<script>" in text for text in (*texts(chart), *titles(chart)))
        chart.file().encode()  # also half characters


def test_a_chart_in_both_languages_holds_each_text_twice_where_they_differ():
    curve = Curve(name="a", x=[0, 1], y=[1, 2])
    both = draw_curves([curve], langs=("en", "zh"), **LABELS).inline()
    assert '<text class="" lang="en"' in both
    assert ">数</text>" in both
    assert both.count(">loss</text>") == 1
    assert "tokens" not in draw_curves([curve], langs=("zh",), **LABELS).file()
    assert "<style>" not in both


def test_a_chart_shows_itself_in_a_notebook_in_light_and_dark(tmp_path):
    light, dark = (
        draw_curves([Curve(name="a", x=[0, 1], y=[1, 2])], dark=dark, **LABELS) for dark in (0, 1)
    )
    assert light._repr_svg_() == light.file()
    assert "#ffffff" in light.file()
    assert "#0d1117" in dark.file()
    assert "var(" not in light.file()  # other programs know no variables
    light.save(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text() == light.file()
    with pytest.raises(PictureError, match=r"a\.png"):
        light.save(tmp_path / "a.png")
    with pytest.raises(PictureError, match="No such file"):
        light.save(tmp_path / "none" / "a.svg")


def test_a_long_name_is_cut_with_an_ellipsis():
    assert (clipped("abcdef", 6), clipped("abcdefg", 6)) == ("abcdef", "abcde…")


def test_an_empty_chart_is_still_a_picture():
    chart = Chart(width=10, height=10, title="t").nothing()
    assert parsed(chart).get("aria-label") == "t"

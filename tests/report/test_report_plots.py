"""Charts from runs: the values of the files in their marks, for pages, notebooks and frames."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from synthetic import FAILING, MOE, NAIVE, SWIGLU, Look, write_run, write_sweep

from mlpkit import figures
from mlpkit.figures.labels import LanguageError
from mlpkit.report import compare, find_runs, load_runs
from mlpkit.report.notebook import ChartError, comparison_of
from mlpkit.report.plots import axis_pairs, curves_of, draw_all, points_of, smooth
from mlpkit.report.runs import NoRunsError

GELU = Look(overrides=("ffn=swiglu", "activation=gelu"), bpb=1.49)
NAIVE_GELU = Look(overrides=("ffn=naive", "activation=gelu"), bpb=1.53)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    looks = (SWIGLU, NAIVE, GELU, NAIVE_GELU, MOE, FAILING)
    return write_sweep(tmp_path_factory.mktemp("runs"), looks)


@pytest.fixture(scope="module")
def comparison(sweep):
    return compare(find_runs(sweep))


def titles(chart):
    root = ElementTree.fromstring(chart.file())
    return [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]


def test_smoothing_is_a_centred_mean_that_narrows_at_the_ends():
    values = np.random.default_rng(0).normal(size=130)
    half = 130 // 40
    expected = []
    for place in range(130):
        reach = min(half, place, 129 - place)
        expected.append(values[place - reach : place + reach + 1].mean())
    np.testing.assert_allclose(smooth(values), expected, rtol=1e-12)
    assert smooth(values)[0] == pytest.approx(values[0])
    np.testing.assert_allclose(smooth(values[:5]), values[:5])


@pytest.mark.parametrize("x", ["tokens", "flops", "seconds"])
def test_the_points_of_a_curve_are_the_means_of_the_run_files(sweep, comparison, x):
    (curve,) = (c for c in curves_of(comparison, x=x, y="val_bpb") if c.name.startswith("moe"))
    lines, each = {}, None
    for path in sweep.parents[2].glob("*/result.json"):
        result = json.loads(path.read_text())
        if result["ffn"] == "moe" and result["status"] == "ok":
            each = result["model"]["training_flops_per_token"]
            for line in map(json.loads, path.with_name("metrics.jsonl").read_text().splitlines()):
                if "val_bpb" in line:
                    lines.setdefault(line["step"], []).append(line)
    assert len(lines) == 6
    for number, (_, found) in enumerate(sorted(lines.items())):
        costs = [n["tokens"] * each if x == "flops" else n[x] for n in found]
        scores = [n["val_bpb"] for n in found]
        assert curve.x[number] == pytest.approx(np.mean(costs))
        assert curve.y[number] == pytest.approx(np.mean(scores))
        assert (curve.low[number], curve.high[number]) == (min(scores), max(scores))


def test_whiskers_are_one_standard_deviation_and_the_front_holds_what_nothing_beats(comparison):
    points = {point.name: point for point in points_of(comparison, "tokens_per_second")}
    for row in comparison.rows:
        if row.metric is not None:
            point = points[row.variant.name]
            assert (point.high - point.low) / 2 == pytest.approx(row.metric.sd)
            beaten = any(
                other.x >= point.x and other.y <= point.y and other != point
                for other in points.values()
            )
            assert point.front == (not beaten)


def test_every_chart_that_has_something_to_show_is_drawn(comparison):
    names = set(draw_all(comparison))
    assert {f"curves-{y}-{x}" for y in ("val_bpb", "loss") for x in ("tokens", "flops")} <= names
    assert {"front-active_parameters", "effects"} <= names
    assert any(re.fullmatch("heatmap-(ffn-activation|activation-ffn)", name) for name in names)


def test_a_line_of_variants_makes_no_heatmap(tmp_path):
    write_sweep(tmp_path, (SWIGLU, NAIVE), seeds=(0,))
    lone = compare(find_runs(tmp_path))
    assert axis_pairs(lone) == []
    assert "effects" not in draw_all(lone)
    with pytest.raises(ChartError, match="no two axes make a grid"):
        figures.plot_heatmap(tmp_path)


def test_the_notebook_functions_take_paths_frames_rows_runs_and_comparisons(sweep, comparison):
    frames = load_runs(sweep)
    rows = frames.runs[frames.runs["status"] == "ok"]
    sources = (sweep, str(sweep), [sweep], comparison, find_runs(sweep), frames, rows)
    drawn = [titles(figures.plot_curves(source)) for source in sources]
    assert len(drawn[0]) == 30  # five variants, six validations
    for titled in drawn[1:]:  # rows hold no failed run, and may be named with fewer words
        assert {t.partition(":")[2] for t in titled} == {t.partition(":")[2] for t in drawn[0]}
    moe = frames.runs[frames.runs["ffn.name"] == "moe"]
    assert {run.config["ffn"]["name"] for run in comparison_of(moe).runs} == {"moe"}


def test_the_other_notebook_functions_show_what_the_comparison_says(sweep, comparison):
    pareto = titles(figures.plot_pareto(sweep, cost="training_flops"))
    assert len(pareto) == sum(row.metric is not None for row in comparison.rows)
    cells = titles(figures.plot_heatmap(sweep, "ffn", "activation"))
    row = next(r for r in comparison.rows if r.variant.levels["activation"] == "gelu")
    assert any(t.endswith(f": {row.metric.mean:.5g}") for t in cells)
    assert titles(figures.plot_heatmap(comparison))
    assert len(titles(figures.plot_effects(sweep))) >= 4
    assert figures.plot_curves(sweep, lang="zh", dark=True)._repr_svg_().count("token 数") >= 1


def test_unknown_names_are_refused_with_the_known_ones(sweep, tmp_path):
    with pytest.raises(ChartError, match=r"unknown x 'token'.*tokens"):
        figures.plot_curves(sweep, x="token")
    with pytest.raises(ChartError, match=r"unknown cost 'flops'.*training_flops"):
        figures.plot_pareto(sweep, cost="flops")
    with pytest.raises(ChartError, match="unknown axis 'router'"):
        figures.plot_heatmap(sweep, "ffn", "router")
    with pytest.raises(LanguageError):
        figures.plot_effects(sweep, lang="fr")
    with pytest.raises(NoRunsError):
        figures.plot_curves(tmp_path)
    assert ChartError.exit_code == 2


def test_a_single_run_without_logged_costs_is_drawn_by_what_it_has(tmp_path):
    write_run(tmp_path / "a", SWIGLU)
    lines = [
        json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    ]
    bare = [{k: v for k, v in line.items() if k not in ("tokens", "seconds")} for line in lines]
    (tmp_path / "a" / "metrics.jsonl").write_text("\n".join(map(json.dumps, bare)))
    tokens = titles(figures.plot_curves(tmp_path))
    assert tokens[0].endswith("@ 4.096M")
    assert "[" not in tokens[0]  # one seed has no band
    assert titles(figures.plot_curves(tmp_path, x="seconds")) == []

"""The comparison: rows, verdicts, groups and warnings, recomputed from the run files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from synthetic import FAILING, GATED, MOE, NAIVE, SWIGLU, Look, write_run, write_sweep

from mlpkit.report.comparison import ComparisonError, compare
from mlpkit.report.runs import find_runs
from mlpkit.report.verdicts import STATEMENTS

MATCH = {"kind": "active_params", "to": "swiglu", "target": 8e5, "actual": 8e5, "residual": 0.001}
MATCHED = tuple(replace(look, match=MATCH) for look in (SWIGLU, GATED, NAIVE, MOE))


def keys(statements) -> list[str]:
    return [statement.key for statement in statements]


def statement(statements, key: str) -> dict:
    return dict(next(said for said in statements if said.key == key).values)


def results(folder, **overrides) -> dict[str, dict[int, dict]]:
    """Metrics by FFN and seed, read in another way than the report does."""
    found: dict[str, dict[int, dict]] = {}
    for path in folder.rglob("result.json"):
        result = json.loads(path.read_text())
        if result["status"] == "ok":
            found.setdefault(result["ffn"], {})[result["seed"]] = result["metrics"]
    return found


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return write_sweep(tmp_path_factory.mktemp("sweep"), (*MATCHED, replace(FAILING, match=MATCH)))


@pytest.fixture(scope="module")
def comparison(sweep):
    return compare(find_runs(sweep))


def test_rows_are_the_numbers_of_the_files(sweep, comparison):
    found = results(sweep.parents[2])
    for name, label in (("moe", "moe"), ("gated · activation=gelu", "gated"), ("naive", "naive")):
        row = comparison.row(name)
        scores = [metrics["val_bpb"] for metrics in found[label].values()]
        assert row.val_bpb.mean == pytest.approx(np.mean(scores))
        assert row.val_bpb.sd == pytest.approx(np.std(scores, ddof=1))
        speeds = [metrics["tokens_per_second"] for metrics in found[label].values()]
        assert row.tokens_per_second == pytest.approx(np.mean(speeds))
        assert row.tokens == 1000 * 32 * 128
        paired = [found[label][s]["val_bpb"] - found["swiglu"][s]["val_bpb"] for s in range(3)]
        assert row.difference.mean == pytest.approx(np.mean(paired))
    row = comparison.row("moe")
    assert (row.parameters, row.active_parameters) == (MOE.parameters, MOE.active)
    assert row.flops_per_token == 2 * MOE.active
    assert row.match_residual == 0.001


def test_intervals_are_those_of_the_pooled_two_way_model(sweep, comparison):
    found = results(sweep.parents[2])
    scores = np.array(
        [
            [found[ffn][seed]["val_bpb"] for seed in range(3)]
            for ffn in ("swiglu", "gated", "naive", "moe")
        ]
    )
    residual = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    sd = np.sqrt((residual**2).sum() / 6)
    (group,) = comparison.groups
    assert (group.noise.sd, group.noise.df) == (pytest.approx(sd), 6)
    d = comparison.row("naive").difference
    half = stats.t.ppf(0.975, 6) * sd * np.sqrt(2 / 3)
    assert (d.low, d.high) == pytest.approx((d.mean - half, d.mean + half))
    assert group.noise.detectable == pytest.approx(half)
    p = 2 * stats.t.sf(abs(scores[1:].mean(1) - scores[0].mean()) / (sd * np.sqrt(2 / 3)), 6)
    order = np.argsort(p)
    corrected = np.maximum.accumulate(p[order] * [3, 2, 1])
    names = ["gated · activation=gelu", "naive", "moe"]
    for index, value in zip(order, corrected, strict=True):
        assert comparison.row(names[index]).difference.p_holm == pytest.approx(min(1, value))


def test_verdicts_and_their_sentences(comparison):
    assert {row.variant.name: row.verdict for row in comparison.rows} == {
        "moe": "better",
        "swiglu": "baseline",
        "gated · activation=gelu": "indistinguishable",
        "naive": "worse",
        "moe · learning_rate=0.3": "no_verdict",
    }
    assert keys(comparison.verdict) == [
        *("runs", "best", "cost", "worse", "indistinguishable", "no_verdict", "noise"),
    ]
    best = statement(comparison.verdict, "best")
    row = comparison.row("moe")
    assert best["difference"] == row.difference.mean
    assert best["percent"] == pytest.approx(
        100 * row.difference.mean / comparison.row("swiglu").metric.mean
    )
    assert (best["variant"], best["baseline"], best["seeds"]) == ("moe", "swiglu", 3)
    assert best["p"] == row.difference.p_holm
    cost = statement(comparison.verdict, "cost")
    assert cost["parameters"] == pytest.approx(MOE.parameters / SWIGLU.parameters)
    assert statement(comparison.verdict, "runs") == {"ok": 12, "failed": 3, "other": 0, "total": 15}


def test_every_statement_is_declared_with_its_values(comparison, tmp_path):
    write_sweep(tmp_path / "a", (SWIGLU, NAIVE, MOE), seeds=(0, 1))
    write_run(tmp_path / "b", replace(NAIVE, extra={"data": {"fingerprint": "x"}}))
    (tmp_path / "b" / "metrics.jsonl").write_text("{")
    for found in (comparison, compare(find_runs(tmp_path))):
        reasons = [said for row in found.rows for said in (*row.reasons, *row.notes)]
        for said in (*found.verdict, *found.warnings, *reasons):
            assert set(said.values) == set(STATEMENTS[said.key]), said


def test_a_failed_run_is_shown_and_never_counted(comparison):
    row = comparison.row("moe · learning_rate=0.3")
    assert (row.n_ok, row.n_failed, row.n_other) == (0, 3, 0)
    assert (row.metric, row.difference, row.val_loss) == (None, None, None)
    assert keys(row.reasons) == ["no_score"]
    failed = statement(row.notes, "failed_runs")
    assert (failed["failed"], failed["total"]) == (3, 3)
    assert failed["error"].startswith("NonFiniteLossError")
    assert comparison.rows[-1] is row
    assert len(comparison.failures) == 3
    assert row.parameters == FAILING.parameters  # known from its start


def test_a_missing_seed_is_said_and_paired_away(tmp_path):
    sweep = write_sweep(tmp_path, MATCHED[:3], seeds=(0, 1, 2))
    jobs = json.loads(sweep.read_text())["jobs"]
    shutil.rmtree(tmp_path / "multirun" / jobs[8]["id"])  # naive, seed 2
    found = compare(find_runs(sweep))
    row = found.row("naive")
    assert (row.n_ok, row.n_other, row.verdict) == (2, 1, "worse")
    assert statement(found.warnings, "missing_seeds") == {"variants": {"naive": [2]}}
    assert statement(row.notes, "unfinished_runs") == {"statuses": {"missing": 1}}
    assert found.groups[0].noise.df == 3


def test_one_seed_gives_no_verdict(tmp_path):
    found = compare(find_runs(write_sweep(tmp_path, MATCHED[:3], seeds=(0,))))
    assert {row.verdict for row in found.rows} == {"baseline", "no_verdict"}
    assert "single_seed" in keys(found.row("naive").reasons)
    assert "one_seed" in keys(found.warnings)
    assert statement(found.verdict, "no_verdict")["why"] == ["single_seed"]
    d = found.row("naive").difference
    assert d.mean == pytest.approx(0.05, abs=0.03)
    assert (d.low, d.p, d.p_holm) == (None, None, None)


def test_a_single_seed_among_others_gives_no_verdict(tmp_path):
    write_sweep(tmp_path / "a", MATCHED[:3], seeds=(0, 1, 2))
    write_run(tmp_path / "b", MATCHED[3])
    found = compare(find_runs(tmp_path))
    row = found.row("moe")
    assert row.verdict == "no_verdict"
    assert statement(row.reasons, "single_seed") == {"variant": "moe", "seeds": [0]}
    assert found.row("naive").verdict == "worse"
    assert found.row("naive").difference.p_holm < found.row("moe").difference.p * 10


def test_two_seeds_are_enough_with_enough_variants_and_warned_of(tmp_path):
    found = compare(find_runs(write_sweep(tmp_path, MATCHED, seeds=(0, 1))))
    assert found.groups[0].noise.df == 3
    assert found.row("moe").verdict == "better"
    assert "two_seeds" in keys(found.warnings)


def test_unequal_budgets_are_not_ranked(tmp_path):
    looks = (
        SWIGLU,
        NAIVE,
        MOE,
    )  # nothing was matched, and the mixture has 3.5 times the parameters
    found = compare(find_runs(write_sweep(tmp_path, looks)))
    row = found.row("moe")
    assert row.verdict == "not_comparable"
    assert row.difference.mean < -0.04  # shown all the same
    assert row.difference.p_holm is None
    assert statement(row.reasons, "unmatched_budget") == {
        "measure": "parameters",
        "ratio": pytest.approx(MOE.parameters / SWIGLU.parameters),
        "limit": 0.02,
    }
    assert found.row("naive").verdict == "worse"  # within 2 %
    assert statement(found.warnings, "unmatched")["variants"] == ["moe"]
    assert "better" not in {row.verdict for row in found.rows}
    assert statement(found.verdict, "none_better")["baseline"] == "swiglu"


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ({"residual": 0.021}, ["unmatched_budget"]),
        ({"residual": -0.019}, []),
        ({"residual": None, "unmatched": "it has no width"}, []),  # equal by chance
    ],
)
def test_a_match_that_missed_is_not_comparable(tmp_path, change, reasons):
    looks = (MATCHED[0], replace(MATCHED[2], match=MATCH | change))
    found = compare(find_runs(write_sweep(tmp_path, looks)))
    assert keys(found.row("naive").reasons) == reasons


def test_what_has_no_width_says_why(tmp_path):
    match = {"kind": "params", "to": "swiglu", "unmatched": "kan has no width option"}
    look = replace(NAIVE, parameters=900_000, match=match)
    found = compare(find_runs(write_sweep(tmp_path, (SWIGLU, look))))
    row = found.row("naive")
    assert row.verdict == "not_comparable"
    assert keys(row.reasons) == ["no_width", "unmatched_budget"]
    assert row.reasons[0].values == {"reason": "kan has no width option"}


def test_a_budget_that_no_run_says_is_not_comparable(tmp_path):
    looks = (SWIGLU, replace(NAIVE, extra={"model": {}}))
    found = compare(find_runs(write_sweep(tmp_path, looks)))
    assert keys(found.row("naive").reasons) == ["unknown_budget"]
    assert found.row("naive").verdict == "not_comparable"


def test_a_failed_baseline_leaves_no_verdict_and_is_not_replaced(tmp_path):
    looks = (replace(SWIGLU, status="failed"), NAIVE)
    found = compare(find_runs(write_sweep(tmp_path, looks)))
    assert found.baseline == "swiglu"
    assert keys(found.row("swiglu").reasons) == ["no_score"]
    assert found.row("naive").verdict == "no_verdict"
    assert keys(found.row("naive").reasons) == ["baseline_without_score"]
    assert found.row("naive").metric.n == 3


def test_the_baseline_can_be_chosen(sweep, comparison):
    runs = find_runs(sweep)
    other = compare(runs, baseline="naive")
    assert other.baseline == "naive"
    assert other.row("swiglu").verdict == "better"
    assert other.row("swiglu").difference.mean == pytest.approx(
        -comparison.row("naive").difference.mean
    )
    assert compare(runs, baseline="gated").baseline == "gated · activation=gelu"
    assert compare(runs, baseline="moe").baseline == "moe"  # and not the one with another rate
    with pytest.raises(ComparisonError, match="'naiv'; did you mean 'naive'"):
        compare(runs, baseline="naiv")
    with pytest.raises(ComparisonError, match="unknown metric 'loss'"):
        compare(runs, metric="loss")


def test_what_was_matched_to_is_the_baseline(tmp_path):
    looks = tuple(
        replace(look, overrides=(*look.overrides, "match=params", "match_to=naive"))
        for look in MATCHED
    )
    assert compare(find_runs(write_sweep(tmp_path, looks))).baseline == "naive"


def test_without_swiglu_the_first_is_the_baseline(tmp_path):
    assert compare(find_runs(write_sweep(tmp_path, (NAIVE, MOE)))).baseline == "naive"


def test_groups_are_compared_apart(tmp_path):
    longer = ("training.max_steps=500",)
    looks = (
        *MATCHED[:3],
        *(replace(look, overrides=(*look.overrides, *longer)) for look in MATCHED[:2]),
    )
    found = compare(find_runs(write_sweep(tmp_path, looks)))
    assert len(found.groups) == 2
    assert [group.identity["tokens"] for group in found.groups] == [4096000, 2048000]
    assert [group.baseline for group in found.groups] == ["swiglu", "swiglu · max_steps=500"]
    assert statement(found.warnings, "several_groups") == {"count": 2, "differs": ["tokens"]}
    assert keys(found.verdict).count("group") == 2
    assert sum(row.verdict == "baseline" for row in found.rows) == 2
    own = [row.variant.group for row in found.rows]
    assert own == sorted(own)


def test_two_equal_variants_are_named(tmp_path):
    twin = replace(SWIGLU, overrides=("ffn=twin",))
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", SWIGLU, seed=seed)
        write_run(tmp_path / f"b{seed}", twin, seed=seed)
        source, goal = tmp_path / f"a{seed}" / "result.json", tmp_path / f"b{seed}" / "result.json"
        metrics = json.loads(source.read_text())["metrics"]
        goal.write_text(json.dumps(json.loads(goal.read_text()) | {"metrics": metrics}))
    found = compare(find_runs(tmp_path))
    assert statement(found.warnings, "identical")["variants"] == ["swiglu", "twin"]
    assert found.row("twin").verdict == "indistinguishable"
    assert found.row("twin").difference.p == 1


def test_no_noise_at_all_gives_no_verdict(tmp_path):
    for seed in range(2):
        for look in (SWIGLU, NAIVE):
            write_run(tmp_path / f"{look.overrides[0]}{seed}", look, seed=seed)
            path = tmp_path / f"{look.overrides[0]}{seed}" / "result.json"
            result = json.loads(path.read_text())
            result["metrics"]["val_bpb"] = look.bpb
            path.write_text(json.dumps(result))
    row = compare(find_runs(tmp_path)).row("naive")
    assert (row.verdict, keys(row.reasons)) == ("no_verdict", ["zero_noise"])


def test_different_machines_are_warned_of(tmp_path):
    write_run(tmp_path / "a", SWIGLU)
    write_run(tmp_path / "b", replace(SWIGLU, extra={"threads": 64}), seed=1)
    found = compare(find_runs(tmp_path))
    assert statement(found.warnings, "mixed") == {"what": "threads", "values": ["2", "64"]}


def test_better_per_token_and_later_per_second(tmp_path):
    slow = replace(MATCHED[3], bpb=1.505, speed=4000.0)
    found = compare(find_runs(write_sweep(tmp_path, (MATCHED[0], slow), noise=1e-4)))
    row, base = found.row("moe"), found.row("swiglu")
    assert row.verdict == "better"
    assert row.tokens_to_target < base.tokens_to_target
    ratio = statement(row.notes, "better_per_token_worse_per_second")["ratio"]
    assert ratio == pytest.approx(row.time_to_target / base.time_to_target)
    assert ratio > 1
    assert statement(row.notes, "slower")["ratio"] == pytest.approx(4.0, rel=0.02)


def test_a_higher_speed_is_better(sweep):
    found = compare(find_runs(sweep), metric="tokens_per_second")
    assert found.row("naive").verdict == "better"
    assert found.row("moe").verdict == "worse"
    assert found.rows[0].variant.name == "naive"


def test_nothing_finished_is_said(tmp_path):
    found = compare(find_runs(write_sweep(tmp_path, (FAILING,))))
    assert keys(found.warnings) == ["no_finished_run"]
    assert found.rows[0].verdict == "baseline"


def test_what_is_common_and_what_varies(comparison):
    assert comparison.common["training.max_steps"] == 1000
    assert "ffn.name" not in comparison.common
    names = [row.variant.name for row in comparison.rows]
    rates = dict(zip(names, comparison.varying["training.learning_rate"], strict=True))
    assert rates["moe · learning_rate=0.3"] == 0.3
    assert rates["moe"] == 0.003
    assert {axis.key for axis in comparison.axes} == {"ffn", "activation", "learning_rate"}


def test_hostile_values_do_not_stop_a_comparison(tmp_path):
    write_sweep(tmp_path, MATCHED[:2])
    extra = {"metrics": {"val_bpb": 1.5, "tokens": None}, "model": [], "match": 3, "data": "x"}
    write_run(tmp_path / "bad", Look(overrides=("ffn=<b>",), extra=extra))
    write_run(tmp_path / "nan", replace(NAIVE, bpb=float("nan")))
    found = compare(find_runs(tmp_path))
    assert found.row("<b>").n_ok == 1
    assert found.row("naive").n_ok == 0
    assert found.row("naive").n_other == 1

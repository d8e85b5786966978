"""The report's section on experts says what the runs' files hold, whatever they hold."""

from __future__ import annotations

import copy
import csv
import io
import re
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from mlpkit.report.mixtures import (
    MixtureSection,
    Specialist,
    mixture_section,
    section_files,
    section_markup,
    specialists,
)
from mlpkit.report.mixtures.findings import Range
from mlpkit.report.mixtures.page import sentence, written
from mlpkit.report.mixtures.section import CELLS, EXPERTS, HEALTH, chosen_layers
from mlpkit.report.mixtures.words import SENTENCES, WORDS
from mlpkit.report.records import Run, Statement

# Two categories over four experts; rows are experts. Of 400 comments expert 1 took 300: 3 times
# the 100 that are uniform.
COUNTS = [[20, 400], [300, 100], [40, 400], [40, 300]]


def layer(counts: list[list[int]] = COUNTS, **changes: Any) -> dict[str, Any]:
    """The analysis of a layer, lifts worked out from its counts."""
    totals = [sum(column) for column in zip(*counts, strict=True)]
    size = len(counts)
    pairs = [[0.2] * size for _ in range(size)]
    return {
        **{"num_experts": size, "num_experts_per_tok": 2, "choices_per_token": 2.0},
        "load": [sum(row) for row in counts],
        **{"max_violation": 0.25, "max_violation_share": 0.25, "max_violation_batch": 0.3},
        **{"load_cv": 0.1, "load_entropy": 0.9, "dead_experts": [], "router_entropy": 1.0},
        **{"router_entropy_of_mean": 1.2, "router_confidence": 0.5},
        **{"dropped_share": 0.0, "unrouted_share": 0.0},
        "co_activation": {"counts": [[99] * size] * size, "conditional": pairs},
        "categories": {
            "counts": counts,
            "lift_over_uniform": [
                [size * n / total for n, total in zip(row, totals, strict=True)] for row in counts
            ],
            "explained_share": 0.125,
        },
        "top_tokens": [
            [{"token": "#<b>", "id": 1, "choices": 30, "of": 40, "lift": 3.0}],
            *[[]] * (size - 1),
        ],
        "gradient": {"router": 1.0, "experts": 2.0, "ratio": 0.5, "relative": 0.1, "dead": False},
        **changes,
    }


def mixture(**layers: Any) -> dict[str, Any]:
    return {
        **{"format": 1, "tokens": 800, "unlabelled": None},
        **{"categories": ["comment", "name"], "category_tokens": [200, 600]},
        "layers": {f"layers.{k[1:]}.ffn": v for k, v in (layers or {"l0": layer()}).items()},
    }


def run(seed: int = 0, found: Any = None, name: str = "moe") -> Run:
    steps = tuple({"step": s, "val_loss": 1.0, "router_entropy": 2.0 / s} for s in (1, 2))
    return Run(
        path=Path(f"{name}{seed}"),
        id=f"{name}{seed}",
        status="ok",
        config={"seed": seed},
        steps=steps,
        mixture=mixture() if found is None else found,
    )


def section(*runs: Run) -> MixtureSection:
    made = mixture_section(runs, {r.id: r.id.rstrip("0123456789") for r in runs})
    assert made is not None
    return made


def told(made: MixtureSection, lang: str = "en") -> list[str]:
    statements = [*made.warnings, *(s for v in made.variants for s in v.statements)]
    return [sentence(statement, lang) for statement in statements]


def test_runs_without_experts_have_no_section() -> None:
    dense = Run(path=Path("a"), id="a", status="ok")
    assert mixture_section([dense]) is None
    assert mixture_section([]) is None


def test_the_most_eager_expert_of_a_category_is_found_with_its_counts() -> None:
    found = specialists(mixture(l0=layer(), l1=layer([[100, 300]] * 4)))
    assert found["comment"] == Specialist("layers.0.ffn", 1, 3.0, 300, 400, 2.0)
    assert found["name"].lift == pytest.approx(4 * 400 / 1200)
    assert set(specialists(mixture(), at_least=401)) == {"name"}


def test_one_seed_is_told_with_its_counts() -> None:
    said = told(section(run(seed=3)))
    assert said == [
        "The busiest expert has 1.25× its fair share, 25 % of the way to collapse (worst layer; "
        "seeds: 1).",
        "A token's category tells 12.5 % of which expert it gets, in the layer where it tells "
        "most (layer 0).",
        "Expert 1 of layer 0 takes comment 3.00× as often as uniform (seed 3: 300 of 400 choices; "
        "at most 2.00× is possible).",
    ]


def test_the_same_expert_with_every_seed_is_told_as_such() -> None:
    other = layer([[100, 400], [220, 100], [40, 400], [40, 300]], max_violation=0.5)
    said = told(section(run(0), run(1, mixture(l0=other))))
    assert "takes comment 2.20× to 3.00× as often as uniform, with all 2 seeds" in said[2]
    assert "1.25× to 1.50× its fair share" in said[0]


def test_another_expert_with_another_seed_is_told_run_by_run() -> None:
    turned = layer([COUNTS[1], COUNTS[0], *COUNTS[2:]])
    said = told(section(run(1, mixture(l0=turned)), run(0)))
    assert "takes comment 3.00× as often as uniform, but not the same one" in said[2]
    assert "0·1 (3.00×), 0·0 (3.00×)" in said[2]  # in the order of the seeds


def test_what_one_seed_alone_shows_is_not_said() -> None:
    even = layer([[100, 300]] * 4)
    said = told(section(run(0), run(1, mixture(l0=even))))
    assert "No category (of at least 200 choices) is taken 2.00× as often" in said[2]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gradient": {"ratio": 2e-9, "relative": 1e-9, "dead": True}},
         "moe: the task gives the router of layer 0 no gradient (seed 1: at most 2e-09 of its"),
        ({"dead_experts": [0, 2]},
         "moe: 0 to 2 of 4 experts got no token of the validation text (seed 1)."),
        ({"dropped_share": 0.25}, "capacity takes 0 % to 25 % of the choices away"),
        ({"unrouted_share": 0.5}, "0 % to 50 % of the tokens get no expert"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_is_wrong_is_a_warning_with_its_numbers(
    changes: dict[str, Any], expected: str
) -> None:
    made = section(run(0), run(1, mixture(l0=layer(**changes))))
    assert len(made.warnings) == 1
    assert expected in sentence(made.warnings[0], "en")
    assert section(run(0), run(1)).warnings == ()


def test_a_pair_is_told_where_loads_alone_do_not_explain_it() -> None:
    """420, 400, 440 and 340 choices: of those of expert 3, loads let expect 440 / 1260 with 2."""
    close = layer()
    close["co_activation"]["conditional"][3][2] = 0.75
    said = told(section(run(0, mixture(l0=close))))
    assert said[-1] == (
        "Experts 3 and 2 of layer 0 are the closest pair: 75 % of the tokens of 3 go to 2 too, "
        "where the loads alone give 34.9 % (seed 0)."
    )
    assert not any("closest pair" in line for line in told(section(run(0))))


def test_the_tables_hold_every_layer_of_every_run_and_every_expert_of_the_first() -> None:
    made = section(run(1), run(0, mixture(l0=layer(), l1=layer(dead_experts=[2]))))
    health, tokens = made.variants[0].tables
    assert health.columns == HEALTH
    assert [row[:2] for row in health.rows] == [(0, "0"), (0, "1"), (1, "0")]
    dead = HEALTH.index("dead_experts")
    assert [row[dead] for row in health.rows] == [0, 1, 0]
    assert tokens.columns == EXPERTS
    assert len(tokens.rows) == 8
    assert tokens.rows[1][:3] == ("0", 1, pytest.approx(400 / 400))
    assert tokens.rows[1][3] == {"en": "comment 3.0×", "zh": "注释 3.0×"}
    assert tokens.rows[0][4] == "'#<b>' 3.0×"


def test_the_markup_escapes_what_runs_hold_and_speaks_both_languages() -> None:
    evil = mixture(l0=layer())
    evil["layers"] = {"<script>alert(1)</script>": evil["layers"]["layers.0.ffn"]}
    markup = str(section_markup(section(run(0, evil, name="<img src=x>"), run(0))))
    assert "<script>" not in markup
    assert "<img" not in markup
    assert "&lt;img src=x&gt;" in markup
    assert "#&lt;b&gt;" in markup
    assert markup.count('lang="en"') == markup.count('lang="zh"') > 20
    assert markup.count("<svg") == markup.count("</svg>") == 1 + 2 * 3


def test_files_have_the_figures_and_the_tables_of_all_variants() -> None:
    files = section_files(section(run(0), run(0, name="other")), language="zh")
    assert set(files) == {
        "figures/routing-router_entropy.svg",
        *(f"figures/experts-{n}-load.svg" for n in (1, 2)),
        *(f"figures/experts-{n}-layers.0.ffn-categories.svg" for n in (1, 2)),
        *(f"figures/experts-{n}-layers.0.ffn-pairs.svg" for n in (1, 2)),
        *("tables/experts-health.csv", "tables/experts-tokens.csv"),
    }
    assert "注释" in files["figures/experts-1-layers.0.ffn-categories.svg"]
    rows = list(csv.DictReader(io.StringIO(files["tables/experts-health.csv"])))
    assert [row["variant"] for row in rows] == ["moe", "other"]
    assert rows[0]["explained_share"] == "0.125"


def test_the_layers_shown_are_those_that_categories_tell_most_about() -> None:
    layers = {f"l{n}": layer() for n in range(5)}
    for n, share in enumerate((0.1, 0.5, 0.2, 0.4, 0.0)):
        layers[f"l{n}"]["categories"] = {**layers[f"l{n}"]["categories"], "explained_share": share}
    found = mixture(**layers)
    assert chosen_layers(found, CELLS) == list(found["layers"])
    assert chosen_layers(found, 2 * 4 * 14) == ["layers.1.ffn", "layers.3.ffn"]
    assert chosen_layers(found, 0) == ["layers.1.ffn"]


def test_a_page_of_large_mixtures_stays_small() -> None:
    """64 experts in 12 layers: about a megabyte of figures, not ten."""
    large = layer([[10, 30]] * 64)
    found = mixture(**{f"l{n}": copy.deepcopy(large) for n in range(12)})
    markup = section_markup(section(run(0, found), run(0, found, name="other")))
    assert len(markup) < 3_000_000


@pytest.mark.parametrize("key", ["format", "layers", "tokens", "categories"])
def test_a_damaged_analysis_is_named_and_the_others_are_shown(key: str) -> None:
    damaged = mixture()
    del damaged[key]
    made = section(run(0, damaged, name="bad"), run(0))
    assert [v.name for v in made.variants] == ["moe"]
    assert re.match("bad0: mixture.json is damaged or of another version", told(made)[0])


@pytest.mark.parametrize(
    "damaged",
    [[1, 2], "text", {"format": 2}, mixture() | {"layers": []}, mixture() | {"layers": {"a": {}}}],
)
def test_whatever_a_file_holds_is_survived(damaged: Any) -> None:
    made = section(run(0, damaged))
    assert made.variants == ()
    assert "mixture.json is damaged" in section_markup(made)


def test_text_without_categories_says_why_and_shows_the_rest() -> None:
    plain = mixture(l0=layer(categories=None))
    plain |= {"categories": None, "category_tokens": None, "unlabelled": "the source is unknown"}
    made = section(run(0, plain))
    assert told(made)[0] == "moe0: no categories of text (the source is unknown)"
    assert [f.name.split("-")[-1] for f in made.variants[0].figures] == ["load", "pairs"]
    assert "25 %" in told(made)[1]
    section_markup(made)


@pytest.mark.parametrize("key", SENTENCES)
def test_every_sentence_has_the_same_values_in_both_languages(key: str) -> None:
    names = [
        sorted(field for _, field, _, _ in Formatter().parse(text) if field)
        for text in SENTENCES[key]
    ]
    assert names[0] == names[1]


def test_every_column_has_a_heading() -> None:
    assert {*HEALTH, *EXPERTS} <= set(WORDS)


def test_a_range_whose_ends_look_alike_is_one_number() -> None:
    values = {"variant": "a", "span": Range(0.25, 0.2500001)}
    assert "takes 25 % of" in sentence(Statement(key="dropped", values=values), "en")
    values["span"] = Range(0.1, 0.25)
    assert "takes 10 % to 25 % of" in sentence(Statement(key="dropped", values=values), "en")
    assert "10 % 到 25 %" in sentence(Statement(key="dropped", values=values), "zh")


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("max_violation", 0.12345, "0.123"),
        ("dropped_share", 0.125, "12.5 %"),
        ("gradient_ratio", 2.3e-9, "2.3e-09"),
        ("gradient_ratio", 0.31, "0.310"),
        ("seed", 3, "3"),
        ("explained_share", None, "–"),
    ],
)
def test_values_of_tables_are_written_for_reading(key: str, value: Any, shown: str) -> None:
    assert written(key, value) == shown

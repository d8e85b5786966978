"""The report page: complete, escaped, in two languages, each number as in the run files."""

import json
import math
import re
import shlex
import statistics
import sys
import time
from collections import Counter
from html.parser import HTMLParser
from string import Formatter

import pytest
from synthetic import FAILING, GATED, MOE, NAIVE, SWIGLU, Look, write_run, write_sweep

from mlpkit.cli import main
from mlpkit.figures.labels import LanguageError
from mlpkit.report import find_runs, write_report
from mlpkit.report.cells import COLUMNS
from mlpkit.report.comparison import ComparisonError, compare
from mlpkit.report.page import SECTIONS, VERDICTS, style
from mlpkit.report.provenance import READERS, command, facts
from mlpkit.report.records import Run, Statement
from mlpkit.report.runs import NoRunsError
from mlpkit.report.spoken import in_both, say
from mlpkit.report.verdicts import STATEMENTS
from mlpkit.report.words import LANGUAGES, WORDS, fill, numbers, word
from mlpkit.report.words.sentences import SENTENCES, TERMS
from mlpkit.report.writing import ReportError
from mlpkit.sweep.summary import report

HOSTILE = '<img src=x onerror="alert(1)">{{ 7*7 }}</script><script>alert(2)</script>\x00\x1b[31m'
VOID = {"meta", "link", "input", "br", "img"}


class Page(HTMLParser):
    """A page taken apart: its elements with their attributes and texts.

    Args:
        html: Its text.
    """

    def __init__(self, html):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, "text": "", **dict(attributes)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop()["tag"] == tag

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag, **attributes):
        wanted = attributes.items()
        return [e for e in self.elements if e["tag"] == tag and wanted <= e.items()]

    def table(self, name):
        """The rows of a table: a mapping of column to cell for each, with "variant" first."""
        html = re.search(rf'<table id="{name}">.*?<tbody>(.*?)</tbody>', self.rawdata_, re.S)[1]
        rows = []
        for line in re.findall(r"<tr class.*?</tr>", html, re.S):
            cells = Page(f"<table>{line}</table>").elements
            named = {c["data-column"]: c for c in cells if "data-column" in c}
            rows.append({"variant": next(c for c in cells if c["tag"] == "th"), **named})
        return rows


def read(path):
    page = Page(text := path.read_text())
    page.rawdata_ = text
    return page


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """The sweep.json of four variants that finish and one that fails, with three seeds."""
    return write_sweep(tmp_path_factory.mktemp("runs"), (SWIGLU, GATED, NAIVE, MOE, FAILING))


@pytest.fixture(scope="module")
def page(sweep, tmp_path_factory):
    return read(write_report([sweep], out=tmp_path_factory.mktemp("report")))


def finished(sweep, name):
    """The result of each finished run of an FFN by seed, read without mlpkit."""
    results = [json.loads(p.read_text()) for p in sweep.parents[2].glob("*/result.json")]
    found = {r["seed"]: r for r in results if r["ffn"] == name and r["status"] == "ok"}
    assert len(found) == 3
    return [found[seed] for seed in sorted(found)]


def test_every_number_of_the_main_table_is_the_one_computed_from_the_run_files(sweep, page):
    rows = {row["variant"]["data-v"].split(" · ")[0]: row for row in page.table("rows-1")[:4]}
    base = [r["metrics"]["val_bpb"] for r in finished(sweep, "swiglu")]
    for name in ("swiglu", "gated", "naive", "moe"):
        row, results = rows[name], finished(sweep, name)
        metrics = {
            key: [r["metrics"][key] for r in results]
            for key in results[0]["metrics"]
            if key != "val_perplexity"
        }
        for key in ("val_bpb", "val_loss"):
            mean, sd = statistics.fmean(metrics[key]), statistics.stdev(metrics[key])
            assert float(row[key]["data-v"]) == pytest.approx(mean, rel=1e-12)
            assert row[key]["text"] == f"{mean:.4f} ± {sd:.4f}"
        averaged = {"seconds": "training_seconds"} | {
            key: key for key in ("training_flops", "tokens", "tokens_per_second")
        }
        for column, key in averaged.items():
            mean = statistics.fmean(metrics[key])
            assert float(row[column]["data-v"]) == pytest.approx(mean, rel=1e-12)
        memory = statistics.fmean(metrics["peak_memory_bytes"])
        assert row["peak_memory_bytes"]["text"] == f"{memory / 2**20:.0f} MiB"
        for key in ("parameters", "active_parameters", "ffn_parameters", "flops_per_token"):
            assert float(row[key]["data-v"]) == results[0]["model"][key]
        assert row["seeds"]["text"] == "3/3"
        if name != "swiglu":  # with all seeds there, pairing is the mean of the differences
            pairs = [a - b for a, b in zip(metrics["val_bpb"], base, strict=True)]
            shown = row["difference"]
            assert float(shown["data-v"]) == pytest.approx(statistics.fmean(pairs), abs=1e-12)
            found = re.fullmatch(r"(\S+) \[(\S+), (\S+)\]", shown["text"].replace("−", "-"))
            mean, low, high = map(float, found.groups())
            assert mean == pytest.approx(statistics.fmean(pairs), abs=6e-5)
            assert low < mean < high
            assert low + high == pytest.approx(2 * mean, abs=2e-4)


def test_the_interval_of_the_page_is_that_of_the_two_way_model_by_hand(sweep, page):
    """With a full table of V variants and S seeds the residual is y - row - column + mean."""
    names = ("swiglu", "gated", "naive", "moe")
    y = [[r["metrics"]["val_bpb"] for r in finished(sweep, name)] for name in names]
    rows = [statistics.fmean(row) for row in y]
    columns = [statistics.fmean(column) for column in zip(*y, strict=True)]
    mean = statistics.fmean(rows)
    squares = sum((y[v][s] - rows[v] - columns[s] + mean) ** 2 for v in range(4) for s in range(3))
    half = 2.446912 * math.sqrt(squares / 6 * 2 / 3)  # t(0.975) of 6 degrees, from a table
    row = next(r for r in page.table("rows-1") if r["variant"]["data-v"].startswith("naive"))
    ends = re.findall(r"[+−]\d\.\d+(?=[,\]])", row["difference"]["text"])
    low, high = (float(end.replace("−", "-")) for end in ends)
    assert (high - low) / 2 == pytest.approx(half, abs=1e-4)


def test_each_run_is_listed_with_its_score_and_the_command_that_repeats_it(sweep, page):
    text = page.rawdata_
    for path in sweep.parents[2].glob("*/result.json"):
        result, row = (
            json.loads(path.read_text()),
            re.search(
                rf"<code>{path.parent.name}</code>.*?</tr>", text.partition('id="runs"')[2], re.S
            )[0],
        )
        line = shlex.join(["mlpkit", "train", *result["overrides"]])
        assert f"<code>{line}</code>" in row
        if result["status"] == "ok":
            assert f'data-v="{result["metrics"]["val_bpb"]!r}"' in row
            assert f"{result['metrics']['val_bpb']:.4f}" in row


def test_the_page_needs_nothing_but_itself(page):
    outside = [
        value
        for element in page.elements
        for key, value in element.items()
        if key in ("src", "href", "action", "data", "poster", "srcset", "xlink:href")
    ]
    assert outside
    assert all(value.startswith(("#", "data:,")) for value in outside)
    sheet, script = page.all("style")[0]["text"], page.all("script")[0]["text"]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|import\(", sheet + script)
    assert len(sheet) + len(script) < 200_000
    assert len(page.all("style")) == len(page.all("script")) == 1


def test_every_section_is_there_and_linked_and_ids_are_unique(page):
    sections = [section["id"] for section in page.all("section")]
    there = [
        name for name in SECTIONS if name not in ("mixture", "heatmap", "effects", "published")
    ]
    assert sections == [name for name in SECTIONS if name in sections]
    assert set(there) <= set(sections)
    links = [a["href"] for a in page.all("a")]
    assert links == [f"#{name}" for name in sections]
    ids = Counter(e["id"] for e in page.elements if "id" in e)
    assert max(ids.values()) == 1
    for element in page.elements:
        for key in ("aria-controls", "aria-labelledby", "data-filter"):
            assert element.get(key, next(iter(ids))) in ids


def test_everything_said_is_said_in_both_languages(page):
    counts = Counter(
        e["lang"] for e in page.elements if e["tag"] in ("span", "text") and "lang" in e
    )
    assert counts["en"] == counts["zh"] > 100
    speaking = [e for e in page.elements if e.get("lang") == "zh"]
    assert not [e["text"] for e in speaking if not re.search(r"[一-鿿]", e["text"])]
    english = [e for e in page.elements if e.get("lang") == "en" and e["tag"] != "html"]
    assert not any(re.search(r"[一-鿿]", e["text"]) for e in english)


def placeholders(template):
    return {name.partition(".")[0] for _, name, _, _ in Formatter().parse(template) if name}


@pytest.mark.parametrize("words", [WORDS, SENTENCES, TERMS], ids=["words", "sentences", "terms"])
def test_no_text_lacks_a_language_or_a_value(words):
    for key, (english, chinese) in words.items():
        assert english, key
        assert chinese, key
        assert placeholders(english) == placeholders(chinese), key
        if len(english.split()) > 2:  # more than a name
            assert re.search(r"[一-鿿]", chinese), key
        assert not re.search(r"[一-鿿]", english), key


def test_every_statement_has_a_sentence_of_its_values_alone():
    assert set(SENTENCES) == set(STATEMENTS)
    for key, (english, _) in SENTENCES.items():
        assert placeholders(english) <= set(STATEMENTS[key]), key


def test_every_column_verdict_state_and_fact_has_its_words():
    keys = [f"column_{c.key}" for c in COLUMNS] + ["column_variant", "column_verdict"]
    keys += [f"verdict_{verdict}" for verdict in VERDICTS]
    assert {key for k in keys for key in (k, f"{k}_help")} <= set(WORDS)
    states = ("ok", "running", "failed", "stopped", "lost", "broken", "missing")
    assert {f"status_{state}" for state in states} <= set(WORDS)
    assert {f"fact_{key}" for key in (*READERS, "seeds")} <= set(WORDS)
    assert set(SECTIONS) <= set(WORDS)


def test_a_statement_is_filled_in_and_none_is_a_dash():
    values = {"variants": {"moe": [1, 2], "a<b": [0]}}
    said = say(Statement(key="missing_seeds", values=values))
    assert "moe (1, 2), a&lt;b (0)" in said
    assert "moe (1、2)、a&lt;b (0)" in said
    assert fill("{a}", {"a": list(range(20))}, "en") == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 … +10"
    assert fill("{a:score} {b:term}", {"a": None, "b": ["lost", "x"]}, "zh") == "– 丢失、x"
    counts = {"ok": 2, "failed": 1, "other": 0, "total": 3}
    assert "2 of 3 runs finished; 1 failed.<" in say(Statement(key="runs", values=counts))
    told = say(Statement(key="runs", values=counts | {"other": 4, "total": 7}))
    assert "2 of 7 runs finished; 1 failed; 4 did neither.<" in told
    assert "7 次运行中完成 2 次，失败 1 次，其他 4 次。<" in told
    grouped = say(Statement(key="one_seed", values={"group": 1}), several=True)
    assert "Group 2: One seed" in grouped
    assert "第 2 组: 只有" in grouped.replace("：", ": ")


def test_numbers_are_written_as_expected():
    assert numbers.score(1.50015) == "1.5002"
    assert numbers.signed(-0.00714) == "−0.0071"
    assert numbers.signed(0.0) == "+0.0000"
    assert numbers.percent(0.02) == "2 %"
    assert numbers.signed_percent(-0.0123) == "−1.23 %"
    assert numbers.signed_points(-1.234) == "−1.23 %"
    assert [numbers.size(b) for b in (5 * 2**20, 310_000_000, 3.5 * 2**30)] == [
        *("5 MiB", "296 MiB", "3.5 GiB"),
    ]
    assert numbers.size(1023 * 2**20) == "1023 MiB"
    assert [numbers.duration(s) for s in (8.34, 59.96, 245, 7445.4)] == [
        *("8.3 s", "60.0 s", "4:05", "2:04:05"),
    ]
    assert numbers.ratio(1.5) == "1.50×"
    assert [numbers.probability(p) for p in (0.0004, 0.04)] == ["< 0.001", "= 0.040"]


def test_hostile_names_stay_text(tmp_path):
    bad = Look(overrides=("ffn=naive", f"data.note={HOSTILE}"), status="failed", error=HOSTILE)
    bad.extra["log_tail"] = [HOSTILE]
    extra = {"ffn": HOSTILE, "plugins": {HOSTILE: HOSTILE}, "computing": HOSTILE}
    extra["git"] = {"commit": HOSTILE[:11], "dirty": True}
    extra["data"] = {"name": HOSTILE, "fingerprint": HOSTILE, "tokenizer": HOSTILE}
    good = Look(overrides=("ffn=gated", f"model.{HOSTILE.replace('=', '')}=1"), extra=extra)
    write_sweep(tmp_path, (SWIGLU, bad, good), seeds=(0, 1))
    for run in (tmp_path / "multirun").iterdir():
        if (run / "sample.txt").exists():
            (run / "sample.txt").write_text(HOSTILE)
    path = write_report([tmp_path], out=tmp_path / "out")
    page = read(path)
    assert Counter(e["tag"] for e in page.elements)["script"] == 1
    assert not page.all("img")
    assert not [k for e in page.elements for k in e if k.startswith("on")]
    assert page.rawdata_.count("49") == page.rawdata_.replace("{{ 7*7 }}", "").count("49")
    shown = "".join(e["text"] for e in page.all("main"))
    assert shown.count("{{ 7*7 }}</script><script>alert(2)</script>") > 10
    assert "alert(1)" in "".join(e["text"] for e in page.all("pre"))


def test_the_policy_of_the_page_lets_only_its_own_script_run(page):
    (policy,) = (m["content"] for m in page.all("meta") if "Content-Security" in str(m))
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[\w+/]{43}='$", policy)


def test_the_sheet_has_every_colour_that_it_uses_for_light_and_dark():
    sheet = style()
    used = set(re.findall(r"var\(--(\w+)\)", sheet))
    for block in re.findall(r":root\{(.*?)\}", sheet):
        assert used <= set(re.findall(r"--(\w+):", block))


def test_the_configuration_shows_what_differs_with_the_longer_side_downwards(page, tmp_path):
    shown = [e["text"] for e in page.all("th") if e["text"].startswith(("ffn.", "activation"))]
    assert "ffn.name" in shown
    many = Look(overrides=("ffn=naive", *(f"ffn.option{number}={number}" for number in range(9))))
    write_sweep(tmp_path, (SWIGLU, many), seeds=(0,))
    html = read(write_report([tmp_path], out=tmp_path / "out")).rawdata_
    table = html.partition('id="varying"')[2].partition("</table>")[0]
    lines = re.findall(r"<tr><th.*?</tr>", table, re.S)
    assert len(lines) == 11  # the head, the name and nine options
    assert re.findall(r"<code>(.*?)</code>", lines[-1]) in (["null", "8"], ["8", "null"])
    assert "training.max_steps" not in table
    assert "training.max_steps: 1000\n" in html


def test_failed_runs_are_shown_with_the_end_of_their_log_and_never_averaged(sweep, page):
    shown = page.rawdata_.partition('id="failures"')[2].partition("</section>")[0]
    assert shown.count("<details>") == 3
    assert shown.count("NonFiniteLossError: at step 212") == 3
    assert "step 11/1000  loss 4.8900" in shown
    row = next(r for r in page.table("rows-1") if r["seeds"]["text"] == "0/3")
    assert (row["val_bpb"]["data-v"], row["val_bpb"]["text"]) == ("", "–")
    assert "no verdict" in row["verdict"]["text"]


def test_a_broken_tree_still_makes_a_report_that_names_what_was_left_out(tmp_path, capsys):
    write_sweep(tmp_path, (SWIGLU, NAIVE), seeds=(0,))
    runs = sorted(p.parent for p in tmp_path.glob("multirun/*/result.json"))
    (runs[0] / "metrics.jsonl").write_text('{"step": 1}\n{"st')
    (runs[1] / "result.json").write_text('{"status": "o')
    (tmp_path / "multirun" / "empty").mkdir()
    (tmp_path / "lost").mkdir()
    lost = {"status": "running", "pid": 2**22 + 1, "overrides": ["ffn=naive", "seed=7"]}
    (tmp_path / "lost" / "result.json").write_text(json.dumps(lost))
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "result.json cannot be read" in printed
    assert "1 of 2 lines damaged" in printed
    page = read(tmp_path / "out" / "report.html")
    left_out = page.rawdata_.partition("Left out")[2].partition("</details>")[0]
    assert "result.json cannot be read" in left_out
    assert "badge lost" in page.rawdata_


def test_a_report_without_a_finished_run_says_so(tmp_path):
    write_run(tmp_path / "a", FAILING)
    page = read(write_report([tmp_path], out=tmp_path / "out"))
    assert "No run has finished yet." in page.rawdata_
    assert page.table("rows-1")[0]["seeds"]["text"] == "0/1"
    assert not page.all("section", id="curves")


def test_a_sweep_matched_to_an_ffn_that_it_does_not_have_ends_in_a_report(tmp_path, capsys):
    sweep = write_sweep(tmp_path, looks=(GATED, NAIVE), seeds=(0,), baseline="swiglu")
    report(sweep)
    assert capsys.readouterr().out == f"report: {sweep.parent / 'report.html'}\n"


def test_one_run_makes_a_report(tmp_path):
    write_run(tmp_path / "a", MOE)
    page = read(write_report([tmp_path / "a"], out=tmp_path / "out"))
    (row,) = page.table("rows-1")
    assert "±" not in row["val_bpb"]["text"]
    assert row["verdict"]["text"].startswith("baseline")


def test_several_groups_have_a_table_each(tmp_path):
    other = Look(overrides=("ffn=swiglu", "data.note=b"), bpb=2.5)
    other.extra["data"] = {"name": "text", "fingerprint": "ffff", "tokenizer": "bytes"}
    write_sweep(tmp_path, (SWIGLU, NAIVE, other), seeds=(0, 1))
    page = read(write_report([tmp_path], out=tmp_path / "out"))
    assert (len(page.table("rows-1")), len(page.table("rows-2"))) == (2, 1)
    assert "Group 2" in page.rawdata_
    for data in ("pystdlib 5e1f5e1f", "text ffff"):  # with its source, in verdict and note
        assert page.rawdata_.count(f": data {data}, tokenizer bytes") == 1
        assert page.rawdata_.count(f"Data {data}, tokenizer bytes") == 1
    assert page.table("rows-2")[0]["variant"]["data-v"].endswith("note=b")


def test_the_command_writes_beside_one_sweep_and_says_what_it_found(sweep, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["report", str(sweep), "--open", "--lang", "zh"]) == 0
    printed = capsys.readouterr().out
    page = sweep.parent / "report.html"
    assert f"wrote {page}" in printed
    assert opened == [page.resolve().as_uri()]
    assert '<html lang="zh">' in page.read_text()
    names = {str(p.relative_to(sweep.parent)) for p in sweep.parent.rglob("*") if p.is_file()}
    assert {"report.html", "sweep.json", "figures/curves-val_bpb-tokens.svg"} <= names
    tables = {f"tables/comparison.{ending}" for ending in ("csv", "json", "tex", "md")}
    assert tables <= names
    assert "差于 swiglu" in printed
    assert not [name for name in names if "/." in name or name.startswith(".")]


def test_the_command_prints_json_and_writes_nothing(sweep, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(sweep), "--json", "--baseline", "naive"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["baseline"].startswith("naive")
    assert not list(tmp_path.iterdir())


def test_other_places_are_written_to_report(sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(sweep.parents[2])]) == 0
    assert (tmp_path / "report" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["."], "no run in ."),
        (["{sweep}", "--baseline", "swigul"], "'swigul'"),
        (["{sweep}", "--out", "file/report"], "cannot be written to file/report"),
    ],
)
def test_what_cannot_be_done_ends_with_2_and_one_line(
    sweep, arguments, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["report", *(a.replace("{sweep}", str(sweep)) for a in arguments)]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1


def test_a_missing_extra_is_named_with_how_to_get_it(sweep, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlpkit.report.writing", None)
    assert main(["report", str(sweep)]) == 2
    assert "pip install 'mlpkit[report]'" in capsys.readouterr().err


def test_the_errors_of_the_function_carry_the_code_2(sweep, tmp_path):
    with pytest.raises(LanguageError, match="'zz'"):
        write_report([sweep], out=tmp_path, language="zz")
    for error in (NoRunsError, ComparisonError, ReportError, LanguageError):
        assert error.exit_code == 2


def test_a_crash_while_writing_leaves_the_old_page_whole(sweep, tmp_path, monkeypatch):
    page = write_report([sweep], out=tmp_path)
    before = page.read_text()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(ReportError, match="disk full"):
        write_report([sweep], out=tmp_path, language="zh")
    assert page.read_text() == before
    assert not [p for p in tmp_path.rglob(".*")]


def test_a_command_line_survives_a_shell_and_forgets_where_the_run_lay():
    odd = ("ffn=moe", "data.path=my notes/$HOME 'a'.txt", "+run_dir=/tmp/x", "seed=3")
    run = Run(path=None, id="a", status="ok", overrides=odd, result={"x": 1})
    kept = [o for o in odd if "run_dir" not in o]
    assert shlex.split(command(run)) == ["mlpkit", "train", *kept]
    asked = Run(path=None, id="a", status="ok", config={"seed": 5}, result={"x": 1})
    assert command(asked) == "mlpkit train seed=5"
    assert command(Run(path=None, id="a", status="broken")) == ""


def test_facts_name_the_runs_that_differ_and_leave_out_what_nobody_recorded(sweep):
    runs = find_runs(sweep)
    changed = {**runs[0].result, "torch": "2.9", "git": {"commit": "f" * 40, "dirty": True}}
    runs[0] = Run(path=runs[0].path, id=runs[0].id, status="ok", result=changed)
    found = {fact.key: fact.values for fact in facts(runs)}
    assert found["torch"][1] == ("2.9", (runs[0].id,))
    assert len(found["torch"][0][1]) == len(runs) - 1
    assert found["git"][1][0] == f"{'f' * 12} *"
    assert found["seeds"] == (("0, 1, 2", ()),)
    assert "hardware" not in found
    assert "plugins" not in found


def test_texts_that_are_equal_in_both_languages_are_written_once():
    assert in_both({"en": "a<b", "zh": "a<b"}) == "a&lt;b"
    assert word("title", LANGUAGES[1]) == "mlpkit 报告"


@pytest.mark.slow
def test_a_hundred_runs_are_reported_within_twenty_seconds(tmp_path):
    looks = [
        Look(overrides=(f"ffn={ffn}", f"activation={act}", f"training.warmup_steps={warm}"))
        for ffn in ("swiglu", "naive", "gated")
        for act in ("null", "gelu", "relu", "silu", "tanh", "elu")
        for warm in (10, 50)
    ]
    sweep = write_sweep(tmp_path, tuple(looks[:34]))
    start = time.monotonic()
    page = read(write_report([sweep], out=tmp_path / "out"))
    assert time.monotonic() - start < 20
    assert len(page.table("rows-1")) == 34
    assert len(compare(find_runs(sweep)).runs) == 102

"""The report in a browser without a network: it loads, sorts, filters, toggles and translates."""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest
from chromium import find_chromium
from synthetic import FAILING, MOE, NAIVE, SWIGLU, Look, write_sweep

from mlpkit.cli import main
from mlpkit.report.writing import write_report

HOSTILE = '"><img src=x onerror="window.hacked=1"><script>window.hacked=2</script>{{ 7*7 }}'
COLUMN = "[...document.querySelectorAll('#rows-1 tbody tr')].map(r => r.querySelector('{}'){})"


def column(name, of=".dataset.v"):
    return COLUMN.format(f'[data-column="{name}"]', of)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report on a sweep with two axes, a mixture and failed runs."""
    root = tmp_path_factory.mktemp("browser")
    gelu = [
        Look(overrides=(f"ffn={name}", "activation=gelu"), bpb=1.49 + 0.05 * number)
        for number, name in enumerate(("swiglu", "naive"))
    ]
    sweep = write_sweep(root, (SWIGLU, NAIVE, *gelu, MOE, FAILING))
    write_report([sweep], out=root / "report")
    return root / "report"


@pytest.fixture
def page(browser, folder):
    """The report, freshly opened in English and in light colours."""
    browser.colours("light")
    browser.open(folder / "report.html")
    browser.run("try { localStorage.clear() } catch { }")
    browser.open(folder / "report.html")
    yield browser
    assert browser.errors() == []
    assert {url.partition(":")[0] for url in browser.requests()} <= {"file", "data"}


def test_the_page_loads_from_disk_without_a_request_or_an_error(page):
    assert page.run("document.title") == "mlpkit report"
    assert len(page.requests()) == 1
    assert page.run("document.querySelectorAll('section').length") > 8
    assert page.run("document.querySelector('.box').innerText.startsWith('swiglu · activation=g')")


def test_a_click_on_a_heading_sorts_by_exact_values_and_keeps_missing_ones_last(page):
    heading = "[...document.querySelectorAll('#rows-1 th')].find(h => h.innerText.trim() == '{}')"
    for name, title in (("val_bpb", "bits per byte"), ("parameters", "parameters")):
        for order in ("ascending", "descending"):
            page.run(f"{heading.format(title)}.querySelector('button').click()")
            assert page.run(f"{heading.format(title)}.getAttribute('aria-sort')") == order
            values = page.run(column(name))
            known = [float(value) for value in values if value]
            assert known == sorted(known, reverse=order == "descending")
            assert "" not in values[: len(known)]
    assert page.run("document.querySelectorAll('[aria-sort=descending]').length") == 1


def test_the_keyboard_sorts_too(page):
    page.run("document.querySelector('#rows-1 th:nth-child(4) button').focus()")
    page.press("Enter", 13)
    values = [float(v) for v in page.run(column("val_bpb")) if v]
    page.press("Enter", 13)
    assert [float(v) for v in page.run(column("val_bpb")) if v] == values[::-1]


def test_the_filter_hides_rows_that_lack_a_word(page):
    page.run(
        "(() => { const i = document.querySelector('input[data-filter=\"rows-1\"]');"
        "i.value = 'NAIVE gelu'; i.dispatchEvent(new Event('input')) })()"
    )
    shown = page.run(
        "[...document.querySelectorAll('#rows-1 tbody tr')].filter(r => r.offsetHeight)"
        ".map(r => r.cells[0].innerText)"
    )
    assert shown == ["naive · activation=gelu"]


def test_a_box_hides_a_variant_in_all_curves_and_none_hides_all(page):
    visible = (
        "[...document.querySelectorAll('#curves .series')]"
        ".filter(s => getComputedStyle(s).display != 'none').map(s => s.getAttribute('class'))"
    )
    before = page.run(visible)
    page.run("document.querySelector('input[data-series=\"1\"]').click()")
    after = page.run(visible)
    assert [s for s in before if re.search(r"\bv1\b", s)]
    assert after == [s for s in before if not re.search(r"\bv1\b", s)]
    page.run("document.querySelector('[data-all=\"0\"]').click()")
    drawn = page.run("[...document.querySelectorAll('input[data-series]')].length")
    assert drawn > 3
    assert page.run(visible) == []
    page.run("document.querySelector('[data-all=\"1\"]').click()")
    assert page.run(visible) == before


def test_the_tabs_show_one_panel_at_a_time_also_by_the_arrow_keys(page):
    shown = (
        "[...document.querySelectorAll('#curves .panel')].filter(p => p.offsetHeight)"
        ".map(p => p.id)"
    )
    assert page.run(shown) == ["curves-1"]
    page.run("document.getElementById('curves-tab-2').click()")
    assert page.run(shown) == ["curves-2"]
    page.run("document.getElementById('curves-tab-2').focus()")
    page.press("ArrowRight", 39)
    assert page.run(shown) == ["curves-3"]
    page.press("ArrowRight", 39)
    assert page.run(shown) == ["curves-1"]


def test_the_switch_changes_every_text_to_chinese_and_back(page):
    assert "比特" not in page.run("document.body.innerText")
    page.run("document.querySelector('[data-speak=zh]').click()")
    text = page.run("document.body.innerText")
    assert page.run("document.documentElement.lang") == "zh"
    assert page.run("document.title") == "mlpkit 报告"
    assert "每字节比特" in text
    assert "Training curves" not in text
    assert page.run("getComputedStyle(document.querySelector('.chart text[lang=en]')).display") == (
        "none"
    )
    page.run("document.querySelector('[data-speak=en]').click()")
    assert "比特" not in page.run("document.body.innerText")


def test_dark_and_light_colours_can_be_read(page):
    for scheme, dark in (("dark", True), ("light", False)):
        page.colours(scheme)
        ground = luminance(page.run("getComputedStyle(document.body).backgroundColor"))
        assert (ground < 0.1) == dark
        badges = (".badge.worse", ".badge.better", ".badge.baseline", "summary .badge")
        texts = ("body", ".note", "nav a", "svg.chart text", "svg.chart .tick", *badges)
        for query in texts:
            what = "fill" if "svg" in query else "color"
            colour = page.run(f"getComputedStyle(document.querySelector('{query}')).{what}")
            assert contrast(luminance(colour), ground) > 4.5, (scheme, query)
        for number in range(4):  # lines need less: WCAG 2.1, 1.4.11
            line = page.run(f"getComputedStyle(document.querySelector('.s{number} .line')).stroke")
            assert contrast(luminance(line), ground) > 3, (scheme, number)


def luminance(colour):
    """Relative luminance of "rgb(r, g, b)" (WCAG 2.1)."""
    shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return sum(weight * s for weight, s in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first, second):
    return (max(first, second) + 0.05) / (min(first, second) + 0.05)


def test_pointing_at_a_mark_tells_its_exact_value(page):
    last = "#curves-1 .chart .series .hit"
    page.point_at(last)
    told = page.run("document.getElementById('tip').innerText")
    assert told == page.run(f"document.querySelector('{last}').dataset.tip")
    assert re.fullmatch(r".+: \d\.\d+ \[\d\.\d+, \d\.\d+\] @ \d\S*", told)
    assert page.run("document.querySelectorAll('svg.chart title').length") == 0
    page.point_at("h1")
    assert page.run("document.getElementById('tip').hidden")


def test_headings_explain_themselves_in_the_language_of_the_page(page):
    page.point_at("#rows-1 th:nth-child(4)")
    assert "Lower is better" in page.run("document.getElementById('tip').innerText")


def test_print_shows_every_panel_and_no_controls(page):
    page.send("Emulation.setEmulatedMedia", media="print")
    hidden = "[...document.querySelectorAll('.panel')].filter(p => !p.offsetHeight).length"
    assert page.run(hidden) == 0
    assert page.run("document.querySelector('nav').offsetHeight") == 0
    page.send("Emulation.setEmulatedMedia", media="")


def test_no_part_of_the_page_is_wider_than_a_phone(page):
    page.send(
        "Emulation.setDeviceMetricsOverride",
        width=390,
        height=800,
        deviceScaleFactor=1,
        mobile=False,
    )
    assert page.run("document.documentElement.scrollWidth") <= 390
    page.send("Emulation.clearDeviceMetricsOverride")


def test_a_file_of_a_chart_opens_by_itself(page, folder):
    for path in sorted((folder / "figures").iterdir()):
        page.open(path)
        assert page.run("document.documentElement.tagName") == "svg"
        assert page.run("document.querySelector('parsererror')") is None
        assert page.run("getComputedStyle(document.querySelector('text')).fontSize") in (
            "10px",
            "11px",
        )


def test_hostile_names_run_nothing(browser, tmp_path):
    bad = Look(overrides=("ffn=swiglu", f"data.note={HOSTILE}"), status="failed", error=HOSTILE)
    good = Look(overrides=("ffn=naive", f"data.note={HOSTILE}"), extra={"ffn": HOSTILE})
    write_sweep(tmp_path, (SWIGLU, good, bad), seeds=(0, 1))
    for run in (tmp_path / "multirun").iterdir():
        if (run / "sample.txt").exists():
            (run / "sample.txt").write_text(HOSTILE)
    browser.open(write_report([tmp_path], out=tmp_path / "report"))
    assert browser.run("window.hacked") is None
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert HOSTILE in browser.run("document.body.textContent")
    assert browser.errors() == []


def test_a_script_that_found_a_way_in_would_not_run(browser, folder, tmp_path):
    page = (folder / "report.html").read_text()
    (tmp_path / "hacked.html").write_text(page.replace("</main>", f"{HOSTILE}</main>"))
    browser.open(tmp_path / "hacked.html")
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert browser.run("window.hacked") is None
    assert "Content Security Policy" in json.dumps(browser.errors())


def test_without_a_browser_the_tests_are_skipped_and_not_passed(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert find_chromium() is None


SMALL = [
    *("data=text", f"data.path={Path(__file__).parents[2] / 'docs'}", "model.hidden_size=16"),
    *("model.num_layers=1", "model.num_attention_heads=2", "model.num_key_value_heads=1"),
    *("training.max_steps=4", "training.batch_size=4", "training.sequence_length=32"),
    *("training.eval_every=2", "training.eval_tokens=512", "training.log_every=1"),
    *("training.warmup_steps=1", "training.sample_tokens=8", "training.precision=float32"),
]


@pytest.mark.slow
def test_the_report_of_a_real_experiment_shows_what_its_runs_wrote(browser, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = ["train", "-m", "experiment=dense_to_moe", "seed=0,1,2", "training=quick"]
    assert main([*line, *SMALL]) == 0
    scores = {}
    for file in tmp_path.glob("multirun/*/result.json"):
        result = json.loads(file.read_text())
        ffn = next(o for o in result["overrides"] if o.startswith("ffn=")).removeprefix("ffn=")
        scores.setdefault(ffn, []).append(result["metrics"]["val_bpb"])
    assert {len(found) for found in scores.values()} == {3}
    (report,) = tmp_path.glob("multirun/sweeps/*/report.html")
    browser.open(report)
    names = browser.run("[...document.querySelectorAll('#rows-1 tbody th')].map(h => h.dataset.v)")
    shown = dict(zip(names, map(float, browser.run(column("val_bpb"))), strict=True))
    assert shown == pytest.approx({ffn: fmean(found) for ffn, found in scores.items()})
    assert {"mixture", "published", "samples"} <= set(
        browser.run("[...document.querySelectorAll('section')].map(s => s.id)")
    )
    assert browser.errors() == []
    assert {url.partition(":")[0] for url in browser.requests()} <= {"file", "data"}

"""The tutorial and the home page: they say what is printed and drawn, in both languages."""

import io
import re
import shlex
from contextlib import chdir, redirect_stdout
from itertools import pairwise
from math import erf, exp, pi, sqrt

import pytest
from docs_reader import ROOT, commands, fences, page

from mlpkit.cli import main
from mlpkit.figures.fonts import FontError, families

STEPS = tuple(sorted(p.stem for p in (ROOT / "docs" / "tutorial").glob("[1-9]-*[a-z].md")))
STEPS = tuple(f"docs/tutorial/{step}.md" for step in STEPS if not step.endswith(".zh"))
MEASURED = {"tutorial-experts.svg"}  # drawn from a run of hundreds of steps
# What each page tells of its own output, in both languages.
TOLD = {
    "2-non-linearity": ["32768 parameters do the work of 4096"],
    "5-gate": ["I = 288", "192", "36,864"],
    "6-experts": [
        "swiglu  115,072 parameters, a token meets 115,072\n",
        "moe     334,208 parameters, a token meets 115,328\n",
    ],
}


def chinese(name):
    return name.replace(".md", ".zh.md")


def draw(name, folder, lang):
    """Runs the blocks of a page that draw, in a language, and returns what they print."""
    out = io.StringIO()
    with chdir(folder), redirect_stdout(out):
        for fence in fences(name, "python", "bash"):
            if fence.language == "python" and 'lang = "en"' in fence.text:
                code = fence.text.replace('lang = "en"', f'lang = "{lang}"')
                exec(compile(code, name, "exec"), {})
            for line in commands(fence) if fence.language == "bash" else ():
                if line.startswith("mlpkit plot"):
                    assert main([*shlex.split(line)[1:], "--lang", lang]) == 0
    return out.getvalue()


def texts(svg):
    """What a picture says: its words and numbers."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", svg, re.DOTALL)
    return [re.sub(r"<[^>]+>|\s+", " ", text).strip() for text in found]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", ["docs/index.md", *STEPS])
def test_the_pictures_are_what_the_page_draws(name, lang, tmp_path):
    if lang == "zh":
        try:
            families("zh")
        except FontError:
            pytest.skip("no font with Chinese characters is installed")
    draw(name, tmp_path, lang)
    shown = set(re.findall(r"images/([\w-]+)(?:\.zh)?\.svg", page(name))) - {
        picture.removesuffix(".svg") for picture in MEASURED
    }
    assert shown == {path.stem for path in tmp_path.glob("*.svg")}
    for stem in shown:
        ending = ".svg" if lang == "en" else ".zh.svg"
        stored = (ROOT / "docs" / "images" / f"{stem}{ending}").read_text()
        assert texts((tmp_path / f"{stem}.svg").read_text()) == texts(stored)
        assert f"images/{stem}{ending}" in page(name if lang == "en" else chinese(name))


@pytest.mark.parametrize("step", TOLD)
def test_a_page_tells_what_its_code_prints(step, tmp_path):
    name, out = f"docs/tutorial/{step}.md", io.StringIO()
    with chdir(tmp_path), redirect_stdout(out):
        for fence in fences(name, "python"):
            if "print(" in fence.text and "read_mixture" not in fence.text:
                exec(compile(fence.text, name, "exec"), {})
    for told in TOLD[step]:
        assert told in out.getvalue()
        assert told in page(name)
        assert told in page(chinese(name))


@pytest.mark.parametrize("name", STEPS)
def test_both_languages_tell_the_same_measured_numbers(name):
    rows = [re.findall(r"^\| .*\d\.\d{3}.*$", page(n), re.MULTILINE) for n in (name, chinese(name))]
    numbers = [[re.findall(r"[−+]?\d[\d.,]*\d", row) for row in found] for found in rows]
    assert numbers[0] == numbers[1]
    assert numbers[0]


def test_the_steps_of_the_tutorial_are_six_and_lead_to_each_other():
    assert len(STEPS) == 6
    for version in (lambda name: name, chinese):
        names = [version(name).rpartition("/")[2] for name in STEPS]
        for before, after in pairwise(names):
            assert f"({after})" in page(f"docs/tutorial/{before}")
            assert f"({before})" in page(f"docs/tutorial/{after}")
        home = page(version("docs/index.md"))
        assert all(f"(tutorial/{name})" in home for name in names)


@pytest.mark.parametrize("version", [lambda name: name, chinese], ids=["en", "zh"])
def test_the_largest_slopes_that_step_four_tells_are_right(version):
    gelu = 0.5 * (1 + erf(1)) + exp(-1) / sqrt(pi)  # Φ(x) + x·φ(x) is largest at √2
    silu = max(
        s * (1 + x * (1 - s)) for x in (i / 1000 for i in range(6000)) for s in [1 / (1 + exp(-x))]
    )
    text = page(version("docs/tutorial/4-activations.md"))
    for slope in (gelu, silu):
        assert f"{100 * (slope - 1):.0f} %" in text


@pytest.mark.parametrize("version", [lambda name: name, chinese], ids=["en", "zh"])
def test_the_trap_is_shown_as_the_readme_shows_it(version):
    (trap,) = (f.text for f in fences("README.md", "text") if "lint.allow" in f.text)
    assert trap in page(version("docs/tutorial/6-experts.md"))

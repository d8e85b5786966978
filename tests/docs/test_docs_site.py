"""The site: it builds without a warning, needs no network, and its reference has every name."""

import dataclasses
import re
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import PurePosixPath
from urllib.parse import unquote, urldefrag

import pytest
import yaml
from docs_reader import DOCS, PAIRS, ROOT, page

import mlpkit
from mlpkit.cli import VERBS
from mlpkit.configs.run import RunConfig
from mlpkit.hookspecs import Hooks
from mlpkit.plugins import registries

sys.path.insert(0, str(ROOT / "docs" / "site"))
from breaks import breakable, joined
from included import INCLUSION, InclusionError, block, file_of, included, source
from links import for_site, on_site

sys.path.pop(0)

pytestmark = pytest.mark.xdist_group("site")  # one process builds it, and once

# what makes a browser fetch something
FETCHING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
UNFETCHED = {"canonical", "next", "prev", "alternate"}


class Read(HTMLParser):
    """The links, anchors, headings and fetched addresses of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.fetched, self.languages = [], set(), [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors.add(attrs.get("id"))
        if tag == "a" and "href" in attrs:
            self.links.append(unquote(attrs["href"]))
            if "hreflang" in attrs:
                self.languages[attrs["hreflang"]] = unquote(attrs["href"])
        if tag in FETCHING and attrs.get("rel") not in UNFETCHED and FETCHING[tag] in attrs:
            self.fetched.append(attrs[FETCHING[tag]])


@pytest.fixture(scope="session")
def pages(site):
    """Every page of the built site, by its place."""
    found = {p.relative_to(site).as_posix(): Read(p.read_text()) for p in site.rglob("*.html")}
    return {place: read for place, read in found.items() if PurePosixPath(place).name != "404.html"}


def titles(site, place):
    """The headings of a built page, as text."""
    found = re.findall(r"<h[1-6][^>]*>(.*?)<a class=.headerlink", (site / place).read_text())
    return [unescape(re.sub(r"<[^>]+>", "", heading)) for heading in found]


def test_the_site_has_every_page_in_both_languages(pages):
    places = {name.removeprefix("docs/").replace(".md", ".html") for name in DOCS}
    places = {place for place in places if not place.endswith(".zh.html")}
    places |= {"readme.html", "contributing.html", "changelog.html"}
    assert places <= set(pages)
    assert {place for place in pages if not place.startswith("zh/")} == {
        place.removeprefix("zh/") for place in pages if place.startswith("zh/")
    }


def test_every_page_is_in_the_navigation(pages):
    def reached(item):
        values = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        return {item} if isinstance(item, str) else set().union(*map(reached, values))

    nav = yaml.safe_load(page("mkdocs.yml"))["nav"]
    in_english = {place for place in pages if not place.startswith("zh/")}
    assert {name.replace(".md", ".html") for name in reached(nav)} == in_english


def test_every_title_of_the_navigation_has_a_chinese_one():
    def named(item):
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        return set(item if isinstance(item, dict) else ()).union(*map(named, inner))

    titles = yaml.safe_load(page("mkdocs.zh.yml"))["extra"]["titles"]
    assert set(titles) == named(yaml.safe_load(page("mkdocs.yml"))["nav"])


def test_every_link_and_anchor_of_the_built_site_leads_somewhere(site, pages):
    for place, read in pages.items():
        folder = (site / place).parent
        for link in read.links:
            target, anchor = urldefrag(link)
            if re.match(r"[a-z]+:", target):
                continue
            path = (folder / target).resolve() if target else site / place
            path = path / "index.html" if path.is_dir() else path
            assert path.is_file(), (place, link)
            if anchor and path.suffix == ".html":
                assert anchor in pages[path.relative_to(site).as_posix()].anchors, (place, link)


def test_a_page_fetches_nothing_from_elsewhere(site, pages):
    for place, read in pages.items():
        assert not [link for link in read.fetched if re.match(r"(https?:)?//", link)], place
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:|@import", path.read_text()), path


def test_the_switch_leads_to_the_same_page_in_the_other_language(site, pages):
    for place, read in pages.items():
        own = place.removeprefix("zh/")
        folder = (site / place).parent
        found = {k: (folder / link).resolve() for k, link in read.languages.items()}
        assert found == {"en": site / own, "zh": site / "zh" / own}, place


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[1])
def test_a_translated_page_is_shown_in_its_language_with_the_original_anchors(pair, site, pages):
    place = pair[0].replace("README.md", "readme.md").removeprefix("docs/").replace(".md", ".html")
    assert re.search("[一-鿿]", titles(site, f"zh/{place}")[1])
    assert not re.search("[一-鿿]", "".join(titles(site, place)))
    first, second = (
        re.findall(r'<h[1-6] id="([^"]+)"', (site / p).read_text()) for p in (place, f"zh/{place}")
    )
    assert first == second


def keys(schema, prefix=""):
    """Every key of a configuration."""
    for field in dataclasses.fields(schema):
        yield f"{prefix}{field.name}"
        if dataclasses.is_dataclass(field.default_factory):
            yield from keys(field.default_factory, f"{prefix}{field.name}.")


def test_the_reference_has_a_heading_for_everything(site):
    python = titles(site, "reference/python.html")
    assert {f"mlpkit.{name}" for name in mlpkit.__all__} - set(python) == {"mlpkit.__version__"}
    command_line = titles(site, "reference/command-line.html")
    assert {f"mlpkit {verb}" for verb in VERBS} <= set(command_line)
    assert set(keys(RunConfig)) <= set(titles(site, "reference/configuration.html"))
    hooks = {f"{name}()" for name in vars(Hooks) if name.startswith("mlpkit_")}
    assert hooks <= set(titles(site, "reference/hooks.html"))
    for noun, registry in registries().by_noun().items():
        shipped = {n for n in registry.names() if str(registry.provider(n)).startswith("mlpkit 0")}
        assert shipped == set(titles(site, f"reference/{noun}.html")[1:])
    presets = titles(site, "reference/presets.html")
    families = {f"ffn={path.stem}" for path in (ROOT / "conf" / "ffn").glob("*.yaml")}
    assert families <= set(presets)


def test_the_reference_shows_values_limits_formulas_and_papers(site):
    def text(place):
        return " ".join(unescape(re.sub(r"<[^>]+>", "", (site / place).read_text())).split())

    assert "steps between validations; ≥ 1 type: int default: 200" in text(
        "reference/configuration.html"
    )
    activation = text("reference/activation.html")
    assert "paper: Elfwing 2017, arXiv:1702.03118 aliases: swish formula: x·σ(x)" in activation
    assert "range: [-0.2785, ∞)" in activation
    swiglu = text("reference/ffn.html").partition("mlpkit.ffns:GatedFFN")[2]
    assert "intermediate_size int | str | None null" in swiglu
    assert "usage: mlpkit generate [-h]" in text("reference/command-line.html")


def test_a_page_of_code_shows_the_lines_of_the_source(site):
    shown = re.sub(r"<[^>]+>", "", (site / "follow-x.html").read_text())
    names = [m.groups() for m in INCLUSION.finditer(page("docs/follow-x.md"))]
    assert len(names) > 10
    for module, name, link in names:
        assert (ROOT / "docs" / link).resolve() == file_of(module)
        for line in source(file_of(module), name)[1]:
            assert line in unescape(shown)


def test_included_code_is_a_definition_with_its_place_moved_to_the_margin():
    first, lines = source(file_of("mlpkit.ffns.gated"), "GatedFFN.forward")
    whole = file_of("mlpkit.ffns.gated").read_text().splitlines()
    assert whole[first - 1] == "    def forward(self, x: Tensor) -> Tensor:"
    assert lines[0] == "def forward(self, x: Tensor) -> Tensor:"
    assert lines[-1] == "    return out"
    shown = block("mlpkit.ffns.gated", "GatedFFN.forward")
    assert f"gated.py#L{first}-L{first + len(lines) - 1}" in shown
    text = "a [`mlpkit.ffns.gated:GatedFFN`](../mlpkit/ffns/gated.py) in a sentence"
    assert included(text) == text


@pytest.mark.parametrize(
    ("module", "name"), [("mlpkit.ffns.gated", "GatedFFN.backward"), ("mlpkit.fnns", "GatedFFN")]
)
def test_a_name_that_is_gone_stops_the_build(module, name):
    with pytest.raises(InclusionError, match=re.escape(name if "ffns" in module else module)):
        block(module, name)


def test_names_in_tables_break_between_their_words(site):
    name, broken = "<code>ffn.norm_topk</code>", "<code>ffn.<wbr>norm_<wbr>topk</code>"
    few, many = (f"<tr>{'<td>a.b</td>' * n}<td>{name}</td></tr>{name}" for n in (3, 4))
    assert breakable(few) == few
    assert breakable(many) == many.replace(name, broken, 1)
    assert "<code>ffn.<wbr>num_<wbr>experts</code>" in (site / "naming.html").read_text()


def test_chinese_lines_are_joined_without_a_space(site):
    assert joined("一，\n  二\n三 a\nb：\n`c`\n\n四\n- 五\n") == "一，二三 a\nb：`c`\n\n四\n- 五\n"
    home = (site / "zh" / "index.html").read_text()
    assert not re.search("[一-鿿]\n[一-鿿]", home)


def test_links_are_told_for_the_site():
    anchors = {"README.zh-CN.md": {"退出码": "exit-codes"}}
    text = "# A\n\n[x](b.md) · [y](../README.md)\n\n[c](../README.zh-CN.md#退出码) `[d](e)`\n"
    assert for_site(text, "docs/a.md", anchors) == "# A\n\n[c](readme.md#exit-codes) `[d](e)`\n"
    assert on_site("docs/plugins.zh.md", "README.zh-CN.md") == "plugins.md"
    assert on_site("docs/sweeps.md", "docs/tutorial/5-gate.md") == "../sweeps.md"
    assert on_site("conf/config.yaml", "docs/a.md").endswith("/blob/main/conf/config.yaml")
    kept = "```text\n[a](b.md) · [c](d.md)\n```\n"
    assert for_site(kept, "docs/a.md", {}) == kept

"""What the pages claim: links lead somewhere, paths and names exist, tables are complete."""

import re

import pytest
import torch
import yaml
from docs_reader import (
    DOCS,
    ORIGINALS,
    PAGES,
    PAIRS,
    ROOT,
    exists,
    fences,
    headings,
    page,
    prose,
    slug,
    strip_comments,
    table,
    words,
)
from omegaconf import OmegaConf

import mlpkit
from mlpkit.hookspecs import HOOKS
from mlpkit.plugins import GROUP, registries


def test_contributing_names_every_noun():
    line = next(line for line in page("CONTRIBUTING.md").splitlines() if "is one noun" in line)
    assert re.findall(r"\w+", line.partition(":")[2].partition(".")[0]) == list(
        registries().by_noun()
    )


def test_the_plugin_page_has_a_heading_for_every_hook_and_every_state_and_variable():
    shown = {heading for _, heading in headings("docs/plugins.md")}
    assert {f"{hook}()" for hook in HOOKS} <= shown
    source = "".join(path.read_text() for path in (ROOT / "mlpkit").rglob("*.py"))
    variables = set(re.findall(r"\bMLPKIT_[A-Z_]+\b", source))
    variables -= {"MLPKIT_API"}  # a name in a plugin's module
    assert variables <= set(table("docs/plugins.md", "Environment variables"))
    states = set(re.findall(r'state="(\w+)"', source))
    assert set(table("docs/plugins.md", "What becomes of a plugin")) == states


@pytest.mark.parametrize("name", PAGES)
def test_paths_in_backticks_exist(name):
    folders = "mlpkit|conf|docs|tests|plugins|benchmarks"
    files = r"[\w.-]+\.(?:md|txt|toml|yaml)|Makefile|LICENSE|\.ci/run"
    own = {"config.yaml", "notes.txt", "sample.txt", "log.txt"}  # a user's files
    for word in words(name):
        if re.fullmatch(rf"(?:{folders})/[\w./-]*|{files}", word) and word not in own:
            assert (ROOT / word).exists(), word
        if re.fullmatch(r"mlpkit(\.[a-z]\w*)+", word) and word != GROUP:
            assert exists(word), word


@pytest.mark.parametrize("name", PAGES)
def test_links_between_pages_resolve(name):
    links = re.findall(r"\]\(([^)\s]+)\)", prose(name))
    assert links
    for link in links:
        target, _, anchor = link.partition("#")
        if target.startswith("http"):
            continue
        linked = (ROOT / name).parent / target if target else ROOT / name
        assert linked.is_file(), link
        if anchor:
            relative = str(linked.resolve().relative_to(ROOT))
            assert anchor in {slug(heading) for _, heading in headings(relative)}, link


def test_contributing_makefile_and_pre_commit_run_the_same_checks():
    recipe = page("Makefile").partition("\nlint:")[2].partition("\n\n")[0].splitlines()[1:]
    lint = [line.strip().removeprefix("$(BIN)/") for line in recipe]
    config = yaml.safe_load(page(".pre-commit-config.yaml"))
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert [hook["entry"].removeprefix(".venv/bin/") for hook in hooks] == lint
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in hooks)
    assert table("CONTRIBUTING.md", "The checks")[:3] == lint


def test_the_make_targets_of_the_pages_exist():
    targets = set(re.findall(r"^([a-z]+):", page("Makefile"), re.MULTILINE))
    named = {t for name in PAGES for t in re.findall(r"\bmake ([a-z]+)\b(?=`|$)", page(name), re.M)}
    assert {"train", "test", "lint"} <= named <= targets


def test_every_page_and_picture_of_docs_is_linked():
    texts = {name: page(name) for name in PAGES}
    linked = "".join(texts.values())
    assert all(f"{path.name})" in linked for path in (ROOT / "docs" / "images").iterdir())
    assert set(ORIGINALS) - set(re.findall(r"\]\(([^)#]+)", texts["README.md"])) == set()


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[1])
def test_a_page_and_its_translation_pair_up(pair):
    original, translation = (fences(n, "bash", "console", "python", "toml", "yaml") for n in pair)
    assert [strip_comments(f) for f in original] == [strip_comments(f) for f in translation]
    first, second = ([level for level, _ in headings(name)] for name in pair)
    assert first == second
    first, second = (len(re.findall(r"!\[[^]]*\]\(", page(name))) for name in pair)
    assert first == second


def test_the_pages_for_newcomers_have_a_translation():
    both = {original for original, _ in PAIRS}
    tutorial = {name for name in ORIGINALS if name.startswith("docs/tutorial/")}
    assert {"README.md", "docs/index.md", "docs/plugins.md", *tutorial} == both


@pytest.mark.parametrize("path", sorted((ROOT / "conf").rglob("*.yaml")), ids=lambda p: p.stem)
def test_every_preset_composes_and_builds(path):
    group = path.parent.relative_to(ROOT / "conf").as_posix()
    override = {
        ".": [],
        "ffn/router": ["ffn=moe", f"ffn/router={path.stem}", *GROUPED],
        "ffn/balance": [f"ffn={path.stem}"],  # with the router that it moves
    }.get(group, [f"{group}={path.stem}"])
    small = ["model.hidden_size=32", "model.num_layers=2"]
    config = mlpkit.compose([*override, *small, *ALLOWED])
    with torch.device("meta"):
        model = mlpkit.build_model(config)
    assert all(layer.ffn for layer in model.layers)


# Routers whose groups want more experts, and traps that a model was trained with.
GROUPED = ("ffn.num_experts=16", "ffn.num_experts_per_tok=4")
ALLOWED = ("lint.allow=[top1-normalised]",)


@pytest.mark.parametrize("name", DOCS)
def test_every_configuration_on_a_page_is_one(name):
    for fence in fences(name, "yaml"):
        keys = OmegaConf.create(fence.text)
        if "defaults" not in keys:  # else a preset, which the page's own commands use
            OmegaConf.merge(mlpkit.compose([]), keys)  # refuses keys that there are not


def test_the_naming_page_uses_words_that_exist():
    from transformers import DeepseekV3Config, Qwen3MoeConfig

    dense, moe = (mlpkit.compose([f"ffn={name}"]) for name in ("swiglu", "moe"))
    weights = mlpkit.build_ffn(
        "moe", hidden_size=8, router={"name": "topk", "selection_bias": True}
    )
    tensors = {name.replace("experts.", "") for name in weights.state_dict()}
    theirs = (Qwen3MoeConfig(), None, DeepseekV3Config(scoring_func="sigmoid"))
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", prose("docs/naming.md"), re.MULTILINE)
    for ours, others in rows:
        parent, _, key = ours.rpartition(".")
        if any(key in (OmegaConf.select(config, parent) or ()) for config in (dense, moe)):
            for config, word in zip(theirs, others.split(" | "), strict=False):
                assert config is None or word == "–" or hasattr(config, word.strip("`")), word
        else:
            names = {f"ffn.{name}" for name in tensors}
            assert ours in names | {name.removesuffix(".weight") for name in names}, ours
    assert len(rows) == 22

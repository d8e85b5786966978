"""The two READMEs: what they show is what is printed, and their tables say what is."""

import json
import re
import shutil
import tomllib

import pytest
from docs_reader import (
    READMES,
    ROOT,
    Reader,
    fences,
    form,
    page,
    table,
    trimmed,
    words,
)
from test_layers import ORDER

import mlpkit
from mlpkit.cli import VERBS
from mlpkit.compose import ConfigError
from mlpkit.plugins import registries
from mlpkit.sizing import WIDTH_RULES, resolve_width

pytestmark = pytest.mark.xdist_group("readme")  # one process follows it, and once


def test_every_block_of_the_readme_runs_in_an_empty_folder(readme_folder):
    places = ("outputs/*/*", "multirun/*")
    runs, jobs = (list(readme_folder.glob(f"{place}/result.json")) for place in places)
    assert (len(runs), len(jobs)) == (7, 4)  # train, gated, own text, three mixtures, plugin
    assert all('"status": "ok"' in path.read_text() for path in (*runs, *jobs))


def test_the_run_directory_holds_the_files_of_the_readmes_table(readme_folder):
    made = {path.name for path in readme_folder.glob("outputs/*/*/*")} - {".lock"}
    for name, heading in zip(READMES, ("What training prints", "训练时打印什么"), strict=True):
        assert set(table(name, heading)) == made


def test_the_design_page_has_every_key_of_a_result_and_of_the_metrics(readme_folder):
    keys = set()
    for run in readme_folder.glob("outputs/*/*"):
        result = json.loads((run / "result.json").read_text())
        keys |= {*result, *result["metrics"], *result["data"]}
        for line in (run / "metrics.jsonl").read_text().splitlines():
            keys |= set(json.loads(line))
    terms = {f"balance_{name}" for name in registries().balance.names()} & keys
    assert {"balance_load", "balance_z", "balance_load_hf"} <= terms  # mixtures were among them
    assert {"balance_NAME", *keys} - terms <= set(words("docs/design.md"))


def test_the_excerpt_has_the_form_of_a_real_run(readme_folder, server):
    printed = Reader(readme_folder, server).line("mlpkit train")
    real = {form(line) for line in trimmed(printed)}
    (excerpt,) = (f for f in fences("README.md", "text") if "validation loss" in f.text)
    for line in trimmed(excerpt.text):
        if line.startswith("computing"):  # the machine's own
            assert re.fullmatch(r"computing  \w+, \w+ \(.+\), threads: \d+", line)
        elif line != "…":
            assert form(line) in real


def test_the_health_and_the_trap_of_a_mixture_are_shown_as_they_are_printed(readme_folder, server):
    reader = Reader(readme_folder, server)
    printed = reader.line("mlpkit train ffn=moe")
    shown = {name: [f.text for f in fences(name, "text")] for name in READMES}
    (health,) = (text for text in shown["README.md"] if "MaxVio" in text)
    assert form(health.rstrip()) in {form(line) for line in trimmed(printed)}
    (trap,) = (text for text in shown["README.md"] if "lint.allow" in text)
    with pytest.raises(ConfigError) as refused:
        mlpkit.compose(["ffn=moe", "ffn.num_experts_per_tok=1"])
    assert " ".join(trap.split()) == f"mlpkit: {' '.join(str(refused.value).split())}"
    assert {health, trap} <= set(shown["README.zh-CN.md"])


@pytest.mark.parametrize("name", READMES)
def test_a_readme_has_the_balance_and_the_presets_that_there_are(name):
    default = mlpkit.compose(["ffn=moe"]).ffn.balance
    shown = dict(re.findall(r"`(load|z)` (?:with|为) ([\d.]+)", page(name)))
    assert {term: float(value) for term, value in shown.items()} == dict(default)
    families = {path.stem for path in (ROOT / "conf" / "ffn").glob("*.yaml")}
    others = families & {"minimind", "minimind_2025"}  # no model types of transformers
    (sentence,) = (s for s in page(name).splitlines() if f" {len(families)} " in s)
    assert f" {len(families - others)} " in sentence


def test_both_readmes_have_the_same_excerpt_tables_and_links():
    english, chinese = (page(name) for name in READMES)
    for pattern in (r"^\| `([^`]+)` \|", r"^\| .*\d{3} \| \d+ \|.*$", r"\]\(([^)#]+)"):
        first, second = (re.findall(pattern, text, re.MULTILINE) for text in (english, chinese))
        assert len(first) == len(second)
    assert table("README.md", "Where things are") == table("README.zh-CN.md", "代码在哪里")
    excerpts = [[f.text for f in fences(n, "text") if "validation loss" in f.text] for n in READMES]
    assert excerpts[0] == excerpts[1]
    assert len(excerpts[0]) == 1


@pytest.mark.parametrize("name", READMES)
def test_a_readme_names_every_verb_and_kind(name):
    text = page(name)
    kinds = re.search(r"`mlpkit list`[^:：]*[:：] ?([\w, 、]+)", text).group(1)
    assert re.split("[, 、]+", kinds) == list(registries().by_noun())
    for verb in VERBS:
        assert f"mlpkit {verb}" in text


def test_the_number_of_activations_is_right():
    count = len(registries().activation.names())
    assert f"# {count} activations" in page("README.md")
    assert f"# {count} 个激活函数" in page("README.zh-CN.md")


@pytest.mark.parametrize(
    ("name", "heading"), [("README.md", "Exit codes"), ("README.zh-CN.md", "退出码")]
)
def test_the_table_of_exit_codes_has_those_of_the_code(name, heading):
    source = "".join(path.read_text() for path in (ROOT / "mlpkit").rglob("*.py"))
    codes = {0, 1} | {int(code) for code in re.findall(r"^    exit_code = (\d+)\b", source, re.M)}
    assert [int(cell) for cell in table(name, heading)] == sorted(codes)


@pytest.mark.parametrize("name", READMES)
def test_the_widths_in_the_readmes_are_what_the_rules_give(name):
    for rule in (*WIDTH_RULES, "llama", "llama:1.3:1024"):
        row = next(line for line in page(name).splitlines() if re.match(rf"\|.*`{rule}` \|", line))
        shown = [int(cell) for cell in re.findall(r"\| (\d+) ", row)][-3:]
        assert shown == [resolve_width(rule, size, "8/3") for size in (128, 512, 768)]


@pytest.mark.parametrize("name", READMES)
def test_the_default_activations_in_a_readme_are_those_of_the_catalogue(name):
    for ffn in ("naive", "gated", "swiglu"):
        default = registries().ffn.get(ffn).default_activation
        assert re.search(rf"`{ffn}` (为 )?{default}\b", page(name))


def test_the_table_of_places_is_complete_and_in_the_order_of_imports():
    places = table("README.md", "Where things are")
    modules = [place.removeprefix("mlpkit.") for place in places if place.startswith("mlpkit.")]
    present = {p.stem for p in (ROOT / "mlpkit").iterdir() if p.suffix == ".py" or p.is_dir()}
    assert present - {"__init__", "__main__", "__pycache__", "conf"} == set(modules)
    assert modules == [module for module in ORDER if module in modules]


def test_the_pinned_torch_is_the_one_in_the_readmes():
    pinned = re.search(r"^torch==.+$", page("constraints.txt"), re.MULTILINE).group()
    assert all(f"`{pinned}`" in page(name) for name in READMES)


def test_the_supported_pythons_are_those_of_the_project_file():
    project = tomllib.loads(page("pyproject.toml"))["project"]
    minors = [int(m) for c in project["classifiers"] for m in re.findall(r"3\.(\d+)$", c)]
    assert project["requires-python"] == f">=3.{min(minors)},<3.{max(minors) + 1}"
    for name in READMES:
        assert all(f"3.{minor}" in page(name) for minor in minors)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_completion_lines_for_other_shells_work(shell, tmp_path):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    line = (
        "mlpkit completion fish | source" if shell == "fish" else 'eval "$(mlpkit completion zsh)"'
    )
    Reader(tmp_path, None).shell(shell, line)

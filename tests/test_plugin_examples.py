"""The example distributions of plugins/ and a generated one: installed, tested, swept, gone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlpkit.hookspecs import HOOKS
from mlpkit.plugins import KINDS
from mlpkit.testing.running import KINDS as KIT

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "plugins").glob("mlpkit-*"))
NAMES = [folder.name for folder in EXAMPLES]


def install(site, *folders):
    """Installs distributions as pip does, into a folder of their own."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    flags = ["--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([*pip, *flags, *map(str, folders)], check=True)


def run(*arguments, site=None, cwd=None, **env):
    """Runs a Python command with what is installed in a folder."""
    path = os.pathsep.join(filter(None, [str(site or ""), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **env},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )


def mlpkit(*arguments, **where):
    """What the program prints; it must end with 0."""
    ended = run("-m", "mlpkit", *arguments, **where)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    install(folder, *EXAMPLES)
    return folder


def code_lines(folder):
    """Lines of a distribution that are neither empty nor its tests."""
    files = [p for p in folder.rglob("*.*") if p.suffix in (".py", ".toml", ".yaml")]
    own = [p for p in files if "tests" not in p.parts]
    return sum(bool(line.strip()) for path in own for line in path.read_text().splitlines())


@pytest.mark.parametrize("folder", EXAMPLES, ids=NAMES)
def test_an_example_is_short(folder):
    assert 30 < code_lines(folder) < 72


def test_there_is_an_example_of_an_activation_an_ffn_a_router_with_preset_and_a_balance(site):
    rows = json.loads(mlpkit("plugins", "--json", site=site))["plugins"]
    provided = {entry for row in rows if row["name"] != "mlpkit" for entry in row["provides"]}
    assert provided == {
        "activation:acon",
        "ffn:normformer",
        "router:cosine",
        "preset:ffn/router/cosine_sharp",
        "balance:coverage",
    }
    assert [row["distribution"] for row in rows] == ["mlpkit", *NAMES]
    assert {row["version"] for row in rows[1:]} == {"0.1.0"}


def test_declaring_the_examples_imports_no_torch(site):
    modules = ", ".join(name.replace("-", "_") for name in NAMES)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert run("-c", code, site=site).returncode == 0


def test_the_examples_pass_their_own_tests(site):
    folders = [folder / "tests" for folder in EXAMPLES]
    ended = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *folders, site=site)
    assert ended.returncode == 0, ended.stdout
    assert " passed" in ended.stdout


def test_everything_of_the_examples_is_an_option_wherever_its_kind_is(site, tmp_path):
    code = (
        "import json, sys; from mlpkit.compose import compose\n"
        "from omegaconf import OmegaConf\n"
        "print(json.dumps(OmegaConf.to_container(compose(sys.argv[1:]).ffn)))"
    )
    chosen = ["ffn=moe", "ffn/expert=normformer", "ffn.expert.eps=0.1", "activation=acon"]
    chosen += ["ffn/router=cosine", "ffn.router.temperature=0.2", "+ffn.balance.coverage=0.5"]
    ended = run("-c", code, *chosen, site=site)
    assert ended.returncode == 0, ended.stderr
    ffn = json.loads(ended.stdout)
    assert (ffn["expert"]["name"], ffn["expert"]["eps"]) == ("normformer", 0.1)
    assert ffn["router"] == {"name": "cosine", "temperature": 0.2}
    assert ffn["balance"]["coverage"] == 0.5
    wrong = run("-c", code, "ffn=normformer", "ffn.eps=much", site=site)
    assert "ffn.eps" in wrong.stderr
    assert "could not be converted to Float" in wrong.stderr
    shown = mlpkit("train", "--help", site=site)
    assert re.search(r"^ffn: .*\bnormformer\b", shown, re.MULTILINE)
    assert re.search(r"^activation: .*\bacon\b", shown, re.MULTILINE)
    assert re.search(r"^ffn/router: .*\bcosine\b", shown, re.MULTILINE)
    assert "eps: 1.0e-05" in mlpkit("train", "ffn=normformer", "--cfg", "job", site=site)
    expand = "import sys; from mlpkit.sweep import expand; print(expand(sys.argv[1:]))"
    globbed = run("-c", expand, "ffn=glob(norm*)", "activation=glob(ac*)", site=site)
    assert globbed.stdout == "[['ffn=normformer', 'activation=acon']]\n"


def test_a_preset_of_a_plugin_is_added_and_shadows_nothing(site, tmp_path):
    code = (
        "import sys; from mlpkit.compose import compose; c = compose(sys.argv[1:]).ffn.router\n"
        "print(c.name, c.get('temperature'), c.get('score'))"
    )
    chosen = run("-c", code, "ffn=moe", "ffn/router=cosine_sharp", site=site)
    assert chosen.stdout == "cosine 0.05 None\n", chosen.stderr
    assert "cosine_sharp" in mlpkit("train", "--help", site=site)
    group = tmp_path / "conf" / "ffn" / "router"
    group.mkdir(parents=True)
    for taken in ("topk", "mixtral"):
        (group / f"{taken}.yaml").write_text("defaults: [cosine, _self_]\n")
    (tmp_path / "shadowing.py").write_text(
        "from pathlib import Path\nfrom mlpkit import hookimpl\n"
        "@hookimpl\ndef mlpkit_presets():\n    yield Path(__file__).parent / 'conf'\n"
    )
    env = {"MLPKIT_PLUGIN_MODULES": str(tmp_path / "shadowing.py")}
    for taken in ("topk", "mixtral"):
        ended = run("-c", code, "ffn=moe", f"ffn/router={taken}", site=site, **env)
        assert ended.stdout == "topk None softmax\n", ended.stderr
        told = mlpkit("plugins", site=site, **env)
        assert f"the preset ffn/router/{taken} of " in told


def test_another_hydra_program_sees_nothing_of_mlpkit_or_its_plugins(site, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("a: 1\n")
    (tmp_path / "app.py").write_text(
        "import hydra\n"
        "@hydra.main(version_base='1.3', config_path='conf', config_name='config')\n"
        "def app(config):\n    print(config)\n"
        "app()\n"
    )
    for flags in (["--help"], ["--info", "plugins"], []):
        ended = run(tmp_path / "app.py", *flags, site=site, cwd=tmp_path)
        assert ended.returncode == 0
        assert not re.search("mlpkit|swiglu|normformer|cosine", ended.stdout + ended.stderr)
    assert run(tmp_path / "app.py", "ffn=swiglu", site=site, cwd=tmp_path).returncode == 1
    assert not list(site.rglob("hydra_plugins"))
    assert not list((ROOT / "mlpkit").rglob("hydra_plugins"))


@pytest.fixture
def tiny_run(tmp_path, tiny, monkeypatch):
    """Trains tiny models in an empty folder and gives the results by their overrides."""
    options = [o for o in tiny if not o.startswith("ffn.")]

    def train(*arguments, site):
        # the basic and the joblib launcher start in one folder: results must not meet
        folder = tmp_path / re.sub(r"\W+", "_", arguments[-1])
        folder.mkdir()
        shown = mlpkit("train", *arguments, *options, site=site, cwd=folder)
        results = [json.loads(p.read_text()) for p in folder.glob("*/**/result.json")]
        assert {r["status"] for r in results} == {"ok"}, shown
        return results

    return train


def test_a_strangers_activation_is_swept_inside_a_strangers_ffn(site, tiny_run):
    results = tiny_run("-m", "activation=acon,null", "ffn=normformer", site=site)
    sizes = {r["ffn"].partition("(")[0]: r["metrics"]["parameters"] for r in results}
    assert sorted(sizes) == ["normformer", "normformer[acon"]
    for result in results:
        assert result["plugins"] == dict.fromkeys(NAMES, "0.1.0")
    # two layers, each with three numbers that the activation learns
    assert sizes["normformer[acon"] - sizes["normformer"] == 6


def test_a_new_plugin_passes_its_tests_and_is_gone_when_it_is_uninstalled(tmp_path, tiny_run):
    mlpkit("new-plugin", "stranger", cwd=tmp_path)
    site = tmp_path / "site"
    install(site, tmp_path / "mlpkit-stranger")
    tests = tmp_path / "mlpkit-stranger" / "tests"
    ended = run("-m", "pytest", "-q", "-p", "no:cacheprovider", tests, site=site)
    assert ended.returncode == 0, ended.stdout
    (row,) = json.loads(mlpkit("list", "ffn", "stranger", "--json", site=site))
    assert row["provider"] == "mlpkit-stranger 0.1.0"
    (result,) = tiny_run("training.log_every=1", "ffn=stranger", site=site)
    assert result["ffn"] == "stranger"
    assert result["plugins"] == {"mlpkit-stranger": "0.1.0"}
    gone = run("-m", "mlpkit", "train", "ffn=strangr", site=site)
    assert gone.returncode == 2
    assert "did you mean 'stranger'?" in gone.stderr
    gone = run("-m", "mlpkit", "train", "ffn=stranger")
    assert gone.returncode == 2
    assert "unknown ffn 'stranger'" in gone.stderr


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_a_sweep_over_a_strangers_ffn_runs_with_either_launcher(site, tiny_run, launcher):
    own = ["hydra.launcher.n_jobs=2"] if launcher == "joblib" else []
    results = tiny_run("-m", *own, "ffn=swiglu,normformer", f"hydra/launcher={launcher}", site=site)
    assert sorted(r["ffn"] for r in results) == ["normformer", "swiglu"]


@pytest.mark.slow
def test_a_local_file_reaches_the_workers_of_joblib(tmp_path, tiny):
    (tmp_path / "mine.py").write_text(
        "import mlpkit\n@mlpkit.register_activation('mine')\ndef mine(x):\n    return x.tanh()\n"
    )
    line = ["-m", "mlpkit", "-p", "./mine.py", "train", "-m", "hydra/launcher=joblib"]
    ended = run(*line, "hydra.launcher.n_jobs=2", "activation=mine,relu", *tiny, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "2 ok, 0 failed" in ended.stdout


@pytest.mark.slow
def test_help_is_as_fast_with_plugins_as_without(site):
    def best(**where):
        code = (
            "import time; start = time.perf_counter()\nfrom mlpkit.cli import main\n"
            "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
            "print(time.perf_counter() - start)"
        )
        return min(float(run("-c", code, **where).stdout.split()[-1]) for _ in range(5))

    assert best(site=site) - best() < 0.1


@pytest.mark.parametrize("noun", KINDS)
def test_every_extension_point_has_a_kit_a_hook_and_a_page_with_a_working_example(noun):
    assert list(KIT) == list(KINDS)
    page = (ROOT / f"docs/add-{noun}.md").read_text()
    hook = HOOKS[list(KINDS).index(noun)]
    assert f"{hook}()" in page
    assert f"check_{noun}" in page
    assert f"register_{noun}" in page
    for field in KINDS[noun].__dataclass_fields__:
        assert f"`{field}`" in page or field in ("name", "target", "config"), field
    for link in re.findall(r"\]\(([^)#]+)", page):
        assert (ROOT / "docs" / link).exists(), link


def test_the_plugin_page_ends_at_a_package_of_plugins():
    page = (ROOT / "docs/plugins.md").read_text()
    folder = ROOT / "plugins" / "mlpkit-normformer"
    for file in ("pyproject.toml", "mlpkit_normformer/__init__.py", "mlpkit_normformer/ffn.py"):
        assert (folder / file).read_text().strip() in page, file

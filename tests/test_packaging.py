"""What is shipped: wheel, sdist and bare checkout work alone, and the program starts at once."""

import os
import re
import resource
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CPU_SECONDS = 0.5  # of user and system time, which other work on the machine does not lengthen
WITHOUT_TORCH = """
import contextlib, sys
from mlpkit.cli import main
with contextlib.suppress(SystemExit):  # argparse ends --help with it
    assert main({}) == 0
assert "torch" not in sys.modules
"""


def python(*arguments, folder, path=(), **settings):
    """Runs Python in a folder with these folders of modules, and returns what it prints."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "COLUMNS": "80"} | settings
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind, source, out):
    """Builds a wheel or an sdist without an environment of its own, and returns its path."""
    python("-m", "build", f"--{kind}", "--no-isolation", "-o", out, source, folder=out)
    (built,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The sdist, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", ROOT, folder)) as archive:
        archive.extractall(folder, filter="data")
    (root,) = (path for path in folder.iterdir() if path.is_dir())
    return root


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the wheel installed and nothing else."""
    target = tmp_path_factory.mktemp("installed")
    pip = ("-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check")
    python(*pip, "--target", target, wheel, folder=target)
    return target


@pytest.fixture
def plugin(tmp_path):
    """A folder that holds an installed plugin."""
    site = tmp_path / "site"
    info = site / "mlpkit_fake-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mlpkit-fake\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[mlpkit.plugins]\nfake = mlpkit_fake\n")
    (site / "mlpkit_fake.py").write_text(
        "from mlpkit import FFNSpec, hookimpl\n\n\n@hookimpl\ndef mlpkit_ffns():\n"
        "    yield FFNSpec(name='fake', target='nowhere:Fake', summary='never imported')\n"
    )
    return site


def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def sources(root, folder, pattern):
    return {p.relative_to(root).as_posix() for p in (root / folder).rglob(pattern)}


def test_the_wheel_holds_every_module_and_yaml_and_the_marker_of_its_types(wheel):
    expected = sources(ROOT, "mlpkit", "*.py") | {"mlpkit/py.typed"}
    expected |= {f"mlpkit/{name}" for name in sources(ROOT, "conf", "*.yaml")}
    assert "mlpkit/conf/config.yaml" in expected
    assert expected <= names(wheel)


def test_the_wheel_holds_nothing_but_the_package_and_its_metadata(wheel):
    assert {name.split("/")[0].partition("-")[0] for name in names(wheel)} == {"mlpkit"}
    # but the tests of the template, which are the new plugin's
    own = [name for name in names(wheel) if not name.startswith("mlpkit/template/")]
    assert not [name for name in own if re.search(r"(^|/)tests?(/|_)", name)]
    assert not [name for name in names(wheel) if name.endswith(".pyc")]
    assert "mlpkit/template/mlpkit-demo/pyproject.toml" in names(wheel)


def test_the_installed_wheel_composes_lists_and_finds_its_own_conf(installed, tmp_path):
    where = "import mlpkit; from mlpkit.compose import conf_dir; print(mlpkit.__file__, conf_dir())"
    found = python("-c", where, folder=tmp_path, path=[installed]).split()
    assert found == [str(installed / "mlpkit/__init__.py"), str(installed / "mlpkit/conf")]
    shown = python("-m", "mlpkit", "train", "--cfg", "job", folder=tmp_path, path=[installed])
    assert "ffn:\n  name: swiglu\n" in shown
    assert "swiglu" in python("-m", "mlpkit", "list", "ffn", folder=tmp_path, path=[installed])
    assert not list(tmp_path.iterdir())


def test_the_version_is_the_one_of_the_installed_metadata(installed, wheel, tmp_path):
    shown = python("-m", "mlpkit", "--version", folder=tmp_path, path=[installed])
    assert shown.split() == ["mlpkit", wheel.name.split("-")[1]]


def test_a_bare_checkout_finds_the_conf_beside_the_package(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("mlpkit", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    code = "from mlpkit.compose import compose, conf_dir; print(conf_dir(), compose().ffn.name)"
    shown = python("-c", code, folder=tmp_path / "empty", path=[ROOT]).split()
    assert shown == [str(ROOT / "conf"), "swiglu"]
    linked = python("-c", code, folder=tmp_path / "empty", path=[tmp_path]).split()
    assert linked == [str(tmp_path / "conf"), "swiglu"]


def test_the_sdist_holds_what_building_and_testing_need(sdist):
    for folder in ("mlpkit", "conf", "tests", "docs"):
        for pattern in ("*.py", "*.yaml", "*.md"):
            assert sources(ROOT, folder, pattern) <= sources(sdist, folder, pattern)
    for name in ("Makefile", "constraints.txt", "pyproject.toml", "LICENSE", "README.zh-CN.md"):
        assert (sdist / name).read_bytes() == (ROOT / name).read_bytes()


def test_a_wheel_built_from_the_sdist_is_the_wheel_built_from_the_checkout(sdist, wheel, tmp_path):
    assert names(build("wheel", sdist, tmp_path)) == names(wheel)


@pytest.mark.parametrize("arguments", [["--help"], ["list", "ffn"], ["completion", "bash"]])
def test_what_needs_no_torch_imports_none_also_with_a_plugin(arguments, plugin, tmp_path):
    code = WITHOUT_TORCH.format(arguments)
    shown = python("-c", code, folder=tmp_path, path=[plugin])
    assert ("mlpkit-fake 1.2" in shown) == ("list" in arguments)
    python("-c", code, folder=tmp_path)


def cpu_seconds(path, folder):
    """The least user and system time of three ``mlpkit --help``."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        python("-m", "mlpkit", "--help", folder=folder, path=path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def test_help_answers_within_half_a_second_also_with_a_plugin(plugin, tmp_path):
    assert cpu_seconds([], tmp_path) < CPU_SECONDS
    assert cpu_seconds([plugin], tmp_path) < CPU_SECONDS

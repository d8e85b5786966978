"""Modules import only from those before them, and those for the command line without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mlpkit"
ORDER = (
    *("sizing", "specs", "hookspecs", "registry", "configs", "catalogue", "plugins", "schema"),
    *(
        "layers",
        "lint",
        "compose",
        "activations",
        "ffns",
        "routing",
        "routers",
        "balance",
        "experts",
    ),
    *("moe", "model", "data", "build", "describe", "figures", "convert", "parallel"),
    *("training", "report", "sweep", "testing", "cli"),
)
FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem[0] != "_"
)
WITHOUT_TORCH = [
    "sizing",
    "specs",
    "hookspecs",
    "registry",
    "configs.run",
    "catalogue",
    "plugins",
    "schema",
    "layers",
    "lint",
    "compose",
    "sweep",
    "cli",
    "cli.train",
    "cli.catalogue",
    "cli.plugins",
    "cli.check",
    "cli.new_plugin",
    "cli.doctor",
    "cli.describe",
    "cli.report",
    "cli.import_",
    "cli.export",
    "cli.upcycle",
    "cli.bench",
]


def imported(path):
    """The modules of mlpkit that a file imports anywhere in it, each by its first word."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
            if node.module == "mlpkit":
                names = [f"mlpkit.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("mlpkit."))


def layer(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_from_earlier_ones_alone(path):
    own = ORDER.index(layer(path))
    lower = {*ORDER[: own + 1], "__version__"}  # other public names would hide where they live
    upward = [name for name in imported(path) if name not in lower]
    assert not upward, f"{path.name} imports upward from {upward}"


def test_an_upward_import_would_be_seen(tmp_path):
    (tmp_path / "x.py").write_text(
        "import mlpkit.cli\nfrom mlpkit import build, __version__\n"
        "def f():\n    from mlpkit.model.cache import KVCache\n"
    )
    assert list(imported(tmp_path / "x.py")) == ["cli", "build", "__version__", "model"]


def test_no_import_is_relative():
    trees = (ast.walk(ast.parse(path.read_text())) for path in FILES)
    assert not any(isinstance(n, ast.ImportFrom) and n.level for tree in trees for n in tree)


def test_what_the_command_line_starts_with_imports_no_torch():
    code = (
        "import importlib, sys\n"
        f"for name in {WITHOUT_TORCH}:\n"
        "    importlib.import_module('mlpkit.' + name)\n"
        "    assert 'torch' not in sys.modules, name\n"
        "import mlpkit; mlpkit.FFNSpec, mlpkit.hookimpl, mlpkit.register_ffn, mlpkit.compose\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)

"""Seven broken distributions at once beside a good one: what works goes on, each is reported."""

import json
import os
import subprocess
import sys

import pytest

GOOD = """
from mlpkit import FFNSpec, hookimpl

@hookimpl
def mlpkit_ffns():
    yield FFNSpec(name="good_ffn", target="good_parts:Good", default_activation="relu")
"""
PARTS = """
from torch import nn

class Good(nn.Module):
    def __init__(self, *, hidden_size: int, activation: nn.Module, slope: float = 1.0):
        super().__init__()
        self.proj = nn.Linear(hidden_size, hidden_size)
        self.activation = activation

    def forward(self, x):
        return self.activation(self.proj(x))
"""
HEAD = "from mlpkit import FFNSpec, hookimpl\n"
CLASH = "@hookimpl\ndef mlpkit_ffns():\n    yield FFNSpec(name='swiglu', target='a:b')\n"
OF_FOO = "@hookimpl\ndef mlpkit_ffns():\n    yield FFNSpec(name='foo', target='a:b')\n"
BROKEN = {
    "clash": (HEAD + CLASH, "RegistrationError: ffn 'swiglu' is offered by both mlpkit "),
    "misspelt": (HEAD + CLASH.replace("ffns", "fnns"), "unknown hook 'mlpkit_fnns'"),
    "argument": (HEAD + CLASH.replace("s()", "s(registry)"), "{'registry'}"),
    "api": (HEAD + "MLPKIT_API = (2, 0)\n" + OF_FOO, "MLPKIT_API is 2.0, and this mlpkit has 1.0"),
    "exits": ("raise SystemExit(0)", "SystemExit: 0"),
    "dependency": (HEAD + "import no_such_thing\n" + OF_FOO, "No module named 'no_such_thing'"),
    "hangs": ("import time\ntime.sleep(60)", "LoadTimeout: not loaded after 1 s"),
}


def distribution(site, name, module_text):
    """What installing a distribution leaves: a module, and its metadata."""
    (site / f"plug_{name}.py").write_text(module_text)
    info = site / f"mlpkit_{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mlpkit-{name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[mlpkit.plugins]\n{name} = plug_{name}\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for name, (text, _) in BROKEN.items():
        distribution(folder, name, text)
    distribution(folder, "good", GOOD)
    (folder / "good_parts.py").write_text(PARTS)
    return folder


@pytest.fixture
def mlpkit(site, tmp_path):
    """Runs the program with the distributions installed."""

    def run(*arguments, **env):
        settings = {"PYTHONPATH": str(site), "MLPKIT_PLUGINS_SECONDS": "1", **env}
        return subprocess.run(
            [sys.executable, "-m", "mlpkit", *arguments],
            env=os.environ | settings,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def test_each_broken_plugin_has_a_row_with_its_reason(mlpkit):
    ended = mlpkit("plugins", "--json")
    assert (ended.returncode, ended.stderr) == (3, "")
    rows = {row["name"]: row for row in json.loads(ended.stdout)["plugins"]}
    assert set(rows) == {"mlpkit", "good", *BROKEN}
    for name, (_, reason) in BROKEN.items():
        assert rows[name]["state"] == "failed"
        assert reason in rows[name]["reason"]
        assert (rows[name]["distribution"], rows[name]["version"]) == (f"mlpkit-{name}", "1.2")
        assert rows[name]["provides"] == []
    assert "mlpkit-clash 1.2" in rows["clash"]["reason"]
    assert rows["dependency"]["would_provide"] == ["ffn:foo"]
    assert (rows["good"]["state"], rows["good"]["provides"]) == ("ok", ["ffn:good_ffn"])
    assert "ffn:swiglu" in rows["mlpkit"]["provides"]


def test_built_ins_and_the_good_one_work(mlpkit):
    ended = mlpkit("describe", "ffn=moe", "ffn/expert=good_ffn", "ffn.expert.slope=2", "--json")
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["parameters"] > 0
    warned = ended.stderr.splitlines()
    assert len(warned) == len(BROKEN)
    for line, name in zip(warned, sorted(BROKEN), strict=True):
        assert line.startswith(f"warning: plugin {name!r} of mlpkit-{name} 1.2 is skipped: ")


def test_strict_mode_stops_with_every_reason_and_still_shows_the_table(mlpkit):
    ended = mlpkit("list", "ffn", MLPKIT_PLUGINS_STRICT="1")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert all(reason in ended.stderr for _, reason in BROKEN.values())
    assert mlpkit("plugins", MLPKIT_PLUGINS_STRICT="1").returncode == 3
    kept_out = ",".join(BROKEN)
    strict = mlpkit("list", "ffn", MLPKIT_PLUGINS_STRICT="1", MLPKIT_PLUGINS_BLOCK=kept_out)
    assert (strict.returncode, strict.stderr) == (0, "")
    assert "good_ffn" in strict.stdout


@pytest.mark.parametrize("line", ["train ffn=foo", "train ffn=moe ffn/expert=foo", "check ffn foo"])
def test_choosing_a_name_of_a_failed_plugin_ends_with_that_plugins_error(mlpkit, line):
    ended = mlpkit(*line.split(), MLPKIT_PLUGINS="dependency")
    assert ended.returncode == 3
    (message,) = [m for m in ended.stderr.splitlines() if m.startswith("mlpkit: ")]
    assert "ffn 'foo' is not there, because the plugin 'dependency' of mlpkit-dependency" in message
    assert "No module named 'no_such_thing'" in message


def test_without_the_plugin_the_name_is_unknown(mlpkit):
    ended = mlpkit("train", "ffn=good_fn", MLPKIT_PLUGINS="good")
    assert ended.returncode == 2
    assert "did you mean 'good_ffn'?" in ended.stderr
    ended = mlpkit("train", "ffn=good_ffn", MLPKIT_PLUGINS="")
    assert ended.returncode == 2
    assert "unknown ffn 'good_ffn'" in ended.stderr


@pytest.mark.parametrize("damage", ["METADATA", "entry_points.txt", "direct_url.json"])
def test_a_half_removed_distribution_is_survived(tmp_path, damage):
    distribution(tmp_path, "half", GOOD)
    file = tmp_path / "mlpkit_half-1.2.dist-info" / damage
    if damage == "METADATA":
        file.unlink()
    else:
        file.write_text("{" if damage.endswith("json") else "[mlpkit.plugins]\nhalf = a b:c d\n")
    found = subprocess.run(
        [sys.executable, "-m", "mlpkit", "plugins", "--json"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    builtins, half = json.loads(found.stdout)["plugins"]
    assert (builtins["state"], half["name"]) == ("ok", "half")
    assert half["state"] == ("failed" if damage == "entry_points.txt" else "ok")
    if damage == "METADATA":
        assert (half["distribution"], half["version"]) == ("plug_half", "")


@pytest.mark.parametrize(
    "line", ["plugins", "list ffn", "describe ffn=naive", "describe ffn=\x1b[31m"]
)
def test_nothing_in_a_name_or_a_message_moves_the_cursor(tmp_path, line):
    """Escape sequences and marks of direction, in metadata that is read before any code runs."""
    spec = "name='foo', target='a:b', summary='\\x1b[2J\\u202esummary'"
    distribution(
        tmp_path, "odd", f"{HEAD}@hookimpl\ndef mlpkit_ffns():\n    yield FFNSpec({spec})\n"
    )
    distribution(tmp_path, "bad", "raise RuntimeError('\\x1b[2J\\x07\\u202eboom')\n")
    entries = (tmp_path / "mlpkit_odd-1.2.dist-info" / "entry_points.txt", "\x1b[31m\u202eodd")
    entries[0].write_text(f"[mlpkit.plugins]\n{entries[1]} = plug_odd\n")
    (tmp_path / "mlpkit_bad-1.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: bad\x1b[31m\nVersion: 1\x07\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "mlpkit", *line.split()],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    shown = found.stdout + found.stderr
    assert "boom" in shown
    assert not [c for c in shown if not c.isprintable() and c != "\n"]

"""The verbs for plugins: plugins, check, new-plugin, doctor, and -p."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mlpkit import plugins
from mlpkit.cli import main
from mlpkit.cli.check import read_pair, read_words
from mlpkit.cli.new_plugin import identifier, renamed, template_folder, write
from mlpkit.cli.plugins import shadowed_presets, shortened
from mlpkit.plugins import PluginStatus
from mlpkit.plugins.definitions import argument_docs, definition
from mlpkit.registry import Provider

ROOT = Path(__file__).parents[1]
LOCAL = """
from torch import nn
import mlpkit

@mlpkit.register_ffn("from_a_file", default_activation="relu")
class FromAFile(nn.Module):
    def __init__(self, *, hidden_size: int, activation: nn.Module, factor: float = 1.0):
        super().__init__()
        self.proj = nn.Linear(hidden_size, hidden_size)
        self.activation, self.factor = activation, factor

    def forward(self, x):
        return self.factor * self.activation(self.proj(x))

@mlpkit.register_activation("not_pure")
def not_pure(x):
    return x.add_(1)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, and plugins that are loaded anew in it."""

    def forget():
        for cached in (plugins.load_once, plugins.load_environment):
            cached.cache_clear()

    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLPKIT_PLUGIN_MODULES", "")
    forget()
    yield tmp_path
    monkeypatch.undo()
    forget()
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_p_loads_a_file_or_module_for_any_verb(folder, capsys):
    (folder / "mine.py").write_text(LOCAL)
    assert main(["-p", "./mine.py", "list", "ffn", "from*", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["provider"]) == ("from_a_file", str(folder / "mine.py"))
    assert main(["-p", "mine.py", "describe", "ffn=from_a_file", "ffn.factor=2"]) == 0
    assert "from_a_file" in capsys.readouterr().out
    assert os.environ["MLPKIT_PLUGIN_MODULES"] == str(folder / "mine.py")


def test_p_with_a_plugin_that_fails_ends_with_3(folder, capsys):
    (folder / "bad.py").write_text("1 / 0")
    for name, words in (("bad.py", "division by zero"), ("gone.py", "there is no Python file")):
        assert main(["-p", name, "list", "ffn"]) == 3
        assert words in capsys.readouterr().err


def test_plugins_prints_a_row_each_and_ends_with_3_where_one_failed(folder, capsys, monkeypatch):
    (folder / "good.py").write_text(LOCAL)
    (folder / "bad.py").write_text("import mlpkit\n1 / 0\nmlpkit.register_ffn('lost')(object)")
    monkeypatch.setenv("MLPKIT_PLUGIN_MODULES", "good.py")
    assert main(["plugins"]) == 0
    shown = capsys.readouterr()
    assert "ffn:from_a_file" in shown.out
    assert shown.err == ""
    plugins.load_environment.cache_clear()
    monkeypatch.setenv("MLPKIT_PLUGIN_MODULES", "good.py,bad.py")
    assert main(["plugins", "--json"]) == 3
    rows = json.loads(capsys.readouterr().out)["plugins"]
    assert [row["state"] for row in rows] == ["ok", "ok", "failed"]
    assert rows[2]["reason"] == "ZeroDivisionError: division by zero"
    assert rows[2]["would_provide"] == ["ffn:lost"]


def test_a_preset_with_a_name_that_is_taken_is_reported(tmp_path):
    for number, name in enumerate(["ffn/swiglu", "ffn/router/dbrx", "training/quick", "ffn/own"]):
        path = tmp_path / f"{'ab'[number == 3]}/{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "c/ffn").mkdir(parents=True)
    (tmp_path / "c/ffn/own.yaml").write_text("")
    rows = [
        PluginStatus(
            name=name, provider=Provider(name), state="ok", presets=(tmp_path / name,) * (name > "")
        )
        for name in "abc"
    ]
    builtins = plugins.load().statuses
    told = shadowed_presets([*builtins, *rows])
    owner = builtins[0].provider
    assert told == [
        "the preset ffn/router/dbrx of a is never used: mlpkit has one of this name",
        f"the preset ffn/swiglu of a is never used: {owner} has one of this name",
        "the preset training/quick of a is never used: mlpkit has one of this name",
        "the preset ffn/own of c is never used: b has one of this name",
    ]


def test_many_entries_are_shown_by_their_number():
    assert shortened(["ffn:a", "ffn:b"]) == "ffn:a, ffn:b"
    assert shortened([f"ffn:{i}" for i in range(7)] + ["data:x"]) == "7 ffn, 1 data"


def test_check_prints_every_check_and_ends_with_1_where_one_failed(folder, capsys, monkeypatch):
    (folder / "mine.py").write_text(LOCAL)
    monkeypatch.setenv("MLPKIT_PLUGIN_MODULES", "mine.py")
    assert main(["check", "ffn", "from_a_file", "factor=0.5", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert len(results) > 15
    assert {r["state"] for r in results} == {"ok"}
    assert main(["check", "mine.py", "--json"]) == 1
    results = json.loads(capsys.readouterr().out)
    assert {(r["kind"], r["name"]) for r in results} == {
        ("ffn", "from_a_file"),
        ("activation", "not_pure"),
    }
    failed = {r["check"] for r in results if r["state"] == "failed"}
    assert "the input is left as it was" in failed
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["check", "activation", "relu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{len(lines) - 2} ok"


def test_check_takes_expected_failures(folder, capsys):
    expect = ["--expect", "it compiles to one graph=the compiler is too old"]
    assert main(["check", "activation", "relu", *expect]) == 1
    assert "it passes; do not expect it" in " ".join(capsys.readouterr().out.split())
    assert main(["check", "activation", "relu", "--expect", "it compiles to a graph=x"]) == 2
    assert "did you mean 'it compiles to one graph'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ffns", "swiglu"], "did you mean 'ffn'"),
        (["ffn", "swigul"], "did you mean 'swiglu'"),
        (["nothing_such"], "mlpkit plugins"),
        (["a", "b", "c"], "write [KIND] NAME"),
        (["ffn", "swiglu", "biass=true"], "no option 'biass'"),
    ],
)
def test_check_answers_bad_input(arguments, words, capsys):
    code = main(["check", *arguments])
    assert code in (1, 2)
    shown = capsys.readouterr()
    assert words in shown.err + shown.out


def test_the_words_of_check_are_read():
    assert read_words(["x"]) == (None, "x")
    assert read_words(["ffn", "x"]) == ("ffn", "x")
    assert read_pair("a b=c = d") == ("a b", "c = d")
    with pytest.raises(ValueError, match="'a' has no reason"):
        read_pair("a")


@pytest.mark.parametrize(
    ("name", "word", "folder_name"),
    [
        ("foo", "foo", "mlpkit-foo"),
        ("my_ffn", "my_ffn", "mlpkit-my-ffn"),
        ("mlpkit-my-ffn2", "my_ffn2", "mlpkit-my-ffn2"),
    ],
)
def test_a_new_plugin_is_named_throughout(name, word, folder_name, tmp_path):
    assert identifier(name) == word
    target = write(word, tmp_path)
    assert target == tmp_path / folder_name
    project = tomllib.loads((target / "pyproject.toml").read_text())["project"]
    assert project["name"] == folder_name
    assert project["entry-points"]["mlpkit.plugins"] == {word: f"mlpkit_{word}"}
    source = template_folder()
    for path in source.rglob("*.*"):
        if "__pycache__" not in path.parts and path.is_file():
            copy = target / renamed(str(path.relative_to(source)), word)
            assert "demo" not in copy.read_text().lower()
    assert {p.name for p in target.iterdir()} == {
        *(f"mlpkit_{word}", "tests", "pyproject.toml", "README.md"),
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Foo", "is no name for a plugin"),
        ("2foo", "is no name for a plugin"),
        ("foo/../bar", "is no name for a plugin"),
        ("swiglu", "the ffn 'swiglu' is there already, from mlpkit"),
    ],
)
def test_a_bad_name_writes_nothing(name, words, folder, capsys):
    assert main(["new-plugin", name]) == 2
    assert words in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_new_plugin_says_what_to_do_next_and_overwrites_nothing(folder, capsys):
    assert main(["new-plugin", "foo"]) == 0
    said = capsys.readouterr().out.splitlines()[2:]
    assert [line.strip() for line in said] == [
        "pip install -e ./mlpkit-foo",
        "mlpkit show ffn foo",
        "mlpkit train -m ffn=swiglu,foo seed=0,1,2 match=params training=quick",
        "mlpkit check mlpkit-foo",
    ]
    assert main(["new-plugin", "foo"]) == 2
    assert "mlpkit-foo exists" in capsys.readouterr().err


def test_doctor_has_every_section_and_checks_itself(folder, capsys, monkeypatch):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for line in ("versions:", "environment:", "computing:", "plugins:", "data:", "self-check:"):
        assert line in text
    (folder / "bad.py").write_text("1 / 0")
    monkeypatch.setenv("MLPKIT_PLUGIN_MODULES", "bad.py")
    plugins.load_environment.cache_clear()
    monkeypatch.setattr("mlpkit.cli.doctor.CHECKED", (("activation", "relu"),))
    assert main(["doctor", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["plugins"]["bad.py"] == "failed: bad.py: ZeroDivisionError: division by zero"
    assert found["environment"]["MLPKIT_PLUGIN_MODULES"] == "bad.py"
    assert found["versions"]["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert found["self-check"]["activation relu"].startswith("ok: ")


def test_doctor_tells_of_a_section_that_fails_and_goes_on(folder, capsys, monkeypatch):
    def broken():
        raise OSError("no disk")

    monkeypatch.setattr("mlpkit.cli.doctor.data", broken)
    monkeypatch.setattr("mlpkit.cli.doctor.CHECKED", ())
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["data"] == {"section": "failed: OSError: no disk"}


def test_help_loads_no_plugin_and_listing_loads_no_torch(tmp_path):
    (tmp_path / "plug_x.py").write_text("import mlpkit.specs")
    code = (
        "import sys; from mlpkit.cli import main\n"
        "try:\n    main({0!r})\nexcept SystemExit:\n    pass\n"
        "print([n for n in ('plug_x', 'torch') if n in sys.modules], file=sys.stderr)"
    )
    env = os.environ | {"PYTHONPATH": str(tmp_path), "MLPKIT_PLUGIN_MODULES": "plug_x"}
    for line, loaded in ((["--help"], []), (["plugins"], ["plug_x"]), (["list"], ["plug_x"])):
        ended = subprocess.run(
            [sys.executable, "-c", code.format(line)], env=env, capture_output=True, text=True
        )
        assert ended.stderr == f"{loaded}\n"


def test_show_has_the_source_line_and_what_the_constructor_says_of_each_option(
    folder, capsys, monkeypatch
):
    assert main(["show", "ffn", "swiglu", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    path, _, line = facts["source"].rpartition(":")
    assert Path(path).read_text().splitlines()[int(line) - 1].startswith("class GatedFFN(")
    assert facts["option_docs"]["bias"].startswith("Whether ")
    assert facts["options"]["bias"] == ["bool", "false"]
    assert main(["show", "activation", "gaussian_topk"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"\n  \w+: float = [\d.]+\n      [A-Z]", shown)
    (folder / "mine.py").write_text(LOCAL)
    monkeypatch.setenv("MLPKIT_PLUGIN_MODULES", "mine.py")
    for cached in (plugins.load_once, plugins.load_environment):
        cached.cache_clear()
    assert main(["show", "ffn", "from_a_file", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    path, _, line = facts["source"].rpartition(":")
    # a decorated class begins with its decorator
    assert "register_ffn" in Path(path).read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize("noun", ["ffn", "router", "balance"])
def test_every_option_of_a_built_in_is_described_where_it_is_built(noun):
    parts = {"name", "num_experts", "num_experts_per_tok", "expert", "backend"}  # of the MoE
    for spec in plugins.load().registries.by_noun()[noun].list():
        found = definition(spec.target)
        assert found is not None, spec.target
        options = vars(spec.config()) if spec.config else {}
        assert set(options) - parts <= set(argument_docs(found.docstring)), spec.name


def test_every_built_in_of_mlpkit_has_a_source():
    for registry in plugins.load().registries.by_noun().values():
        for spec in registry.list():
            if spec.target.startswith("mlpkit."):
                assert definition(spec.target), spec.target


def test_a_docstring_s_arguments_are_read():
    text = "Line.\n\nArgs:\n    a: First,\n        and more.\n\n    b_c: Second.\n\nReturns:\n    x"
    assert argument_docs(text) == {"a": "First, and more.", "b_c": "Second."}
    assert argument_docs("No arguments.") == {}


def test_a_definition_is_found_without_importing(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "plug_def.py").write_text("raise OSError\n\n\ndef f():\n    '''Text.'''\n")
    assert definition("plug_def:f") == (tmp_path / "plug_def.py", 4, "Text.")
    assert definition("plug_def:g") is None
    assert definition("no_such_module:f") is None
    assert definition(len) is None

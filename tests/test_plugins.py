"""Loading plugins: by the same hooks as the built-ins, in any order, all of one or nothing."""

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

import mlpkit
from mlpkit import catalogue, plugins
from mlpkit.hookspecs import HOOKS
from mlpkit.plugins import PluginStatus, Registries, import_local, load, loading, local
from mlpkit.registry import Provider, RegistrationError

GOOD = """
from mlpkit.hookspecs import hookimpl
from mlpkit.specs import ActivationSpec, FFNSpec

@hookimpl
def mlpkit_ffns():
    yield FFNSpec(name="{name}", target="math:sqrt", aliases=("{name}_too",))

@hookimpl
def mlpkit_activations():
    return [ActivationSpec(name="{name}_act", target="math:sqrt")]
"""
DECORATED = """
from mlpkit.plugins import register_activation, register_ffn

@register_ffn("{name}", paper="Me 2025")
class Foo:
    \"\"\"A sentence.

    And more.
    \"\"\"

@register_activation("{name}_act", summary="given")
def act(x):
    return x
"""
BROKEN = {
    "misspelt hook": (
        "@hookimpl\ndef mlpkit_fnns():\n    return []",
        r"PluginValidationError: unknown hook 'mlpkit_fnns'",
    ),
    "unknown argument": (
        "@hookimpl\ndef mlpkit_ffns(registry):\n    return []",
        r"PluginValidationError: .*mlpkit_ffns.*\{'registry'\}",
    ),
    "hook raises": (
        "@hookimpl\ndef mlpkit_data():\n    yield DataSpec(name='d', target='a:b')\n    1 / 0",
        "ZeroDivisionError: division by zero",
    ),
    "wrong kind": (
        "@hookimpl\ndef mlpkit_ffns():\n    yield DataSpec(name='d', target='a:b')",
        r"TypeError: ffn hook yields DataSpec\(name='d'.* not a FFNSpec",
    ),
    "not a spec": (
        "@hookimpl\ndef mlpkit_ffns():\n    yield 'foo'",
        "TypeError: ffn hook yields 'foo', not a FFNSpec",
    ),
    "name taken": (
        "@hookimpl\ndef mlpkit_ffns():\n    yield FFNSpec(name='swiglu', target='a:b')",
        rf"RegistrationError: ffn 'swiglu' .* both mlpkit {mlpkit.__version__} and ",
    ),
    "bad name": (
        "@hookimpl\ndef mlpkit_ffns():\n    yield FFNSpec(name='Swi', target='a:b')",
        "RegistrationError: ffn 'Swi'",
    ),
    "import fails": ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such"),
    "ends the program": ("raise SystemExit(0)", "SystemExit: 0"),
    "second half is bad": (
        "register_ffn('half')(object)\n@hookimpl\ndef mlpkit_backends():\n    raise OSError('x')",
        "OSError: x",
    ),
}
PREAMBLE = """
from mlpkit.hookspecs import hookimpl
from mlpkit.plugins import register_ffn
from mlpkit.specs import DataSpec, FFNSpec
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules that this test alone can import."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield lambda name, text: (tmp_path / f"{name}.py").write_text(text)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def point(name, module, version="1.0"):
    """An entry point of a distribution that is not installed."""
    found = EntryPoint(name=name, value=module, group=plugins.GROUP)
    vars(found).update(dist=SimpleNamespace(name=f"dist-{module}", version=version))
    return found


def names(loaded):
    return {noun: registry.names() for noun, registry in loaded.registries.by_noun().items()}


def status(loaded, name):
    (found,) = [s for s in loaded.statuses if s.name == name]
    return found


def test_nothing_but_the_built_ins_is_loaded_without_plugins():
    loaded = load()
    (only,) = loaded.statuses
    assert (only.name, only.state, str(only.provider)) == (
        "mlpkit",
        "ok",
        f"mlpkit {mlpkit.__version__}",
    )
    assert {"ffn:swiglu", "activation:silu", "data:pystdlib"} <= set(only.provides)
    found = [f"{noun}:{name}" for noun, entries in names(loaded).items() for name in entries]
    assert sorted(only.provides) == sorted(found)


def test_the_built_ins_enter_by_the_hooks_of_a_stranger():
    ours = [name for name in vars(catalogue) if name.startswith("mlpkit_")]
    assert {"mlpkit_activations", "mlpkit_ffns", "mlpkit_data"} <= set(ours) <= set(HOOKS)
    row = PluginStatus(name="stranger", provider=Provider("stranger"), state="ok")
    result, row, _ = loading.registered(Registries.empty(), catalogue, row)
    assert set(load().statuses[0].provides) == set(row.provides)
    assert result.ffn.provider("swiglu") == Provider("stranger")


def test_an_entry_point_gives_entries_with_provider_and_version(write):
    write("plug_a", GOOD.format(name="foo"))
    loaded = load(points=[point("a", "plug_a", "3.1")])
    assert loaded.registries.ffn.get("foo_too").name == "foo"
    assert loaded.registries.ffn.provider("foo") == Provider("dist-plug_a", "3.1", "a")
    found = status(loaded, "a")
    assert (found.state, found.reason) == ("ok", "")
    assert set(found.provides) == {"ffn:foo", "activation:foo_act"}


def test_an_entry_point_may_name_an_object(write):
    write(
        "plug_o",
        PREAMBLE + "class P:\n    @hookimpl\n    def mlpkit_ffns(self):\n"
        "        yield FFNSpec(name='foo', target='a:b')\nplugin = P()",
    )
    assert "foo" in load(points=[point("o", "plug_o:plugin")]).registries.ffn


def test_the_result_does_not_depend_on_the_order_of_installation(write):
    write("plug_a", GOOD.format(name="foo"))
    write("plug_b", GOOD.format(name="foo"))  # the same names: who wins must not vary
    write("plug_c", GOOD.format(name="bar"))
    points = [point("z", "plug_a"), point("y", "plug_b"), point("x", "plug_c")]
    first, second = load(points=points), load(points=reversed(points))
    assert first.statuses == second.statuses
    assert names(first) == names(second)
    assert [s.state for s in first.statuses] == ["ok", "ok", "ok", "failed"]
    assert first.registries.ffn.provider("foo").distribution == "dist-plug_b"
    assert "both dist-plug_b 1.0 and dist-plug_a 1.0" in status(first, "z").reason


@pytest.mark.parametrize("word", ["a", "dist-plug_a"])
@pytest.mark.parametrize("way", ["block", "allow"])
def test_a_blocked_or_not_allowed_plugin_is_not_imported(write, word, way):
    write("plug_a", GOOD.format(name="foo"))
    write("plug_b", GOOD.format(name="bar"))
    points = [point("a", "plug_a"), point("b", "plug_b")]
    loaded = load(points=points, **{way: [word]})
    out, kept, variable = (
        ("a", "b", "MLPKIT_PLUGINS_BLOCK") if way == "block" else ("b", "a", "MLPKIT_PLUGINS")
    )
    assert status(loaded, out).state == "blocked"
    assert status(loaded, out).reason == f"by {variable}"
    assert status(loaded, kept).state == "ok"
    assert f"plug_{out}" not in sys.modules
    assert f"plug_{kept}" in sys.modules


def test_block_wins_over_allow_and_an_empty_allow_list_allows_nothing(write):
    write("plug_a", GOOD.format(name="foo"))
    points = [point("a", "plug_a")]
    assert status(load(points=points, allow=["a"], block=["a"]), "a").state == "blocked"
    assert status(load(points=points, allow=[]), "a").state == "blocked"
    assert status(load(points=points, allow=None), "a").state == "ok"


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_reported_and_leaves_nothing(write, case):
    text, reason = BROKEN[case]
    write("plug_bad", PREAMBLE + text)
    write("plug_good", GOOD.format(name="foo"))
    loaded = load(points=[point("bad", "plug_bad"), point("good", "plug_good")])
    found = status(loaded, "bad")
    assert (found.state, found.provides) == ("failed", ())
    assert re.match(reason, found.reason, re.DOTALL), found.reason
    assert status(loaded, "good").state == "ok"
    expected = names(load(points=[point("good", "plug_good")]))
    assert names(loaded) == expected
    assert local.pending == []


def identity(x):
    return x


def test_decorators_in_a_plugin_register_for_that_plugin(write):
    write("plug_d", DECORATED.format(name="foo"))
    loaded = load(points=[point("d", "plug_d", "2.0")])
    assert set(status(loaded, "d").provides) == {"ffn:foo", "activation:foo_act"}
    spec = loaded.registries.ffn.get("foo")
    assert (spec.summary, spec.paper, spec.target.__name__) == ("A sentence.", "Me 2025", "Foo")
    assert loaded.registries.activation.get("foo_act").summary == "given"
    assert str(loaded.registries.ffn.provider("foo")) == "dist-plug_d 2.0"


@pytest.mark.parametrize("noun", Registries.empty().by_noun())
def test_every_noun_has_a_decorator(noun, monkeypatch):
    monkeypatch.setattr(local, "pending", [])
    register = getattr(plugins, f"register_{noun}")
    assert register.__name__ == f"register_{noun}"
    assert register("foo", aliases=("bar",))(identity) is identity
    ((found, spec, provider),) = local.pending
    assert (found, spec.name, spec.target, spec.aliases) == (noun, "foo", identity, ("bar",))
    assert type(spec).__name__.removesuffix("Spec").lower() == noun
    assert provider == Provider(__name__)


def test_a_decorator_without_a_name_says_how_it_is_written():
    with pytest.raises(TypeError, match=r"write @register_ffn\('name'\)"):
        plugins.register_ffn(object)


@pytest.fixture
def fresh(monkeypatch):
    """The process's registries as new, and nothing of them kept."""
    monkeypatch.setattr(local, "pending", [])
    loaded = load()
    monkeypatch.setattr(plugins, "load_once", lambda: loaded)
    return plugins


def test_what_was_decorated_before_the_plugins_were_loaded_keeps_its_provider(write, monkeypatch):
    monkeypatch.setattr(local, "pending", [])
    plugins.register_ffn("mine")(Registries)
    write("plug_bad", "raise OSError('x')")
    loaded = load(points=[point("bad", "plug_bad")])
    monkeypatch.setattr(plugins, "load_once", lambda: loaded)
    assert "ffn:mine" not in loaded.statuses[0].provides
    assert plugins.registries().ffn.provider("mine") == Provider(Registries.__module__)


def test_a_notebook_s_cell_may_run_twice_but_not_take_the_name_of_another(fresh):
    fresh.register_ffn("mine", summary="first")(identity)
    assert fresh.registries().ffn.get("mine").summary == "first"
    fresh.register_ffn("mine", summary="second")(identity)
    assert fresh.registries().ffn.get("mine").summary == "second"
    fresh.register_ffn("swiglu")(identity)
    with pytest.raises(RegistrationError, match=f"both mlpkit .* and {__name__}"):
        fresh.registries()
    assert fresh.registries().ffn.provider("swiglu").distribution == "mlpkit"


def test_a_local_module_or_file_is_a_plugin_by_its_name(write, tmp_path):
    write("plug_m", GOOD.format(name="foo"))
    write("plug_f", DECORATED.format(name="bar"))
    file = str(tmp_path / "plug_f.py")
    loaded = load(modules=["plug_m", file, "plug_missing", str(tmp_path / "gone.py")])
    assert [s.state for s in loaded.statuses] == ["ok", "ok", "ok", "failed", "failed"]
    assert loaded.registries.ffn.provider("foo") == Provider("plug_m")
    assert loaded.registries.ffn.provider("bar") == Provider(file)
    assert "no Python file" in loaded.statuses[-1].reason
    assert "gone.py" in loaded.statuses[-1].reason


def test_a_file_is_imported_once_and_may_not_hide_a_module(write, tmp_path, monkeypatch):
    write("plug_f", "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1")
    module = import_local(str(tmp_path / "plug_f.py"))
    monkeypatch.chdir(tmp_path)
    assert import_local("plug_f.py") is module is sys.modules["plug_f"]
    write("json", "x = 1")
    with pytest.raises(ImportError, match=r"json\.py has the name of the module 'json'; rename"):
        import_local("json.py")
    write("plug_x", "raise KeyError('x')")
    with pytest.raises(KeyError):
        import_local("plug_x.py")
    assert "plug_x" not in sys.modules


@pytest.mark.parametrize("strict", [False, True])
def test_strict_mode_stops_and_otherwise_one_line_warns(write, tmp_path, strict):
    write("plug_bad", "raise OSError('no luck')")
    write("plug_good", GOOD.format(name="foo"))
    code = "from mlpkit.plugins import registries; print('foo' in registries().ffn)"
    env = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "MLPKIT_PLUGIN_MODULES": "plug_bad, plug_good",
        "MLPKIT_PLUGINS_STRICT": str(int(strict)),
    }
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    if strict:
        assert run.returncode != 0
        assert run.stderr.rstrip().endswith("PluginError: plugin 'plug_bad': OSError: no luck")
    else:
        assert run.stdout == "True\n"
        assert run.stderr == (
            "warning: plugin 'plug_bad' of plug_bad is skipped: OSError: no luck\n"
        )


def test_the_environment_blocks_and_allows(monkeypatch, write):
    write("plug_a", GOOD.format(name="foo"))
    write("plug_b", GOOD.format(name="bar"))
    installed = [point("a", "plug_a"), point("b", "plug_b")]
    monkeypatch.setattr(plugins, "entry_points", lambda group: installed)
    monkeypatch.setenv("MLPKIT_PLUGINS", "a, b")
    monkeypatch.setenv("MLPKIT_PLUGINS_BLOCK", "dist-plug_b")
    loaded = plugins.load_environment.__wrapped__()
    assert [(s.name, s.state) for s in loaded.statuses] == [
        ("mlpkit", "ok"),
        ("a", "ok"),
        ("b", "blocked"),
    ]

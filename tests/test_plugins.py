"""Loading plugins: by the same hooks as the built-ins, in any order, all of one or nothing."""

import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

import mlpkit
from mlpkit import catalogue, plugins
from mlpkit.hookspecs import HOOKS
from mlpkit.plugins import PluginStatus, Registries, import_local, load, loading, local
from mlpkit.plugins.sources import source_files
from mlpkit.registry import Provider, RegistrationError
from mlpkit.specs import FFNSpec

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
        r"TypeError: the ffn hook yields DataSpec\(name='d'.*; it must yield FFNSpecs",
    ),
    "not a spec": (
        "@hookimpl\ndef mlpkit_ffns():\n    yield 'foo'",
        "TypeError: the ffn hook yields 'foo'; it must yield FFNSpecs",
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


def test_two_distributions_with_one_entry_point_name_are_both_seen(write):
    write("plug_a", GOOD.format(name="foo"))
    write("plug_b", GOOD.format(name="bar"))
    loaded = load(points=[point("same", "plug_a"), point("same", "plug_b", "2.0")])
    rows = [(s.provider.distribution, s.state) for s in loaded.statuses if s.name == "same"]
    assert rows == [("dist-plug_a", "ok"), ("dist-plug_b", "ok")]
    assert {"foo", "bar"} <= set(loaded.registries.ffn.names())


def test_a_distribution_is_blocked_under_any_spelling_of_its_name(write):
    write("plug_a", GOOD.format(name="foo"))
    for spelling in ("Dist_Plug.A", "dist-plug-a"):
        loaded = load(points=[point("a", "plug_a")], block=[spelling])
        assert status(loaded, "a").state == "blocked"


REPLACING = """
from mlpkit.hookspecs import hookimpl
from mlpkit.specs import FFNSpec

@hookimpl
def mlpkit_ffns():
    yield FFNSpec(name="swiglu", target="math:sqrt", summary="{0}")
    yield FFNSpec(name="{0}", target="math:sqrt")
"""


def test_a_built_in_is_replaced_only_by_preference_and_the_rows_say_so(write):
    write("plug_a", REPLACING.format("mine"))
    points = [point("a", "plug_a", "1.5")]
    clash = status(load(points=points), "a")
    assert clash.state == "failed"
    assert f"both mlpkit {mlpkit.__version__} and dist-plug_a 1.5" in clash.reason
    assert "MLPKIT_PLUGINS_PREFER" in clash.reason
    loaded = load(points=points, prefer=["dist-plug_a"])
    assert loaded.registries.ffn.get("swiglu").summary == "mine"
    assert status(loaded, "a").provides == ("ffn:swiglu", "ffn:mine")
    row = status(loaded, "mlpkit")
    assert row.reason == "ffn:swiglu replaced by dist-plug_a 1.5"
    assert "ffn:swiglu" not in row.provides


@pytest.mark.parametrize("first", ["plug_a", "plug_b"])
def test_of_two_preferred_plugins_the_first_named_wins(write, first):
    write("plug_a", REPLACING.format("from_plug_a"))
    write("plug_b", REPLACING.format("from_plug_b"))
    second = "plug_b" if first == "plug_a" else "plug_a"
    loaded = load(modules=["plug_a", "plug_b"], prefer=[first, second])
    assert loaded.registries.ffn.get("swiglu").summary == f"from_{first}"
    assert {"from_plug_a", "from_plug_b"} <= set(loaded.registries.ffn.names())
    assert status(loaded, second).reason == f"ffn:swiglu replaced by {first}"


def test_a_preferred_plugin_may_not_give_a_name_twice(write):
    write("plug_a", REPLACING.format("swiglu"))
    found = status(load(modules=["plug_a"], prefer=["plug_a"]), "plug_a")
    assert found.state == "failed"
    assert "both plug_a and plug_a" in found.reason


@pytest.mark.parametrize(
    ("api", "reason"),
    [
        ("(1, 0)", ""),
        ("(1, 9)", r"RuntimeError: MLPKIT_API is 1\.9, .* has 1\.0; install a newer mlpkit"),
        ("(2, 0)", r"RuntimeError: MLPKIT_API is 2\.0, .* install a newer mlpkit"),
        ("(0, 3)", r"RuntimeError: MLPKIT_API is 0\.3, .* newer version of the plugin"),
        ("'1.0'", r"RuntimeError: MLPKIT_API is '1\.0'; write the two numbers, .* \(1, 0\)"),
    ],
)
@pytest.mark.parametrize("form", ["module", "object"])
def test_a_plugin_for_another_api_says_which(write, api, reason, form):
    body = "class P:\n    pass\nplugin = P()" if form == "object" else ""
    write("plug_a", f"MLPKIT_API = {api}\n{body}")
    target = "plug_a:plugin" if form == "object" else "plug_a"
    found = status(load(points=[point("a", target)]), "a")
    assert found.state == ("failed" if reason else "ok")
    assert re.match(reason, found.reason)


PRESETS = """
from pathlib import Path
from mlpkit.hookspecs import hookimpl

@hookimpl
def mlpkit_presets():
    yield Path(__file__).parent / "{folder}"
"""


def test_a_preset_folder_is_in_the_row_and_a_missing_one_is_a_failure(write, tmp_path):
    (tmp_path / "conf/ffn/router").mkdir(parents=True)
    (tmp_path / "conf/ffn/router/foo.yaml").write_text("defaults: [topk, _self_]\n")
    write("plug_a", PRESETS.format(folder="conf"))
    write("plug_b", PRESETS.format(folder="nowhere"))
    loaded = load(modules=["plug_a", "plug_b"])
    assert status(loaded, "plug_a").presets == (tmp_path / "conf",)
    assert status(loaded, "plug_a").provides == ("preset:ffn/router/foo",)
    failed = status(loaded, "plug_b")
    assert failed.reason.startswith(f"NotADirectoryError: the preset folder {tmp_path}/nowhere")


CLAIMING = """
import no_such_thing
from mlpkit import FFNSpec, hookimpl, register_activation

@hookimpl
def mlpkit_ffns():
    yield FFNSpec(
        name="lost",
        target="a:b",
    )
    yield FFNSpec(name="swiglu", target="a:b")

@register_activation('lost_act')
def act(x):
    return x
"""


def test_a_name_that_a_failed_plugin_would_have_given_answers_with_its_error(write):
    write("plug_bad", CLAIMING)
    loaded = load(points=[point("bad", "plug_bad")])
    assert status(loaded, "bad").claims == ("activation:lost_act", "ffn:lost", "ffn:swiglu")
    ffn = loaded.registries.ffn
    message = "ffn 'lost' is not there, because the plugin 'bad' of dist-plug_bad 1.0 failed: Mod"
    with pytest.raises(plugins.PluginError, match=message):
        ffn.get("lost")
    assert "lost" in ffn  # so that a configuration asks for it, and gets that error
    assert not ffn.has("lost")
    assert "lost" not in ffn.names()
    assert ffn.provider("swiglu").distribution == "mlpkit"
    with pytest.raises(LookupError, match="unknown ffn 'other'"):
        ffn.get("other")
    ffn.add([FFNSpec(name="lost", target="a:b")], Provider("later"))
    assert ffn.copy().get("lost").target == "a:b"


def test_the_source_of_a_plugin_is_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "plug_pkg" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "plug_pkg" / "__init__.py").write_text("raise OSError('imported')")
    (package / "__init__.py").write_text("")
    (package / "more.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert source_files("plug_pkg.inner.more:thing") == [package / "more.py"]
    assert source_files("plug_pkg.inner") == [package / "__init__.py", package / "more.py"]
    assert source_files("plug_pkg.nothing") == source_files("no_such_top") == []
    assert source_files(str(tmp_path / "gone.py")) == []


def test_what_can_change_in_place_has_a_hash_of_its_source_as_version(write, monkeypatch, tmp_path):
    write("plug_l", GOOD.format(name="foo"))
    write("plug_e", GOOD.format(name="bar"))
    write("plug_w", GOOD.format(name="baz"))
    editable = point("e", "plug_e", "2.0")
    url = '{"dir_info": {"editable": true}, "url": "file:///x"}'
    vars(editable)["dist"].read_text = lambda name: url if name == "direct_url.json" else None

    def versions():
        loaded = load(points=[editable, point("w", "plug_w", "3.0")], modules=["plug_l"])
        monkeypatch.setattr(plugins, "load_once", lambda: loaded)
        return plugins.plugin_versions()

    first = versions()
    assert first["dist-plug_w"] == "3.0"
    assert re.fullmatch(r"2\.0\+[0-9a-f]{12}", first["dist-plug_e"])
    assert re.fullmatch(r"[0-9a-f]{12}", first["plug_l"])
    for name in ("plug_l", "plug_e", "plug_w"):
        (tmp_path / f"{name}.py").write_text((tmp_path / f"{name}.py").read_text() + "# more\n")
    changed = {name for name, version in versions().items() if first[name] != version}
    assert changed == {"plug_l", "dist-plug_e"}


def test_a_module_that_was_imported_before_keeps_what_it_decorates(write):
    write("plug_d", DECORATED.format(name="foo"))
    rows = [status(load(modules=["plug_d"]), "plug_d").provides for _ in range(2)]
    assert rows[0] == rows[1]
    assert set(rows[0]) == {"ffn:foo", "activation:foo_act"}


def test_what_a_plugin_prints_does_not_get_into_the_output(write, capsys):
    write("plug_p", "print('hello from a plugin')\n" + GOOD.format(name="foo"))
    load(modules=["plug_p"])
    assert capsys.readouterr() == ("", "hello from a plugin\n")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="nothing interrupts an import here")
def test_an_import_that_hangs_is_interrupted_and_the_rest_is_loaded(write):
    # a plugin that catches every Exception does not catch this
    write("plug_h", "import time\ntry:\n    time.sleep(60)\nexcept Exception:\n    pass")
    write("plug_z", GOOD.format(name="foo"))
    before = signal.getsignal(signal.SIGALRM)
    started = time.monotonic()
    loaded = load(modules=["plug_h", "plug_z"], seconds=0.3)
    assert time.monotonic() - started < 10
    assert status(loaded, "plug_h").reason == "LoadTimeout: not loaded after 0.3 s"
    assert status(loaded, "plug_z").state == "ok"
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_hang_that_cannot_be_interrupted_is_named_and_ends_the_program(write, tmp_path):
    write("plug_h", "import time\ntime.sleep(60)")
    code = (
        "import threading; from mlpkit.plugins import load\n"
        "thread = threading.Thread(target=load, kwargs={'modules': ['plug_h'], 'seconds': 0.2})\n"
        "thread.start(); thread.join()"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=30
    )
    assert ended.returncode == 3
    assert "plugin 'plug_h' is not loaded after 0.4 s" in ended.stderr
    assert "MLPKIT_PLUGINS_BLOCK=plug_h" in ended.stderr


def test_an_interrupt_by_the_user_is_not_taken_for_a_failure(write):
    write("plug_k", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load(modules=["plug_k"])


@pytest.mark.parametrize("error", ["SystemExit", "GeneratorExit", "RecursionError", "MemoryError"])
def test_nothing_that_a_plugin_raises_ends_the_program(write, error):
    write("plug_s", f"raise {error}('why')")
    assert status(load(modules=["plug_s"]), "plug_s").reason == f"{error}: why"


@pytest.fixture
def forgetful(monkeypatch):
    """The process's plugins are loaded anew, and again after the test."""

    def forget():
        for cached in (plugins.load_once, plugins.load_environment):
            cached.cache_clear()

    monkeypatch.setattr(plugins, "entry_points", lambda group: [])
    monkeypatch.setenv("MLPKIT_PLUGIN_MODULES", "")
    forget()
    yield
    monkeypatch.undo()
    forget()


def test_a_required_plugin_is_loaded_here_and_in_the_processes_that_are_started(
    write, tmp_path, monkeypatch, forgetful
):
    write("plug_r", GOOD.format(name="foo"))
    write("plug_s", GOOD.format(name="bar"))
    monkeypatch.setenv("MLPKIT_PLUGIN_MODULES", "plug_s")
    monkeypatch.chdir(tmp_path)
    plugins.require(["./plug_r.py"])
    assert os.environ["MLPKIT_PLUGIN_MODULES"] == f"plug_s,{tmp_path}/plug_r.py"
    assert {"foo", "bar"} <= set(plugins.registries().ffn.names())
    with pytest.raises(plugins.PluginError, match=r"plugin '.*/gone\.py': ImportError: there is"):
        plugins.require(["gone.py"])


def test_a_module_of_the_working_directory_is_found_behind_what_is_installed(tmp_path, monkeypatch):
    (tmp_path / "plug_here.py").write_text("x = 1")
    (tmp_path / "pluggy.py").write_text("raise AssertionError('shadows an installed module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "plug_here", raising=False)
    assert import_local("plug_here").x == 1
    assert sys.path[-1] == str(tmp_path)
    assert "site-packages" in import_local("pluggy").__file__

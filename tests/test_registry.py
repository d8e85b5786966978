"""Registry: names, aliases, wildcards, suggestions, clashes, and all or nothing."""

import pytest

from mlpkit.registry import (
    Provider,
    RegistrationError,
    Registry,
    UnknownNameError,
    suggestion,
)
from mlpkit.specs import FFNSpec

MINE, THEIRS = Provider("mine", "1.0", "a"), Provider("theirs", "2.5", "b")


def spec(name, *aliases):
    return FFNSpec(name=name, target="math:sqrt", aliases=aliases)


@pytest.fixture
def registry():
    result = Registry("ffn")
    result.add([spec("swiglu"), spec("gated", "glu", "gate"), spec("naive")], MINE)
    return result


def test_a_name_and_its_aliases_find_the_same_entry_and_its_provider(registry):
    assert registry.get("glu") is registry.get("gate") is registry.get("gated")
    assert registry.get("gated").name == "gated"
    assert registry.provider("glu") == MINE
    assert "glu" in registry
    assert "gated" in registry
    assert "other" not in registry
    assert None not in registry


def test_names_are_sorted_and_leave_aliases_out(registry):
    assert registry.names() == ["gated", "naive", "swiglu"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*", ["gated", "naive", "swiglu"]),
        ("*glu", ["gated", "swiglu"]),  # gated by its alias, once
        ("ga*", ["gated"]),
        ("[!s]*", ["gated", "naive"]),
        ("naive", ["naive"]),
        ("NAIVE", []),
        ("x*", []),
    ],
)
def test_a_wildcard_lists_by_name_or_alias_sorted(registry, pattern, names):
    assert [found.name for found in registry.list(pattern)] == names


def test_an_unknown_name_is_answered_with_the_nearest_and_with_all(registry):
    with pytest.raises(UnknownNameError) as error:
        registry.get("swiglo")
    assert str(error.value) == (
        "unknown ffn 'swiglo'; did you mean 'swiglu'? (registered: gated, naive, swiglu)"
    )
    assert error.value.exit_code == 2
    assert isinstance(error.value, LookupError)


def test_a_name_near_an_alias_suggests_the_alias_and_one_near_nothing_suggests_nothing(registry):
    with pytest.raises(UnknownNameError, match=r"'gluu'; did you mean 'glu'\?"):
        registry.provider("gluu")
    with pytest.raises(UnknownNameError, match=r"unknown ffn 'zzz' \(registered"):
        registry.get("zzz")
    assert suggestion("zzz", ["gated"]) == ""


@pytest.mark.parametrize(
    "name", ["", "SwiGLU", "9lives", "_x", "a-b", "a b", "a.b", "a/b", "é", "a\n"]
)
@pytest.mark.parametrize("as_alias", [False, True])
def test_a_malformed_name_is_refused_with_its_provider(registry, name, as_alias):
    bad = spec("fine", name) if as_alias else spec(name)
    with pytest.raises(RegistrationError, match=r"theirs 2\.5: a name is lower case") as error:
        registry.add([bad], THEIRS)
    assert repr(name) in str(error.value)
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("taken", "word"),
    [
        (spec("swiglu"), "swiglu"),
        (spec("glu"), "glu"),
        (spec("new", "naive"), "naive"),
        (spec("new", "gate"), "gate"),
    ],
)
def test_a_clash_names_both_providers_with_their_versions(registry, taken, word):
    with pytest.raises(RegistrationError, match=rf"ffn '{word}' .* both mine 1\.0 and theirs 2\.5"):
        registry.add([taken], THEIRS)
    assert registry.provider(word) == MINE


@pytest.mark.parametrize("second", [spec("first"), spec("ok", "first"), spec("No")])
def test_add_takes_all_or_nothing(registry, second):
    with pytest.raises(RegistrationError):
        registry.add([spec("first", "one"), second], THEIRS)
    assert registry.names() == ["gated", "naive", "swiglu"]
    assert "one" not in registry


def test_specs_that_end_in_an_error_leave_nothing(registry):
    def specs():
        yield spec("first")
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        registry.add(specs(), THEIRS)
    assert "first" not in registry


def test_a_removed_entry_takes_its_aliases_along_and_frees_its_name(registry):
    registry.remove("glu")
    assert [name in registry for name in ("gated", "glu", "gate")] == [False] * 3
    registry.add([spec("gate")], THEIRS)
    assert registry.provider("gate") == THEIRS
    with pytest.raises(UnknownNameError):
        registry.remove("gated")


def test_a_copy_is_independent(registry):
    copy = registry.copy()
    copy.add([spec("more")], THEIRS)
    copy.remove("naive")
    assert registry.names() == ["gated", "naive", "swiglu"]
    assert copy.names() == ["gated", "more", "swiglu"]


def test_a_provider_is_shown_with_its_version_when_it_has_one():
    assert str(MINE) == "mine 1.0"
    assert str(Provider("notebook")) == "notebook"

"""Known traps: each found with its fix, allowed by its word where it may be, and no others."""

import copy

import pytest

from mlpkit.lint import Finding, lint, takes_activation
from mlpkit.plugins import load
from mlpkit.registry import Provider
from mlpkit.specs import FFNSpec

CLEAN = {
    "activation": None,
    "ffn": {"name": "swiglu", "activation": None, "intermediate_size": None},
    "model": {
        "hidden_size": 16,
        "num_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": None,
    },
    "lint": {"allow": []},
}


class Plain:
    def __init__(self, *, hidden_size: int, rank: int = 2):
        raise AssertionError("the lint builds nothing")


@pytest.fixture(scope="module")
def regs():
    result = load().registries
    result.ffn.add([FFNSpec(name="plain", target=Plain)], Provider("test"))
    return result


def found(regs, **changed):
    config = copy.deepcopy(CLEAN)
    config.update(changed)
    return [(finding.code, str(finding)) for finding in lint(config, regs)]


@pytest.mark.parametrize("ffn", ["swiglu", "naive", {"name": "glu", "bias": True}])
@pytest.mark.parametrize("activation", [None, "gelu", {"name": "gelu"}])
def test_a_sound_configuration_has_no_finding(regs, ffn, activation):
    assert found(regs, ffn=ffn, activation=activation) == []


def test_heads_that_do_not_divide_cannot_be_allowed(regs):
    model = {**CLEAN["model"], "hidden_size": 18}
    ((code, message),) = found(regs, model=model, lint={"allow": ["", "heads_divide"]})
    assert code == ""
    assert message.startswith("model.hidden_size 18 is not a multiple of")


@pytest.mark.parametrize("width", [0, -5, "5/3", 1.5, True])
def test_a_wrong_width_is_found_without_building(regs, width):
    ((code, message),) = found(regs, ffn={"name": "naive", "intermediate_size": width})
    assert code == ""
    assert message.startswith(f"ffn.intermediate_size is {width!r}; give a whole number ≥ 1")


@pytest.mark.parametrize("ffn", ["plain", {"name": "plain", "rank": 3}])
def test_an_activation_that_nothing_reads_is_found(regs, ffn):
    ((code, message),) = found(regs, ffn=ffn, activation="gelu")
    assert code == "unread-activation"
    assert message == (
        "activation is set, but the ffn 'plain' takes none; remove activation=, or allow it with "
        "lint.allow=[unread-activation]"
    )
    assert found(regs, ffn=ffn) == []


def test_an_activation_that_another_one_hides_is_found(regs):
    ffn = {"name": "swiglu", "activation": "relu"}
    ((code, message),) = found(regs, ffn=ffn, activation="gelu")
    assert code == "unread-activation"
    assert "ffn.activation is set too and wins" in message
    assert found(regs, ffn=ffn) == []


def test_a_trap_is_allowed_by_its_word_alone(regs):
    changed = {"ffn": "plain", "activation": "gelu"}
    assert found(regs, **changed, lint={"allow": ["unread-activation"]}) == []
    assert len(found(regs, **changed, lint={"allow": ["unread"]})) == 1


def test_notes_pass_whatever_is_allowed(regs, monkeypatch):
    note = Finding(code="remark", message="by the way", is_error=False)
    monkeypatch.setattr("mlpkit.lint.RULES", (lambda config, regs: [note],))
    assert found(regs, lint={"allow": ["remark"]}) == [("remark", "by the way")]


def test_an_ffn_takes_an_activation_by_its_default_or_its_signature():
    class Plain:
        def __init__(self, *, hidden_size): ...

    class Taking:
        def __init__(self, *, hidden_size, activation): ...

    assert takes_activation(FFNSpec(name="a", target="nowhere:X", default_activation="relu"))
    assert takes_activation(FFNSpec(name="a", target=Taking))
    assert not takes_activation(FFNSpec(name="a", target=Plain))

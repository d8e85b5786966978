"""The traps of a mixture of experts: each found, each with its way out, each allowed by name."""

from __future__ import annotations

from typing import Any

import pytest

from mlpkit.build import build_ffn, build_model
from mlpkit.compose import ConfigError, compose
from mlpkit.lint import CODES, TrapWarning, lint
from mlpkit.plugins import registries

# overrides → words of the error
ERRORS = {
    "num_experts_per_tok=9": ("num_experts_per_tok is 9", "1 to 8"),
    "num_experts=0": ("num_experts is 0", "at least 1"),
    "router.n_group=3": ("num_experts is 8", "n_group 3"),
    "router.n_group=8": ("num_experts_per_tok is 2", "topk_group"),
    "router.n_group=0": ("ffn.router.n_group is 0", "at least 1"),
    "router.topk_group=2": ("ffn.router.topk_group is 2", "choose 1 to 1"),
    "router.choose_by=logit": ("'logit'; did you mean 'logits'", "scores"),
    "router.jitter=1.0": ("ffn.router.jitter is 1.0", "below 1"),
    "balance.load={over_layers: sun}": ("ffn.balance.load.over_layers is 'sun'", "'sum'"),
    "capacity_factor=-1.0": ("capacity_factor is -1.0", "above 0"),
    "shared_combine=x": ("shared_combine is 'x'", "average"),
    "router.score=gelo": ("ffn.router.score", "gelu"),
    "expert.intermediate_size=-1": ("ffn.expert.intermediate_size is -1", "whole number"),
    "expert=moe": ("ffn.expert is a moe", "dense"),
    "experts=[{name: naive, num_experts: 7}, {name: moe, num_experts: 1}]": (
        "ffn.experts.1 is a moe",
        "dense",
    ),
    "experts=[3]": ("ffn.experts", "list such as"),
    "balance.selection_bias=0.1": ("balance.selection_bias", "router.selection_bias=true"),
    "balance=7": ("ffn.balance is 7", "mapping"),
    "balance.loda=0.1": ("loda", "load"),
    "balance.load={coefficient: 0.1, over_token: sequence}": ("over_token", "over_tokens"),
    "drop_policy=probs": ("drop_policy is set", "capacity_factor"),
    "shared_combine=gated": ("shared_combine is set", "ffn/shared=NAME"),
}
# what may be allowed: overrides → code
ALLOWED = {
    "ffn.num_experts_per_tok=1": "top1-normalised",
    "ffn/router=expert_choice": "non-causal",
    "ffn.capacity_factor=1.5 ffn.drop_policy=probs": "non-causal",
    "ffn.capacity_factor=0.5": "small-capacity",
    "++ffn.balance.load_hf=0.1": "two-conventions",
    "ffn/expert=zero activation=gelu": "unread-activation",
}


@pytest.mark.parametrize("line", ERRORS)
def test_a_trap_is_an_error_with_its_key_and_the_way_out(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(["ffn=moe", f"++ffn.{line}"])
    for word in ERRORS[line]:
        assert word in str(caught.value)


@pytest.mark.parametrize("line", ALLOWED)
def test_a_trap_may_be_walked_into_by_name(line: str) -> None:
    overrides = ["ffn=moe", *line.split()]
    with pytest.raises(ConfigError, match=rf"lint\.allow=\[{ALLOWED[line]}\]"):
        compose(overrides)
    compose([*overrides, f"lint.allow=[{ALLOWED[line]}]"])


def test_a_code_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'top1-normalized'; did you mean 'top1-normalised'"):
        compose(["ffn=moe", "lint.allow=[top1-normalized]"])
    assert set(ALLOWED.values()) == set(CODES)


@pytest.mark.parametrize(
    "router",
    [
        "ffn.router.norm_topk_prob=false",
        "ffn/router=sparsemixer",
        "ffn.router=sparsemixer",
        "ffn/router=llama4",
    ],
)
def test_top1_without_normalising_is_no_trap(router: str) -> None:
    compose(["ffn=moe", "ffn.num_experts_per_tok=1", router])


TRAP = "divides its weight by itself"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("moe", {"num_experts_per_tok": 1}),
        ("moe", {"num_experts_per_tok": 1, "router": "topk"}),
        ("moe", {"num_experts_per_tok": 1, "router": "mixtral"}),
        ("moe", {"num_experts_per_tok": 1, "router": {"name": "topk", "score": "sigmoid"}}),
        ({"name": "mixtral", "num_experts": 2}, {"num_experts_per_tok": 1}),
    ],
)
def test_an_ffn_built_by_a_call_warns_once_of_the_trap(name: Any, options: dict[str, Any]) -> None:
    with pytest.warns(TrapWarning, match=TRAP) as caught:
        moe = build_ffn(name, hidden_size=8, **options)
    (warning,) = caught
    assert warning.filename == __file__
    assert moe.router.norm_topk_prob  # type: ignore[union-attr]


def test_an_ffn_built_by_a_call_warns_of_nothing_else() -> None:
    def built(**options: Any) -> None:
        build_ffn("moe", hidden_size=8, num_experts=4, num_experts_per_tok=1, **options)

    for said in (True, False):  # what is spelled out is meant
        built(router={"name": "topk", "norm_topk_prob": said})
    built(router="sparsemixer")
    built(router="uniform", balance=None)
    build_ffn("minimind", hidden_size=8)  # what a family did is built as it was
    build_ffn("moe", hidden_size=8, capacity_factor=0.5, router="expert_choice")


def test_a_checked_model_with_an_allowed_trap_warns_of_nothing() -> None:
    tiny = ["model.hidden_size=16", "model.num_layers=1", "ffn.num_experts_per_tok=1"]
    build_model(["ffn=moe", *tiny, "lint.allow=[top1-normalised]"])


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("ffn.balance=null", "unbalanced"),
        ("ffn/router=deepseek_v3", "fixed-bias"),
        ("ffn.balance.load=0.2", "large-balance"),
        ("ffn.router.group_score=top2", "unread-option"),
        ("ffn.router={norm_topk_prob: false, norm_eps: 0.1}", "unread-option"),
    ],
)
def test_a_note_does_not_stop_the_run(line: str, code: str) -> None:
    config = compose(["ffn=moe", line])
    assert code in [finding.code for finding in lint(config, registries())]


@pytest.mark.parametrize(
    ("name", "layers", "per_token", "balanced"),
    [
        ("load", 4, 2, 1),
        ("load_hf", 4, 2, 2),
        ("load_minimind", 4, 2, 8),
        ("load_minimind", 8, 4, 32),
    ],
)
def test_a_coefficient_is_large_by_what_its_term_is_when_balanced(
    name: str, layers: int, per_token: int, balanced: int
) -> None:
    overrides = ["ffn=moe", f"ffn/balance={name}", f"model.num_layers={layers}"]
    overrides.append(f"ffn.num_experts_per_tok={per_token}")
    for factor, found in ((0.9, False), (1.1, True)):
        config = compose([*overrides, f"ffn.balance.{name}={factor * 0.1 / balanced}"])
        codes = [finding.code for finding in lint(config, registries())]
        assert ("large-balance" in codes) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ffn.intermediate_size=100", "ffn.intermediate_size is 100"),
        ("ffn.intermediate_size=104", ""),
        ("ffn=moe ffn.expert.intermediate_size=12", "ffn.expert.intermediate_size is 12"),
    ],
)
def test_a_width_that_matrix_engines_dislike_is_a_note(line: str, found: str) -> None:
    notes = [f for f in lint(compose(line.split()), registries()) if f.code == "odd-width"]
    assert bool(notes) == bool(found)
    assert all(found in note.message for note in notes)


def test_the_default_mixture_and_the_dense_default_have_no_finding() -> None:
    for overrides in ([], ["ffn=moe"], ["ffn=moe", "ffn/shared=swiglu"]):
        assert lint(compose(overrides), registries()) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ffn/expert=zero activation=gelu", "'zero' takes none"),
        ("ffn.expert.activation=gelu activation=relu", "ffn.expert.activation is set too"),
    ],
)
def test_an_activation_that_no_expert_reads_is_an_error(line: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compose(["ffn=moe", *line.split()])


def test_an_activation_reaches_the_experts_that_say_nothing() -> None:
    compose(["ffn=moe", "activation=gelu", "ffn/shared=swiglu", "ffn.shared.activation=relu"])


@pytest.mark.parametrize("router", ["forced", "uniform"])
def test_a_router_without_weights_has_no_balance_to_train(router: str) -> None:
    chosen = ["ffn=moe", f"ffn/router={router}", "lint.allow=[non-causal]"]
    with pytest.raises(ConfigError, match=rf"load, z.*'{router}'.*ffn\.balance=null"):
        compose(chosen)
    config = compose([*chosen, "ffn.balance=null"])
    assert "unbalanced" not in {finding.code for finding in lint(config, registries())}
    slot = ["+ffn@ffns.sparse=moe", f"ffn/router@ffns.sparse.router={router}"]
    layers = 'model.layers={"0": sparse, "1-": main}'
    with pytest.raises(ConfigError, match=r"ffns\.sparse\.balance=null"):
        compose([*slot, layers, "lint.allow=[non-causal]"])

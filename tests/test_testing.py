"""The conformance kit: what ships passes it, and it finds what is broken, by name."""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import datasets
import pyarrow
import pytest
import torch
from pyarrow import parquet
from torch import nn

from mlpkit import plugins
from mlpkit.balance import BalanceTerm, SelectionBias
from mlpkit.data import Document
from mlpkit.experts import Backend, Loop
from mlpkit.plugins import PluginError, load, registries
from mlpkit.registry import Provider, UnknownNameError
from mlpkit.routers.base import Router, token_choice
from mlpkit.specs import (
    ActivationSpec,
    BackendSpec,
    BalanceSpec,
    DataSpec,
    FFNSpec,
    RouterSpec,
)
from mlpkit.testing import (
    ConformanceError,
    ExpectationError,
    cases,
    check_activation,
    check_ffn,
    check_plugin,
    conformance,
    imports_no_torch,
    run_checks,
    subjects_of,
)
from mlpkit.testing.ffn import dense_mixture
from mlpkit.testing.subjects import close, title

OPTIONS = {"text": {"path": str(Path(__file__).parents[1] / "docs")}}
FOLDER = tempfile.TemporaryDirectory()  # of the sources that read files of a form
ROWS = {"text": ["one document", "another one", "a third"]}


def options_of(name):
    """Options of the sources that need some, with what they read."""
    path = Path(FOLDER.name) / name
    if name == "jsonl":
        path.write_text("\n".join(json.dumps({"text": text}) for text in ROWS["text"]))
    elif name == "parquet":
        parquet.write_table(pyarrow.table(ROWS), path)
    elif name == "hf":
        datasets.Dataset.from_dict(ROWS).save_to_disk(str(path))
    else:
        return OPTIONS.get(name, {})
    return {"path": str(path)}


def marks(case):
    """Compiling takes most of the time, and one activation compiles as the other does."""
    costly = case.subject.noun == "activation" and "graph" in title(case.check)
    return [pytest.mark.slow] if costly and case.subject.spec.name not in SOME else []


SOME = ("silu", "prelu", "softplus", "gaussian_topk", "xielu")
BUILTINS = [
    pytest.param(case, id=f"{noun}-{case}", marks=marks(case))
    for noun, registry in load().registries.by_noun().items()
    for name in registry.names()
    for case in cases(noun, name, **options_of(name))
]


@pytest.mark.parametrize("check", BUILTINS)
def test_a_built_in_keeps_its_contract(check):
    check()


def test_no_kind_and_no_entry_is_left_out():
    counted = Counter(
        (case.subject.noun, case.subject.spec.name)
        for (case,) in (parameter.values for parameter in BUILTINS)
    )
    for noun, registry in load().registries.by_noun().items():
        assert all(counted[noun, name] >= 3 for name in registry.names())


class Linear(nn.Module):
    """A base for FFNs that are wrong in one thing each."""

    def __init__(self, *, hidden_size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x):
        return self.proj(x)


class AcrossPositions(Linear):
    def forward(self, x):
        return self.proj(x) + x.mean(-2 if x.ndim > 1 else -1, keepdim=True)


class Single(Linear):
    def forward(self, x):
        return self.proj(x).float()


class InPlace(Linear):
    def forward(self, x):
        return self.proj(x.data.mul_(1.5))


class Counting(Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.proj(x)


class OwnNumber(Linear):
    def __init__(self, *, hidden_size: int) -> None:
        super().__init__(hidden_size=hidden_size)
        self.factor = float(torch.rand(()))

    def forward(self, x):
        return self.factor * self.proj(x)


class WrongGradient(Linear):
    def forward(self, x):
        return self.proj(x) + (x * 2 - (x * 2).detach())


class Unused(Linear):
    def __init__(self, *, hidden_size: int) -> None:
        super().__init__(hidden_size=hidden_size)
        self.extra = nn.Parameter(torch.ones(hidden_size))


class Noisy(Linear):
    def forward(self, x):
        return self.proj(x) + torch.randn_like(x)


class ByMode(Linear):
    def forward(self, x):
        return self.proj(x) * (2.0 if self.training else 1.0)


class LostWeight(Linear):
    def __init__(self, *, hidden_size: int) -> None:
        super().__init__(hidden_size=hidden_size)
        self.register_buffer("mix", torch.rand(hidden_size), persistent=False)

    def forward(self, x):
        return self.proj(x) * self.mix


class Lambda(Linear):
    def __init__(self, *, hidden_size: int) -> None:
        super().__init__(hidden_size=hidden_size)
        self.function = lambda x: x + 1

    def forward(self, x):
        return self.function(self.proj(x))


class OnCpu(Linear):
    def __init__(self, *, hidden_size: int) -> None:
        super().__init__(hidden_size=hidden_size)
        self.scale = nn.Parameter(torch.ones(hidden_size, device="cpu"))

    def forward(self, x):
        return self.scale * self.proj(x)


class Item(Linear):
    def forward(self, x):
        return self.proj(x) * (2.0 if x.sum().item() > 0 else 1.0)


class Viewing(Linear):
    def forward(self, x):
        return self.proj(x.view(-1, self.proj.in_features)).view(x.shape)


class OneToken(Linear):
    def forward(self, x):
        return self.proj(x) if x.numel() else x.new_ones(x.shape).sum()


FFNS = {
    AcrossPositions: "each position is worked on alone",
    Single: "shape and dtype are those of the input",
    InPlace: "the input is left as it was",
    Counting: "a forward changes nothing",
    OwnNumber: "copies differ in their tensors alone",
    WrongGradient: "gradients are right",
    Unused: "gradients are right",
    Noisy: "equal seeds give equal values and evaluation draws nothing",
    ByMode: "training equals evaluation unless it is random",
    LostWeight: "a state dict carries everything",
    Lambda: "copies and pickles compute the same",
    OnCpu: "it builds without storage",
    Item: "it runs without storage",
    Viewing: "strides do not matter",
    OneToken: "an empty input gives an empty output",
}


@pytest.fixture
def register(monkeypatch):
    """Registers an entry for one test."""
    loaded = load()
    monkeypatch.setattr(plugins, "load_once", lambda: loaded)
    monkeypatch.setattr("mlpkit.testing.running.load_once", lambda: loaded)

    def add(noun, spec):
        loaded.registries.by_noun()[noun].add([spec], Provider("test"))

    return add


def failed(noun, name, **options):
    return [r.check for r in run_checks(noun, name, **options) if r.state == "failed"]


def test_a_plain_linear_passes(register):
    register("ffn", FFNSpec(name="x", target=Linear))
    assert failed("ffn", "x") == []


@pytest.mark.parametrize("kind", FFNS, ids=lambda kind: kind.__name__)
def test_what_is_wrong_with_an_ffn_is_found_by_its_check(register, kind):
    register("ffn", FFNSpec(name="x", target=kind))
    assert FFNS[kind] in failed("ffn", "x")
    with pytest.raises(ConformanceError, match=FFNS[kind]):
        check_ffn("x")


@pytest.mark.parametrize("field", ["num_params", "flops_per_token"])
def test_a_wrong_formula_is_found(register, field):
    square = 2 * 64 if field == "flops_per_token" else 64
    right = {"x": lambda size: square * size**2 // 64, "y": lambda size: 65}
    for name, formula in right.items():
        register("ffn", FFNSpec(name=name, target=Linear, **{field: formula}))
    assert failed("ffn", "x") == []
    (wrong,) = failed("ffn", "y")
    assert "formula" in wrong


def test_the_reference_of_the_expert_check_is_the_weighted_sum():
    class Both(nn.Module):
        def forward(self, x):
            rows = torch.arange(len(x)).repeat_interleave(2)
            experts, weights = torch.tensor([0, 1] * len(x)), torch.tensor([0.25, 0.75] * len(x))
            return token_choice(experts.view(-1, 2), weights.view(-1, 2), x, x)._replace(token=rows)

    x = torch.ones(3, 2)
    out = dense_mixture(Both(), [nn.Identity(), lambda rows: 2 * rows], x)
    torch.testing.assert_close(out, torch.full((3, 2), 0.25 + 1.5))


def across(x):
    return x - x.mean(-1, keepdim=True)


def humped(x):
    return x * torch.exp(-x)


def leaky(x):
    return torch.where(x > 0, x, 0.1 * x)


def slope(x):
    return torch.where(x > 0, 1.0, 0.2)


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.a * x


ACTIVATIONS = {
    "each element depends on itself alone": ActivationSpec(name="x", target=across),
    "it is monotone": ActivationSpec(name="x", target=humped, monotone=True),
    "the closed derivative is the gradient": ActivationSpec(
        name="x", target=leaky, derivative_target=slope
    ),
    "parameters are the declared ones": ActivationSpec(name="x", target=Learned),
}


@pytest.mark.parametrize("check", ACTIVATIONS)
def test_what_is_wrong_with_an_activation_is_found_by_its_check(register, check):
    register("activation", ACTIVATIONS[check])
    assert failed("activation", "x") == [check]
    with pytest.raises(ConformanceError, match=f"activation 'x', {check}: "):
        check_activation("x")


class Scores(Router):
    """A base for routers that are wrong in one thing each."""

    def __init__(self, *, hidden_size: int, num_experts: int, num_experts_per_tok: int) -> None:
        super().__init__(num_experts=num_experts, num_experts_per_tok=num_experts_per_tok)
        self.weight = nn.Parameter(torch.randn(num_experts, hidden_size))

    def forward(self, x):
        logits = self.logits(x)
        scores = logits.softmax(-1)
        weight, expert = scores.topk(self.num_experts_per_tok, dim=-1)
        return token_choice(*self.decided(expert, weight), logits, scores)

    def logits(self, x):
        wide = torch.promote_types(x.dtype, torch.float32)
        return x.to(wide) @ self.weight.to(wide).T

    def decided(self, expert, weight):
        return expert, weight


class Twice(Scores):
    def decided(self, expert, weight):
        return expert[:, :1].expand_as(expert), weight


class Detached(Scores):
    def decided(self, expert, weight):
        return expert, weight.detach()


class Coarse(Scores):
    def logits(self, x):
        return x @ self.weight.to(x.dtype).T


class Centred(Scores):
    def logits(self, x):
        logits = super().logits(x)
        return logits - 3 * logits.roll(1, 0)


class NoisyAlways(Scores):
    def logits(self, x):
        return super().logits(x) + torch.rand(len(x), self.num_experts)


class InPlaceNoise(Scores):
    def logits(self, x):
        if self.training:
            x.data.mul_(1.01)
        return super().logits(x)


ROUTERS = {
    Twice: "choices are distinct experts",
    Detached: "the weights carry a gradient",
    Coarse: "precision is float32 or finer",
    Centred: "each token is routed alone",
    NoisyAlways: "equal seeds give equal values and evaluation draws nothing",
    InPlaceNoise: "the input is left as it was",
}


@pytest.mark.parametrize("kind", [Scores, *ROUTERS], ids=lambda kind: kind.__name__)
def test_what_is_wrong_with_a_router_is_found_by_its_check(register, kind):
    register("router", RouterSpec(name="x", target=kind))
    found = failed("router", "x")
    assert found == [] if kind is Scores else ROUTERS[kind] in found


class Mean(BalanceTerm):
    def __init__(self, *, coefficient: float = 0.01) -> None:
        super().__init__(coefficient=coefficient)

    def __call__(self, routing, mask=None):
        return routing.scores[:, 0].mean()  # padding counts


class CutOff(Mean):
    def __call__(self, routing, mask=None):
        return super().__call__(routing, mask).detach().requires_grad_()


BALANCES = {
    Mean: "padding weighs nothing",
    CutOff: "it is one finite number with a gradient",
}


@pytest.mark.parametrize("kind", BALANCES)
def test_what_is_wrong_with_a_balance_term_is_found_by_its_check(register, kind):
    register("balance", BalanceSpec(name="x", target=kind))
    assert BALANCES[kind] in failed("balance", "x")


def upside_down(*, coefficient: float = 0.001):
    rule = SelectionBias(coefficient=coefficient)
    right = rule.update
    rule.update = lambda bias, load: right(bias, load.max() - load)
    return rule


def test_a_bias_rule_that_pushes_the_wrong_way_is_found(register):
    register("balance", BalanceSpec(name="x", target=upside_down))
    assert "it lowers the bias of busy experts" in failed("balance", "x")


class Never(Backend):
    name = "never"

    def __call__(self, tensors, rows, counts):
        raise NotImplementedError("not written")


def test_a_backend_that_only_ever_gives_way_to_the_loop_is_found(register):
    register("backend", BackendSpec(name="x", target=Never))
    register("backend", BackendSpec(name="y", target=Loop))
    assert failed("backend", "x") == ["it runs an ordinary ffn"]
    assert failed("backend", "y") == []


class Shuffled:
    calls = 0

    def documents(self):
        type(self).calls += 1
        yield Document(f"a/{self.calls}", b"text")
        yield Document("/home/me/b", b"text")

    def fingerprint(self):
        type(self).calls += 1
        return str(self.calls)


def test_what_is_wrong_with_a_data_source_is_found(register):
    register("data", DataSpec(name="x", target=Shuffled))
    assert failed("data", "x") == [
        "documents are named bytes",
        "documents come in the same order",
        "the fingerprint is stable",
    ]


def test_an_expected_failure_must_fail_and_must_be_the_title_of_a_check(register):
    register("ffn", FFNSpec(name="x", target=ByMode))
    name = FFNS[ByMode]
    results = check_ffn("x", expected={name: "on purpose"})
    assert [(r.check, r.reason) for r in results if r.state == "expected"] == [(name, "on purpose")]
    register("ffn", FFNSpec(name="y", target=Linear))
    with pytest.raises(ConformanceError, match=r"it passes; do not expect it to fail \(why\)"):
        check_ffn("y", expected={name: "why"})
    with pytest.raises(ExpectationError, match="did you mean 'gradients are right'"):
        check_ffn("y", expected={"gradient are right": "why"})


def test_options_and_sizes_reach_the_entry():
    (case, *_) = cases("ffn", "swiglu", hidden_size=12, intermediate_size=20)
    module = case.subject.build()
    assert module.down_proj.weight.shape == (12, 20)
    assert case.subject.rows(2).shape == (2, 12)


def test_a_name_means_an_entry_or_everything_of_a_plugin(tmp_path, monkeypatch, register):
    assert subjects_of("swiglu") == [("ffn", "swiglu")]
    assert subjects_of("glu") == [("ffn", "gated")]
    assert subjects_of("silu", "activation") == [("activation", "silu")]
    everything = subjects_of("mlpkit")
    assert len(everything) == sum(len(r.names()) for r in registries().by_noun().values())
    with pytest.raises(UnknownNameError, match=r"'swigul'; did you mean 'swiglu'\?"):
        subjects_of("swigul")
    (tmp_path / "bad.py").write_text("1 / 0")
    loaded = load(modules=[str(tmp_path / "bad.py")])
    monkeypatch.setattr("mlpkit.testing.running.load_once", lambda: loaded)
    with pytest.raises(PluginError, match="division by zero"):
        check_plugin(str(tmp_path / "bad.py"))


def test_the_parametrisation_gives_a_test_for_each_check(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "from mlpkit.testing import conformance\n"
        "@conformance('relu', expected={'it compiles to one graph': 'not here'})\n"
        "def test_relu(check):\n    check()\n"
    )
    run = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    applicable = cases("activation", "relu")
    assert f"1 failed, {len(applicable) - 1} passed" in ended.stdout  # it passes: strict
    for case in applicable:
        assert title(case.check).replace(" ", "_") in ended.stdout


def test_a_parametrisation_may_name_several_entries_of_one_kind():
    mark = conformance("relu", "silu", kind="activation").mark
    names = {parameter.values[0].subject.spec.name for parameter in mark.args[1]}
    assert names == {"relu", "silu"}


def test_a_module_that_imports_torch_is_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "heavy_plugin.py").write_text("import torch")
    (tmp_path / "light_plugin.py").write_text("import json")
    assert imports_no_torch("heavy_plugin").reason == "it imports torch"
    assert imports_no_torch("light_plugin").state == "ok"


def test_two_tensors_are_close_within_a_share_of_the_largest_value():
    want = torch.tensor([1000.0, 1.0], dtype=torch.float64)
    close(want + 1e-8, want, "x", 1e-10)
    with pytest.raises(AssertionError, match=r"x: off by 0\.001"):
        close(want + 1e-3, want, "x", 1e-10)
    with pytest.raises(AssertionError, match=r"shape \(1,\), not \(2,\)"):
        close(want[:1], want, "x")
    with pytest.raises(AssertionError):
        close(want * torch.nan, want, "x")

"""The dense FFNs: shapes, names, dtypes, and that each position stands alone."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn

from mlpkit.ffns import (
    ClampedGatedFFN,
    FeedForward,
    GatedFFN,
    LowRankFFN,
    NaiveFFN,
    OutputGatedFFN,
)
from mlpkit.sizing import WidthError

H, I = 6, 10  # noqa: E741
GATED = {"gate_proj": (I, H), "up_proj": (I, H), "down_proj": (H, I)}
RANK = 1  # H/4, rounded down
PROJECTIONS = {
    NaiveFFN: {"up_proj": (I, H), "down_proj": (H, I)},
    GatedFFN: GATED,
    ClampedGatedFFN: GATED,
    OutputGatedFFN: {**GATED, "output_gate": (1, H)},
    LowRankFFN: {f"{name}.outer": (rows, RANK) for name, (rows, _) in GATED.items()}
    | {f"{name}.inner": (RANK, columns) for name, (_, columns) in GATED.items()},
}
WITHOUT_BIAS = ("output_gate", ".inner")
by_class = pytest.mark.parametrize("kind", PROJECTIONS)


def make(kind, seed=0, dtype=torch.float32, **options):
    torch.manual_seed(seed)
    options = {"intermediate_size": I, "activation": nn.SiLU(), **options}
    if kind is ClampedGatedFFN:
        del options["activation"]
    return kind(hidden_size=H, **options).to(dtype)


@pytest.mark.parametrize("bias", [False, True])
@by_class
def test_the_state_dict_has_these_names_and_shapes(kind, bias):
    state = {name: tuple(value.shape) for name, value in make(kind, bias=bias).state_dict().items()}
    expected = {f"{name}.weight": shape for name, shape in PROJECTIONS[kind].items()}
    if bias:
        expected |= {
            f"{name}.bias": shape[:1]
            for name, shape in PROJECTIONS[kind].items()
            if not name.endswith(WITHOUT_BIAS)
        }
    assert state == expected


def test_the_formulas_by_hand():
    with torch.no_grad():
        naive = NaiveFFN(hidden_size=1, activation=nn.ReLU(), intermediate_size=2)
        naive.up_proj.weight.copy_(torch.tensor([[2.0], [-3.0]]))
        naive.down_proj.weight.copy_(torch.tensor([[5.0, 7.0]]))
        # relu(2x)·5 + relu(-3x)·7
        assert naive(torch.tensor([[1.0], [-1.0]])).tolist() == [[10.0], [21.0]]
        gated = GatedFFN(hidden_size=1, activation=nn.ReLU(), intermediate_size=2)
        gated.gate_proj.weight.copy_(torch.tensor([[2.0], [-3.0]]))
        gated.up_proj.weight.copy_(torch.tensor([[11.0], [13.0]]))
        gated.down_proj.weight.copy_(torch.tensor([[5.0, 7.0]]))
        # relu(2x)·11x·5 + relu(-3x)·13x·7
        assert gated(torch.tensor([[1.0], [-1.0]])).tolist() == [[110.0], [-273.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(H,), (4, H), (2, 3, H), (2, 1, 3, H), (0, H), (2, 0, H)])
@by_class
def test_any_leading_shape_keeps_shape_and_dtype(kind, shape, dtype):
    x = torch.randn(shape).to(dtype)
    y = make(kind, dtype=dtype)(x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)


@by_class
def test_each_position_stands_alone_also_in_a_non_contiguous_input(kind):
    module = make(kind, dtype=torch.float64)
    x = torch.randn(2, 3, H, dtype=torch.float64)
    alone = torch.stack([module(row) for row in x.flatten(0, 1)]).unflatten(0, (2, 3))
    torch.testing.assert_close(module(x), alone, rtol=0, atol=1e-14)
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    strided = torch.stack([x, -x], dim=-1)[..., 0]
    for view in (turned, strided):
        assert not view.is_contiguous()
        torch.testing.assert_close(module(view), alone, rtol=0, atol=1e-14)


@by_class
def test_bfloat16_is_close_to_float64_with_the_same_weights(kind):
    low = make(kind, dtype=torch.bfloat16)
    high = copy.deepcopy(low).double()
    x = torch.randn(20, H).bfloat16()
    exact = high(x.double())
    error = (low(x).double() - exact).abs().max() / exact.abs().max()
    assert 0 < error < 0.02  # bfloat16 keeps 8 bits


@by_class
def test_dropout_works_on_the_output_and_in_training_alone(kind):
    module = make(kind, dropout=0.5)
    x = torch.randn(200, H)
    plain = make(kind)(x)
    assert torch.equal(module.eval()(x), plain)
    dropped = module.train()(x)
    kept = dropped != 0
    assert 0.4 < kept.float().mean() < 0.6
    torch.testing.assert_close(dropped[kept], 2 * plain[kept])


@by_class
def test_no_forward_changes_the_module(kind):
    module = make(kind)
    before = copy.deepcopy(module.state_dict())
    attributes = set(vars(module))
    module(torch.randn(2, H))
    assert set(vars(module)) == attributes
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
@by_class
def test_a_copy_is_equal_and_independent(kind, way):
    module = make(kind, bias=True)
    if way == "deepcopy":
        twin = copy.deepcopy(module)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(module))
    else:
        file = io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    x = torch.randn(3, H)
    expected = module(x)
    assert torch.equal(twin(x), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(x).any()
    assert torch.equal(module(x), expected)


@by_class
def test_it_compiles_without_a_graph_break(kind):
    module = make(kind, bias=True, dropout=0.1).eval()
    x = torch.randn(2, 3, H)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), module(x))


@by_class
def test_constructors_take_keywords_alone_and_refuse_a_wrong_width(kind):
    assert issubclass(kind, FeedForward)
    parameters = list(inspect.signature(kind).parameters.values())
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters)
    with pytest.raises(WidthError, match="intermediate_size is -1"):
        make(kind, intermediate_size=-1)


def test_the_default_widths_are_the_rules_and_the_contract_is_abstract():
    assert NaiveFFN(hidden_size=8, activation=nn.ReLU()).up_proj.out_features == 32
    assert GatedFFN(hidden_size=96, activation=nn.ReLU()).up_proj.out_features == 256
    with pytest.raises(TypeError, match="abstract"):
        FeedForward()

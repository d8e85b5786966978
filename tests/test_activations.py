"""The activations: what their specs claim, their modules, their options and ACT2FN."""

import copy
import math
import pickle
import re
import subprocess
import sys

import pytest
import torch
from activation_mathematics import (
    ELEMENTWISE,
    REFERENCE,
    REGISTRY,
    build,
    by_elementwise,
    by_learned,
    by_name,
    value_and_slope,
)
from torch import nn
from transformers.activations import ACT2FN as HF_ACT2FN

from mlpkit.activations import (
    ACT2FN,
    Activation,
    ActivationOptionError,
    NoDerivativeError,
    derivative,
    make_activation,
)
from mlpkit.catalogue.activations import ACTIVATIONS
from mlpkit.registry import UnknownNameError
from mlpkit.specs import ActivationSpec


def numbers(text):
    low, high = re.fullmatch(r"[\[(](\S+), (\S+)[\])]", text).groups()
    return tuple(float(bound.replace("∞", "inf")) for bound in (low, high))


def test_the_catalogue_is_the_union_of_the_field():
    assert len(ACTIVATIONS) == len({spec.name for spec in ACTIVATIONS}) >= 65
    assert {spec.name for spec in ELEMENTWISE} == set(REFERENCE)
    for spec in ACTIVATIONS:
        assert all((spec.formula, spec.paper, spec.summary, spec.range))


def test_the_catalogue_imports_no_torch():
    code = "import mlpkit.catalogue.activations, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@by_elementwise
def test_the_range_is_reached_and_never_left(spec):
    dense = torch.linspace(-40, 40, 20001, dtype=torch.float64)
    far = torch.tensor([-1e8, -1e6, -1e3, 1e3, 1e6, 1e8], dtype=torch.float64)
    with torch.no_grad():
        value = build(spec)(torch.cat([dense, far]))
    low, high = numbers(spec.range)
    for bound, found in ((low, value.min()), (high, value.max())):
        if math.isinf(bound):
            assert found * math.copysign(1, bound) > 1e3
        else:
            assert abs(float(found) - bound) <= 5.1e-5


@by_elementwise
def test_monotone_means_that_no_step_goes_back(spec):
    dense = torch.linspace(-40, 40, 20001, dtype=torch.float64)
    with torch.no_grad():
        steps = build(spec)(dense).diff()
    falls, rises = bool((steps < -1e-12).any()), bool((steps > 1e-12).any())
    assert spec.monotone == (not (falls and rises))


@by_elementwise
def test_smooth_means_that_the_derivative_has_no_jump(spec):
    sizes = []
    for count in (4001, 32001):  # eight times as fine: a continuous change is about 1/8
        x = torch.linspace(-12.003, 12.001, count, dtype=torch.float64)
        sizes.append([float(t.diff().abs().max()) for t in value_and_slope(spec, x)])
    (gap, jump), (finer_gap, finer_jump) = sizes
    broken = finer_gap > 0.4 * gap or finer_jump > 0.4 * jump > 1e-9
    assert spec.smooth == (not broken)


@by_name
def test_elementwise_means_that_outputs_do_not_mix(spec):
    x = torch.tensor([-0.5, -0.2, 0.1, 0.3, 0.4, 0.6, 3.0], dtype=torch.float64)
    rows = torch.autograd.functional.jacobian(build(spec), x)
    mixed = bool((rows - rows.diag().diag()).abs().max() > 0)
    assert spec.elementwise == (not mixed)


@by_learned
def test_parameters_are_named_new_in_each_module_and_reset(spec):
    one, other = make_activation(spec), make_activation(spec)
    assert tuple(name for name, _ in one.named_parameters()) == spec.parameters
    assert not {id(p) for p in one.parameters()} & {id(p) for p in other.parameters()}
    with torch.device("meta"):
        late = make_activation(spec)
    late.to_empty(device="cpu").reset_parameters()
    for fresh, expected in zip(late.parameters(), one.parameters(), strict=True):
        assert torch.equal(fresh, expected)


@by_learned
def test_every_parameter_is_trained(spec):
    module = make_activation(spec)
    module(torch.linspace(-3, 3, 12).reshape(3, 4)).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in module.parameters())


def test_one_slope_per_feature_is_the_last_dimension():
    module = make_activation(REGISTRY.get("prelu"), num_parameters=4)
    with torch.no_grad():
        module.weight.copy_(torch.arange(4.0))
    assert module(-torch.ones(2, 3, 4))[1, 2].tolist() == [0, -1, -2, -3]


def test_rrelu_draws_in_training_only():
    module, x = make_activation(REGISTRY.get("rrelu")), -torch.ones(1000)
    torch.manual_seed(0)
    drawn = module.train()(x)
    assert -1 / 3 <= drawn.min() < -0.32
    assert -0.135 < drawn.max() <= -1 / 8
    assert (module.eval()(x) == -11 / 48).all()


@by_name
def test_modules_copy_pickle_and_take_any_layout(spec):
    module = build(spec, torch.float32)
    x = torch.linspace(-3, 3, 12).reshape(3, 4)
    expected = module(x)
    for got in (
        copy.deepcopy(module)(x),
        pickle.loads(pickle.dumps(module))(x),
        module(x.t().contiguous().t()),
        torch.vmap(module)(x),
    ):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    assert module(torch.empty(2, 0, 4)).shape == (2, 0, 4)


def test_every_module_compiles_without_a_graph_break():
    modules = nn.ModuleList(build(spec, torch.float32) for spec in ACTIVATIONS)

    def everything(x):
        return [module(x) for module in modules]

    x = torch.linspace(-3, 3, 12).reshape(3, 4)
    for got, expected in zip(
        torch.compile(everything, fullgraph=True, backend="eager")(x), everything(x), strict=True
    ):
        assert torch.equal(got, expected)


def test_options_are_shown_and_used():
    module = make_activation(REGISTRY.get("leaky_relu"), negative_slope=0.5)
    assert repr(module) == "Activation(leaky_relu, negative_slope=0.5)"
    assert module(torch.tensor([-2.0])).item() == -1.0
    assert repr(make_activation(REGISTRY.get("gelu"))) == "Activation(gelu)"
    x = torch.tensor([0.3, -0.7], dtype=torch.float64)
    beta = derivative(REGISTRY.get("swish_beta"), x, beta=1.702)
    torch.testing.assert_close(beta, derivative(REGISTRY.get("quick_gelu"), x), rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("leaky_relu", {"negative_slop": 1}, r"did you mean 'negative_slope'.*options: neg"),
        ("gelu", {"approximate": "tanh"}, r"'gelu' has no option 'approximate'.*none"),
        ("prelu", {"inti": 1}, r"did you mean 'init'"),
        ("softplus", {"beta": 0}, r"beta is 0; give a number above 0"),
        ("softplus", {"beta": "x"}, r"'softplus' cannot be built with beta='x'"),
        ("gaussian_topk", {"sparsity": 1.0}, r"sparsity is 1.0; give a number between 0 and 1"),
        ("hardtanh", {"min_val": 2}, r"min_val is 2, not below max_val 1.0"),
        ("gelu_10", {"min": 11}, r"min is 11, above max 10.0"),
        ("rrelu", {"lower": 0.5}, r"lower is 0.5, above upper"),
        ("xielu", {"alpha_n": 0.2}, r"alpha_n - beta is -0.3"),
        ("poly_relu", {"order": 0}, r"order is 0; give a number above 0"),
    ],
)
def test_wrong_options_are_refused_when_the_module_is_built(name, options, message):
    with pytest.raises(ActivationOptionError, match=message) as caught:
        make_activation(REGISTRY.get(name), **options)
    assert caught.value.exit_code == 2
    assert isinstance(caught.value, ValueError)


def test_an_activation_that_mixes_features_has_no_elementwise_derivative():
    with pytest.raises(NoDerivativeError, match="'solu' is not elementwise"):
        derivative(REGISTRY.get("solu"), torch.zeros(2))


def test_derivative_falls_back_to_autograd_also_without_gradients():
    spec = ActivationSpec(name="cube", target=lambda x: x**3)
    with torch.no_grad():
        assert derivative(spec, torch.tensor([2.0])).item() == 12.0


def test_act2fn_is_a_mapping_that_makes_a_new_module_each_time():
    assert ACT2FN["prelu"] is not ACT2FN["prelu"]
    assert isinstance(ACT2FN["gelu_new"], Activation)
    assert "swish" in ACT2FN
    assert "swich" not in ACT2FN
    assert set(HF_ACT2FN) <= set(ACT2FN.keys())
    assert len(ACT2FN) == len(list(ACT2FN)) > len(ACTIVATIONS)
    assert all(name in ACT2FN for name in ACT2FN)
    assert ACT2FN.get("nothing") is None
    with pytest.raises(TypeError):
        ACT2FN["mine"] = nn.ReLU()


@pytest.mark.parametrize("name", ["gelu_tnah", "SiLU", "", None])
def test_act2fn_refuses_unknown_names(name):
    with pytest.raises(UnknownNameError, match=re.escape(f"unknown activation {str(name)!r}")):
        ACT2FN[name]

"""Checks of anything that is an nn.Module: activations, FFNs and routers."""

from __future__ import annotations

import copy
import inspect
import io
import pickle

import torch
from torch import Tensor, nn

from mlpkit.schema import COMPONENTS, option_parameters, schema_of
from mlpkit.specs import resolve
from mlpkit.testing.subjects import Check, Subject, close, must


def options_are_those_of_the_constructor(subject: Subject) -> None:
    """The schema has the constructor's options with their defaults."""
    spec = subject.spec
    schema = schema_of(subject.noun, spec)
    if spec.config is None:
        return  # it was read from the signature
    shown = {name: value for name, value in vars(schema()).items() if name != "name"}
    must(schema().name == spec.name, f"config.name is {schema().name!r}, not {spec.name!r}")
    for name, parameter in option_parameters(subject.noun, resolve(spec.target)).items():
        if name not in shown:
            must(False, f"the constructor's option {name!r} is missing in {schema.__name__}")
        wanted = parameter.default
        if name not in COMPONENTS and wanted is not inspect.Parameter.empty:
            must(shown[name] == wanted, f"{name} is {shown[name]!r} in the config, not {wanted!r}")


def equal_seeds_give_equal_values_and_evaluation_draws_nothing(subject: Subject) -> None:
    """Initial values come from torch's generator alone; evaluation is a function of x."""
    first, second, x = subject.build(3), subject.build(3), subject.rows(5)
    for name, tensor in first.state_dict().items():
        must(torch.equal(tensor, second.state_dict()[name]), f"{name} differs for equal seeds")
    state = torch.get_rng_state()
    once, twice = (subject.values(first, x) for _ in range(2))
    must(torch.equal(once, twice), "two evaluations of the same input differ")
    must(torch.equal(state, torch.get_rng_state()), "evaluation draws random numbers")


def training_equals_evaluation_unless_it_is_random(subject: Subject) -> None:
    """Where two seeds give the same output in training, evaluation gives it too."""
    module, x = subject.build(), subject.rows(5)
    expected = subject.values(module, x)
    module.train()
    with torch.random.fork_rng(devices=[]):
        outputs = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            outputs.append(subject.values(module, x))
    if torch.equal(*outputs):
        close(outputs[0], expected, "training against evaluation")


def the_input_is_left_as_it_was(subject: Subject) -> None:
    """Forward and backward write nothing into x."""
    x = subject.rows(5).requires_grad_()
    before = x.detach().clone()
    module = subject.build().train()
    backward(subject.values(module, x))
    must(torch.equal(x.detach(), before), "the input was changed in place")


def a_state_dict_carries_everything(subject: Subject) -> None:
    """Saved, read without pickle and loaded into another instance, it gives the same output."""
    first, second, x = moved(subject.build(0)), subject.build(1), subject.rows(5)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    close(subject.values(second, x), subject.values(first, x), "after loading", 0)


def copies_and_pickles_compute_the_same(subject: Subject) -> None:
    """``deepcopy`` and ``pickle`` keep the values and share no tensor."""
    module, x = moved(subject.build()), subject.rows(5)
    own = {tensor.data_ptr() for tensor in module.state_dict().values() if tensor.numel()}
    for how, twin in (
        ("deepcopy", copy.deepcopy(module)),
        ("pickle", pickle.loads(pickle.dumps(module))),
    ):
        close(subject.values(twin, x), subject.values(module, x), how, 0)
        shared = own & {tensor.data_ptr() for tensor in twin.state_dict().values()}
        must(not shared, f"{how} shares a tensor with the original")


def it_builds_without_storage(subject: Subject) -> None:
    """On the meta device, as sizes are counted: the same tensors with the same shapes."""
    with torch.device("meta"):
        module = subject.make()
    got, want = (
        {name: tuple(tensor.shape) for name, tensor in m.state_dict().items()}
        for m in (module, subject.build())
    )
    must(got == want, f"tensors on meta: {got}, not {want}")
    real = [name for name, tensor in module.named_parameters() if not tensor.is_meta]
    must(not real, f"{', '.join(real)} has storage; do not name a device in the constructor")


def it_runs_without_storage(subject: Subject) -> None:
    """On the meta device, as operations are counted."""
    with torch.device("meta"):
        module = subject.make().eval()
        out = subject.values(module, torch.empty(5, subject.hidden_size))
    shape = tuple(subject.values(subject.build(), subject.rows(5)).shape)
    must(tuple(out.shape) == shape, f"output on meta: {tuple(out.shape)}, not {shape}")


def it_compiles_to_one_graph(subject: Subject) -> None:
    """``torch.compile`` with ``fullgraph=True`` gives the same output (backend "eager")."""
    module, x = subject.build(), subject.rows(5)
    expected = subject.values(module, x)
    torch._dynamo.reset()  # graphs of other subjects count towards the limit of recompilations
    compiled = torch.compile(
        lambda rows: subject.values(module, rows), backend="eager", fullgraph=True
    )
    close(compiled(x), expected, "compiled")


def backward(out: Tensor) -> None:
    """A backward, where anything asks for one: an FFN that gives zeros has no gradient."""
    if out.requires_grad:
        torch.autograd.backward(out.sum())


def moved(module: nn.Module) -> nn.Module:
    """The module with other parameters than its initial ones, as after some training."""
    rng = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.rand(parameter.shape, generator=rng, dtype=torch.float64)
            parameter.add_(0.1 * noise.to(parameter.dtype))
    return module


MODULE_CHECKS: tuple[Check, ...] = (
    options_are_those_of_the_constructor,
    equal_seeds_give_equal_values_and_evaluation_draws_nothing,
    training_equals_evaluation_unless_it_is_random,
    the_input_is_left_as_it_was,
    a_state_dict_carries_everything,
    copies_and_pickles_compute_the_same,
    it_builds_without_storage,
    it_runs_without_storage,
    it_compiles_to_one_graph,
)

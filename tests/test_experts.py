"""Experts: any FFN stacked; every backend against E separate dense copies; what is refused."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from mlpkit.experts import (
    Auto,
    Backend,
    ConstantExpert,
    CopiesError,
    CopyExpert,
    ExpertGroups,
    Experts,
    Gather,
    Grouped,
    Loop,
    Padded,
    UnknownBackendError,
    ZeroExpert,
)
from mlpkit.experts.operators import grouped_mm, grouped_outer
from mlpkit.ffns import GatedFFN, NaiveFFN

H, INNER, COUNTS = 8, 16, (3, 0, 5, 1)
BACKENDS = ("loop", "grouped", "padded", "gather", "auto")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2}


def gated(**options):
    return GatedFFN(hidden_size=H, intermediate_size=INNER, activation=nn.SiLU(), **options)


def naive(activation=None, **options):
    activation = activation or nn.ReLU()
    return NaiveFFN(hidden_size=H, intermediate_size=INNER, activation=activation, **options)


class Around(nn.Module):
    """An FFN with something more, so that the zoo below stays short."""

    def __init__(self):
        super().__init__()
        self.up_proj = nn.Linear(H, INNER)
        self.down_proj = nn.Linear(INNER, H, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.up_proj(x)))


class NormInside(Around):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(INNER)

    def forward(self, x):
        return x + self.down_proj(F.silu(self.norm(self.up_proj(x))))


class DividesByNorm(Around):
    def forward(self, x):
        return super().forward(x / x.norm(dim=-1, keepdim=True))


class ReadsItsWeights(Around):
    def forward(self, x):
        return super().forward(x) / self.up_proj.weight.norm()


class LinearOnWeights(Around):
    def forward(self, x):
        return F.linear(F.silu(self.up_proj(x)), self.down_proj.weight)


class OwnParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(H, INNER) / 3)
        self.down = nn.Parameter(torch.randn(INNER, H) / 4)

    def forward(self, x):
        return torch.einsum("ti,ih->th", F.gelu(torch.einsum("th,hi->ti", x, self.up)), self.down)


class TiedTransposed(Around):
    def forward(self, x):
        return F.linear(F.silu(self.up_proj(x)), self.up_proj.weight.t())


class BitLike(nn.Linear):
    def forward(self, x):
        scale = self.weight.abs().mean()
        return F.linear(x, self.weight / scale, self.bias)


class Subclassed(Around):
    def __init__(self):
        super().__init__()
        self.down_proj = BitLike(INNER, H)


class RandomBuffer(Around):
    def __init__(self):
        super().__init__()
        self.register_buffer("features", torch.randn(H))
        self.register_buffer("steps", torch.randint(1, 5, ()))

    def forward(self, x):
        return super().forward(x * self.features) * self.steps


class AlsoInAList(Around):
    def __init__(self):
        super().__init__()
        self.layers = [self.up_proj, self.down_proj]

    def forward(self, x):
        return self.layers[1](F.silu(self.layers[0](x)))


class PerTensorScale(Around):
    def forward(self, x):
        return super().forward(x / x.abs().amax())


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Linear(H, 2 * INNER)
        self.down_proj = nn.Linear(INNER, H)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Heads(Around):
    def forward(self, x):
        heads = self.up_proj(x).view(len(x), 4, INNER // 4)
        return self.down_proj((heads * heads.softmax(1)).reshape(len(x), INNER))


class UsedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(H, H)
        self.inner = nn.Sequential(self.first, nn.Tanh(), nn.Linear(H, H))

    def forward(self, x):
        return self.inner(self.first(x))


def tied():
    ffn = gated()
    ffn.up_proj.weight = ffn.gate_proj.weight
    return ffn


def frozen():
    ffn = gated()
    ffn.up_proj.requires_grad_(False)
    return ffn


def hooked():
    ffn = gated()
    ffn.gate_proj.register_forward_hook(lambda module, inputs, output: 2 * output)
    return ffn


def hooked_as_a_whole():
    ffn = gated()
    ffn.register_forward_pre_hook(lambda module, inputs: (inputs[0] - inputs[0].mean(),))
    return ffn


def weight_normed():
    ffn = gated()
    nn.utils.parametrizations.weight_norm(ffn.gate_proj)
    return ffn


GROUPABLE = {
    "gated": gated,
    "gated_bias": functools.partial(gated, bias=True),
    "naive": naive,
    "packed": Packed,
    "heads": Heads,
    "tied": tied,
    "frozen": frozen,
    "used_twice": UsedTwice,
    "divides_by_norm": DividesByNorm,
}
AWKWARD = {
    "norm_inside": NormInside,
    "parametric": lambda: naive(nn.PReLU(INNER)),
    "reads_its_weights": ReadsItsWeights,
    "linear_on_weights": LinearOnWeights,
    "tied_transposed": TiedTransposed,
    "own_parameters": OwnParameters,
    "subclassed": Subclassed,
    "hooked": hooked,
    "hooked_as_a_whole": hooked_as_a_whole,
    "weight_normed": weight_normed,
    "random_buffer": RandomBuffer,
    "also_in_a_list": AlsoInAList,
    "per_tensor_scale": PerTensorScale,
    "constant": lambda: ConstantExpert(hidden_size=H),
}
ZOO = {**GROUPABLE, **AWKWARD}


def copies_of(make, dtype=torch.float64, count=4):
    torch.manual_seed(0)
    return [make().to(dtype) for _ in range(count)]


def rows_of(dtype=torch.float64, counts=COUNTS):
    return torch.randn(sum(counts), H, generator=torch.Generator().manual_seed(1)).to(dtype)


def dense(copies, rows, counts=COUNTS):
    parts = zip(copies, rows.split(list(counts)), strict=True)
    return torch.cat([ffn(part) if len(part) else part for ffn, part in parts])


def backward(out):
    weights = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64).to(out.dtype)
    (out * weights.view_as(out)).sum().backward()


def close(got, want):
    bound, want = TOLERANCE[want.dtype], want.detach()
    size = max(1.0, want.abs().max().item()) if want.numel() else 1.0
    torch.testing.assert_close(got.detach(), want, rtol=bound, atol=bound * size)


def compare(experts, copies, rows):
    ours, theirs = (rows.clone().requires_grad_() for _ in range(2))
    got, want = experts(ours, torch.tensor(COUNTS)), dense(copies, theirs)
    backward(got)
    backward(want)
    close(got, want)
    close(ours.grad, theirs.grad)
    for name, stack in experts.named_parameters():
        for index, ffn in enumerate(copies):
            gradient = ffn.get_parameter(name).grad
            if gradient is None:  # frozen, idle, or not used by the author's forward
                assert stack.grad is None or not stack.grad[index].any()
            else:
                close(stack.grad[index], gradient)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ZOO)
def test_every_ffn_equals_its_dense_copies_at_start_and_after_three_steps(name, backend, dtype):
    copies = copies_of(ZOO[name], dtype)
    experts, rows = Experts(copies, backend=backend), rows_of(dtype)
    parameters = [p for ffn in copies for p in ffn.parameters()]
    optimizers = [torch.optim.SGD(p, lr=0.01) for p in (parameters, experts.parameters())]
    compare(experts, copies, rows)
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        backward(experts(rows, torch.tensor(COUNTS)))
        backward(dense(copies, rows))
    for optimizer in optimizers:
        optimizer.zero_grad()
    compare(experts, copies, rows)


@pytest.mark.parametrize("name", GROUPABLE)
def test_plain_linears_are_grouped(name):
    experts = Experts(copies_of(ZOO[name]), backend="grouped")
    assert (experts.backend_name, experts.backend_reason) == ("grouped", "")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("norm_inside", "norm (LayerNorm) holds tensors"),
        ("parametric", "activation (PReLU) holds tensors"),
        ("reads_its_weights", "another output"),
        ("linear_on_weights", "the witness raised"),
        ("tied_transposed", "the witness raised"),
        ("own_parameters", "the FFN (OwnParameters) holds tensors"),
        ("subclassed", "down_proj (BitLike) holds tensors"),
        ("hooked", "gate_proj has hooks"),
        ("weight_normed", "holds tensors"),
        ("random_buffer", "holds tensors"),
        ("also_in_a_list", "attribute 'layers'"),
        ("per_tensor_scale", "another output"),
    ],
)
def test_what_cannot_be_grouped_runs_in_the_loop_and_says_why(name, reason):
    experts = Experts(copies_of(ZOO[name]), backend="grouped")
    assert experts.backend_name == "loop"
    assert reason in experts.backend_reason
    assert reason in repr(experts)


def test_an_ffn_that_looks_at_all_its_rows_is_not_padded():
    experts = Experts(copies_of(PerTensorScale), backend="padded")
    assert experts.backend_name == "loop"
    assert experts.backend_reason.startswith("padded: the witness found another output")
    assert Experts(copies_of(NormInside), backend="padded").backend_name == "padded"


def test_a_wrong_backend_is_found_by_its_gradient_alone():
    class Forgetful(Backend):
        name = "forgetful"

        def __call__(self, tensors, rows, counts):
            cut = {name: t.detach() + 0 * t for name, t in tensors.items()}
            return Loop(self.template)(cut, rows, counts)

    experts = Experts(copies_of(gated), backend=Forgetful)
    assert experts.backend_name == "loop"
    assert "another gradient of gate_proj.weight" in experts.backend_reason


def test_the_witness_leaves_the_random_state_alone():
    copies = copies_of(functools.partial(gated, dropout=0.5))
    before = torch.get_rng_state()
    assert Experts(copies, backend="grouped").backend_name == "grouped"
    assert torch.equal(torch.get_rng_state(), before)


def test_wide_experts_on_the_meta_device_are_judged_without_memory():
    with torch.device("meta"):
        wide = [
            GatedFFN(hidden_size=65536, intermediate_size=196608, activation=nn.SiLU())
            for _ in range(2)
        ]
        experts = Experts(wide)
    assert experts.gate_proj.weight.is_meta
    assert experts.gate_proj.weight.shape == (2, 196608, 65536)
    assert (experts.backend_name, experts.backend_reason) == ("grouped", "")


def test_experts_too_large_for_a_witness_run_in_the_loop_and_say_why():
    with torch.device("meta"):
        odd = GatedFFN(hidden_size=2**13 - 1, intermediate_size=2**14, activation=nn.SiLU())
    experts = Experts([odd, copy.deepcopy(odd)])
    size = f"{3 * (2**13 - 1) * 2**14:,}"
    assert (
        experts.backend_reason == f"grouped: an expert of {size} numbers is too large to be tried"
    )
    assert experts.backend_name == "loop"


def test_stacks_have_the_authors_names_with_the_experts_in_front():
    copies = copies_of(RandomBuffer)
    state = Experts(copies).state_dict()
    assert {name: tuple(t.shape) for name, t in state.items()} == {
        name: (len(COUNTS), *t.shape) for name, t in copies[0].state_dict().items()
    }
    for index, ffn in enumerate(copies):
        for name, tensor in ffn.state_dict().items():
            assert torch.equal(state[name][index], tensor)


def test_ties_are_one_stack_under_both_names():
    experts = Experts(copies_of(tied))
    assert experts.gate_proj.weight is experts.up_proj.weight
    assert "up_proj.weight" in experts.state_dict()
    assert len(list(experts.parameters())) == 2


def test_the_callers_copies_are_left_as_they_were():
    copies = copies_of(gated)
    before = copy.deepcopy(copies[0].state_dict())
    experts = Experts(copies)
    with torch.no_grad():
        experts.gate_proj.weight.zero_()
    assert all(torch.equal(copies[0].state_dict()[name], t) for name, t in before.items())


@pytest.mark.parametrize("name", ["gated", "tied", "random_buffer", "weight_normed", "used_twice"])
def test_an_expert_is_a_view_of_the_stacks(name):
    copies = copies_of(ZOO[name])
    experts = Experts(copies)
    view, x = experts.expert(2), rows_of()
    torch.testing.assert_close(view(x), copies[2](x), rtol=0, atol=1e-12)
    with torch.no_grad():
        for parameter in view.parameters():
            parameter.mul_(2)
            copies_of_it = [s for s in experts.parameters() if s.shape[1:] == parameter.shape]
            assert any(s[2].data_ptr() == parameter.data_ptr() for s in copies_of_it)
    after = experts(x, torch.tensor([0, 0, len(x), 0]))
    torch.testing.assert_close(after, view(x), rtol=0, atol=1e-12)
    with pytest.raises(IndexError, match="expert 4 of 4"):
        experts.expert(4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rows_give_every_parameter_a_gradient_of_zero(backend):
    experts = Experts(copies_of(gated), backend=backend)
    rows = torch.empty(0, H, dtype=torch.float64, requires_grad=True)
    out = experts(rows, torch.zeros(4, dtype=torch.int64))
    assert out.shape == (0, H)
    out.sum().backward()
    assert rows.grad.shape == (0, H)
    assert all(p.grad is not None and not p.grad.any() for p in experts.parameters())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_plain_sum_has_a_backward_and_runs_repeat_bit_by_bit(backend):
    results = []
    for _ in range(2):
        experts, rows = Experts(copies_of(gated), backend=backend), rows_of()
        before = rows.clone()
        experts(rows, torch.tensor(COUNTS)).sum().backward()
        assert torch.equal(rows, before)
        results.append([p.grad for p in experts.parameters()])
        assert all(not p.grad[COUNTS.index(0)].any() for p in experts.parameters())
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_any_width_runs(backend, dtype):
    def odd():
        return GatedFFN(hidden_size=6, intermediate_size=5, activation=nn.SiLU(), bias=True)

    copies = copies_of(odd, dtype)
    rows = torch.randn(9, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    compare(Experts(copies, backend=backend), copies, rows)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_computes_in_bfloat16_and_keeps_float32_gradients(backend):
    copies = copies_of(functools.partial(gated, bias=True), torch.float32)
    experts, rows = Experts(copies, backend=backend), rows_of(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out, want = experts(rows, torch.tensor(COUNTS)), dense(copies, rows)
    out.sum().backward()
    torch.testing.assert_close(out.float(), want.float(), rtol=2e-2, atol=2e-2)
    assert (out.float() - dense(copies, rows)).abs().max() > 1e-4  # the rounding of bfloat16
    assert experts.gate_proj.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["gated_bias", "norm_inside"])
def test_rows_past_the_last_expert_are_zero_and_have_no_gradient(name, backend):
    copies = copies_of(ZOO[name])
    experts, rows = Experts(copies, backend=backend), rows_of().requires_grad_()
    counts = torch.tensor([3, 0, 2, 1])
    out = experts(rows, counts)
    backward(out)
    assert not out[6:].any()
    assert not rows.grad[6:].any()
    close(out[:6], dense(copies, rows[:6], counts.tolist()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_follows_the_mode_of_the_experts(backend):
    copies = copies_of(functools.partial(gated, dropout=0.5))
    experts, rows = Experts(copies, backend=backend), rows_of()
    out = experts(rows, torch.tensor(COUNTS))
    assert 0.2 < (out == 0).double().mean() < 0.8
    experts.eval()
    close(experts(rows, torch.tensor(COUNTS)), dense([c.eval() for c in copies], rows))


@pytest.mark.parametrize("name", ["gated", "norm_inside", "hooked_as_a_whole"])
def test_copies_and_pickles_run_alike(name):
    experts, rows = Experts(copies_of(gated if name == "gated" else ZOO[name])), rows_of()
    want = experts(rows, torch.tensor(COUNTS))
    twin = copy.deepcopy(experts)
    assert torch.equal(twin(rows, torch.tensor(COUNTS)), want)
    with torch.no_grad():
        next(twin.parameters()).zero_()
    assert torch.equal(experts(rows, torch.tensor(COUNTS)), want)
    if name != "hooked_as_a_whole":  # a lambda is no pickle
        loaded = pickle.loads(pickle.dumps(experts))
        assert torch.equal(loaded(rows, torch.tensor(COUNTS)), want)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("gated_bias", "grouped"),
        ("gated_bias", "gather"),
        ("norm_inside", "loop"),
        ("norm_inside", "padded"),
    ],
)
def test_experts_compile_to_one_graph_for_any_routing(name, backend):
    torch.compiler.reset()
    copies = copies_of(ZOO[name])
    experts, rows = Experts(copies, backend=backend), rows_of()
    compiled = torch.compile(experts, fullgraph=True, backend="aot_eager")
    for counts in ([3, 0, 5, 1], [0, 9, 0, 0]):
        experts.zero_grad()
        out = compiled(rows, torch.tensor(counts))
        backward(out)
        close(out, dense(copies, rows, counts))
        idle = counts.index(0)
        assert all(not p.grad[idle].any() for p in experts.parameters())


def test_a_compiled_loop_gives_each_expert_only_its_rows_when_sizes_are_traced():
    torch.compiler.reset()
    copies = copies_of(NormInside)
    experts, rows = Experts(copies, backend="loop"), rows_of()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(experts, fullgraph=True, backend="aot_eager")
        close(compiled(rows, torch.tensor(COUNTS)), dense(copies, rows))


def test_flops_are_counted_alike_by_the_loop_and_the_grouped_products():
    counted = {}
    for backend in ("loop", "grouped"):
        experts = Experts(copies_of(gated), backend=backend)
        with FlopCounterMode(display=False) as counter:
            backward(experts(rows_of().requires_grad_(), torch.tensor(COUNTS)))
        counted[backend] = counter.get_total_flops()
    assert counted["loop"] == counted["grouped"] == 3 * sum(COUNTS) * 2 * 3 * H * INNER


@pytest.mark.parametrize("counts", [(2, 0, 3), (0, 0, 5), (1, 0, 2), (0, 0, 0)])
def test_the_grouped_operators_have_right_derivatives(counts):
    rng = torch.Generator().manual_seed(0)

    def draw(*shape):
        values = torch.randn(*shape, generator=rng, dtype=torch.float64)
        return values.requires_grad_()

    rows, weight, right, counts = draw(5, 2), draw(3, 2, 4), draw(5, 3), torch.tensor(counts)
    for operator, left, other in ((grouped_mm, rows, weight), (grouped_outer, rows, right)):
        assert torch.autograd.gradcheck(operator, (left, other, counts))
        assert torch.autograd.gradgradcheck(operator, (left, other, counts))
        torch.library.opcheck(operator, (left, other, counts))


@pytest.mark.parametrize("backend", BACKENDS)
def test_experts_pass_gradcheck(backend):
    experts = Experts(copies_of(gated), backend=backend)
    names = [name for name, _ in experts.named_parameters()]

    def run(rows, *stacks):
        tensors = dict(zip(names, stacks, strict=True))
        return torch.func.functional_call(experts, tensors, (rows, torch.tensor([2, 0, 1, 1])))

    stacks = [p.detach().requires_grad_() for p in experts.parameters()]
    rows = rows_of(counts=(4,)).requires_grad_()
    assert torch.autograd.gradcheck(run, (rows, *stacks), fast_mode=True)


def test_auto_pads_many_narrow_experts_and_takes_wide_ones_in_turn():
    def build(experts, hidden, intermediate):
        with torch.device("meta"):
            return Experts(
                [
                    GatedFFN(
                        hidden_size=hidden, intermediate_size=intermediate, activation=nn.SiLU()
                    )
                    for _ in range(experts)
                ]
            )

    narrow, wide = build(64, 128, 64), build(8, 512, 704)
    even, skewed = [32] * 64, [2048 - 63] + [1] * 63
    assert narrow.pick(even) == "padded"
    assert narrow.pick(even, torch.bfloat16) == "padded"
    assert narrow.pick(skewed) == "grouped"
    assert narrow.pick([1, 1] + [0] * 62) == "grouped"
    assert wide.pick([256] * 8) == "grouped"
    assert Experts(copies_of(PerTensorScale)).pick([100] * 4) == "loop"


def test_auto_runs_what_it_picks():
    copies = copies_of(gated, count=64)
    experts, counts = Experts(copies), [3] * 64
    assert experts.pick(counts) == "padded"
    rows = rows_of(counts=counts)
    out = experts(rows, torch.tensor(counts))
    close(out, dense(copies, rows, counts))
    assert torch.equal(out, Experts(copies, backend="padded")(rows, torch.tensor(counts)))


def test_groups_number_their_experts_through():
    stacks = [copies_of(gated, count=2), copies_of(NormInside, count=1), copies_of(naive, count=1)]
    groups = ExpertGroups([Experts(stack) for stack in stacks])
    copies, rows = [ffn for stack in stacks for ffn in stack], rows_of()
    assert groups.num_experts == 4
    close(groups(rows, torch.tensor(COUNTS)), dense(copies, rows))
    assert "0.gate_proj.weight" in groups.state_dict()
    assert type(groups.expert(2)) is NormInside
    close(groups.expert(3)(rows), copies[3](rows))
    assert groups.backend_name == "grouped + loop + grouped"
    assert groups.backend_reason.startswith("group 1: grouped: norm (LayerNorm)")
    compiled = torch.compile(groups, fullgraph=True, backend="aot_eager")
    close(compiled(rows, torch.tensor(COUNTS)), dense(copies, rows))
    with pytest.raises(IndexError, match="expert 4 of 4"):
        groups.expert(4)
    with pytest.raises(CopiesError, match="at least one stack"):
        ExpertGroups([])


def test_zero_copy_and_constant_experts_compute_what_they_say():
    x = rows_of(torch.float32)
    zero, same, constant = (
        Experts([kind(hidden_size=H) for _ in range(2)])
        for kind in (ZeroExpert, CopyExpert, ConstantExpert)
    )
    counts = torch.tensor([4, 5])
    assert not zero(x, counts).any()
    assert torch.equal(same(x, counts), x)
    with torch.no_grad():
        constant.mix.weight.zero_()
    vectors = constant.constant.repeat_interleave(counts, 0)
    torch.testing.assert_close(constant(x, counts), (x + vectors) / 2)


class OwnScale(Around):
    def __init__(self, scale=None):
        super().__init__()
        self.scale = torch.rand(()).item() if scale is None else scale

    def forward(self, x):
        return super().forward(x) * self.scale


class Unregistered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(H, H)]

    def forward(self, x):
        return self.layers[0](x)


class HoldsItself(Around):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()))
        self.run = lambda x: x * self.scale

    def forward(self, x):
        return self.run(super().forward(x))


class PlainTensor(Around):
    def __init__(self):
        super().__init__()
        self.noise = torch.randn(H)


class TakesAName(Around):
    def __init__(self):
        super().__init__()
        self.expert = nn.Linear(H, H)


def shared_activation():
    activation = nn.PReLU()
    return [naive(activation) for _ in range(2)]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: [OwnScale(), OwnScale()], "plain attribute 'scale'"),
        (lambda: [Unregistered(), Unregistered()], "plain attribute 'layers'"),
        (lambda: [PlainTensor(), PlainTensor()], "plain attribute 'noise'"),
        (lambda: [HoldsItself()], "'run' holds on to the FFN"),
        (shared_activation, "shares the tensor 'activation.weight'"),
        (lambda: [gated()] * 2, "shares the tensor"),
        (lambda: [gated(), naive()], "ExpertGroups"),
        (lambda: [gated(), gated(bias=True)], "'gate_proj.bias' is"),
        (lambda: [gated(), frozen()], "'up_proj.weight' is"),
        (lambda: [gated(), gated().double()], "float64"),
        (lambda: [gated(), hooked()], "_forward_hooks"),
        (lambda: [gated(), gated().eval()], "'training'"),
        (lambda: [nn.LazyLinear(H)], "'weight' is lazy"),
        (lambda: [TakesAName()], "calls a part 'expert'"),
        (list, "at least one copy"),
    ],
)
def test_copies_that_one_template_cannot_stand_for_are_refused(build, message):
    with pytest.raises(CopiesError, match=message):
        Experts(build())


def test_equal_attributes_of_any_kind_are_no_difference():
    class Rich(Around):
        def __init__(self):
            super().__init__()
            self.settings = {"a": [1, (2.0, "x")], "dtype": torch.float32}
            self.act = functools.partial(F.leaky_relu, negative_slope=0.2)
            self.scale = lambda x: 2 * x
            self.method = self.helper
            self.nan = float("nan")

        def helper(self, x):
            return self.up_proj(x)

        def forward(self, x):
            return self.scale(self.down_proj(self.act(self.method(x))))

    copies = copies_of(Rich)
    close(Experts(copies)(rows_of(), torch.tensor(COUNTS)), dense(copies, rows_of()))


def test_unknown_backends_are_refused_with_the_nearest_name():
    with pytest.raises(UnknownBackendError, match=r"'grupped'; did you mean 'grouped'"):
        Experts(copies_of(gated), backend="grupped")


def test_backends_are_named_as_their_classes_say():
    assert [b.name for b in (Auto, Loop, Grouped, Padded, Gather)] == [
        "auto",
        "loop",
        "grouped",
        "padded",
        "gather",
    ]

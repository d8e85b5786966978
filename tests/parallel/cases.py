"""What the pair of processes computes, each case against the same model in one process."""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import mlpkit
from mlpkit.build import build_ffn
from mlpkit.build.moe import build_router
from mlpkit.experts import Experts
from mlpkit.model import generate
from mlpkit.parallel import FollowingError, Layout, ParallelError, Ranks
from mlpkit.parallel.balance import gather_routing
from mlpkit.parallel.collectives import gather_rows
from mlpkit.parallel.processes import ManyProcesses
from mlpkit.routing import Routing, record_routing

CASES: dict[str, Callable[[Ranks], None]] = {}
CPU = torch.device("cpu")
LAYOUTS = {
    "ddp": Layout(data=2, shard=1, expert=1),
    "fsdp": Layout(data=1, shard=2, expert=1),
    "ep": Layout(data=2, shard=1, expert=2),
    "ep_fsdp": Layout(data=1, shard=2, expert=2),
}
SIZES = [
    *("model.hidden_size=16", "model.num_layers=2", "model.num_attention_heads=2"),
    *("model.num_key_value_heads=1", "data.tokenizer=bytes"),
]
DENSE = [*SIZES, "ffn.intermediate_size=24"]
MOE = [
    *(*SIZES, "ffn=moe", "ffn.num_experts=4", "ffn.num_experts_per_tok=2"),
    "ffn.expert.intermediate_size=16",
]


def case(function: Callable[[Ranks], None]) -> Callable[[Ranks], None]:
    CASES[function.__name__] = function
    return function


def decoder(overrides: list[str]) -> nn.Module:
    return mlpkit.build_model(overrides)


def tokens(rows: int = 4, length: int = 6, seed: int = 0) -> Tensor:
    return torch.randint(256, (rows, length + 1), generator=torch.Generator().manual_seed(seed))


def train_once(
    model: nn.Module, forward: nn.Module, batch: Tensor, *, parts: int = 1, parallel: Any = None
) -> tuple[float, dict[str, float]]:
    """One batch forward and backward as the loop does it; the global loss, and balance terms."""
    total, terms = 0.0, {}
    with record_routing(model) as record:
        pieces = batch.tensor_split(parts)
        for index, piece in enumerate(pieces):
            mine = parallel.rows(piece) if parallel else piece
            more = index < len(pieces) - 1
            with parallel.accumulating(forward, more) if parallel else nullcontext():
                logits = forward(mine[:, :-1])
                loss = F.cross_entropy(
                    logits.flatten(0, 1).float(), mine[:, 1:].flatten(), reduction="sum"
                )
                loss = loss / mine[:, 1:].numel() / parts
                balance = record.losses()
                (loss + sum(balance.values()) / parts).backward()
            total += loss.item()
            for name, value in balance.items():
                terms[name] = terms.get(name, 0.0) + value.item() / parts
    return (parallel.mean(total) if parallel else total), terms


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, gradient in found.items() if gradient is None]
    assert not missing, f"no gradient: {missing}"
    return {name: whole(gradient).clone() for name, gradient in found.items()}


def compare(want: dict[str, Tensor], got: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    assert want.keys() == got.keys(), set(want) ^ set(got)
    for name, value in want.items():
        assert value.shape == got[name].shape, name
        if value.numel():
            worst = (value - got[name]).abs().max().item()
            assert worst <= tolerance * max(1.0, value.abs().max().item()), f"{name}: {worst}"


def equal_to_one_process(
    ranks: Ranks, layout: Layout, overrides: list[str], *, parts: int = 1, steps: int = 2
) -> None:
    """Losses, terms, gradients, norm and weights of some steps equal those of one process."""
    reference = decoder(overrides)
    assert layout.world == ranks.world
    names = {name: tuple(t.shape) for name, t in reference.state_dict().items()}
    model = copy.deepcopy(reference)
    parallel = ManyProcesses(ranks=ranks, layout=layout, device=CPU)
    forward = parallel.apply(model)
    groups = parallel.parameter_groups([{"params": list(model.parameters())}])
    optimizer = torch.optim.AdamW(groups, lr=1e-2, fused=True)
    reference_optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-2, fused=True)
    for step in range(steps):
        batch = tokens(seed=step)
        want = train_once(reference, reference, batch, parts=parts)
        got = train_once(model, forward, batch, parts=parts, parallel=parallel)
        assert abs(want[0] - got[0]) < 1e-6 * want[0], (step, want[0], got[0])
        assert want[1].keys() == got[1].keys()
        for name, value in want[1].items():
            assert abs(value - got[1][name]) <= 1e-6 * max(1.0, abs(value)), (name, value, got[1])
        # AdamW's first step is a sign: afterwards rounding of tiny gradients is visible
        tolerance = 1e-6 if step == 0 else 1e-4
        compare(gradients(reference), gradients(model), tolerance)
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        clipped = parallel.clip_grad_norm(model.parameters(), 0.5)
        assert norm > 0.5
        assert abs(clipped - norm.item()) <= tolerance * norm.item(), (clipped, norm)
        compare(gradients(reference), gradients(model), tolerance)
        for each in (reference_optimizer, optimizer):
            each.step()
            each.zero_grad()
    full = parallel.full_state_dict(model)
    if ranks.rank == 0:
        assert {name: tuple(t.shape) for name, t in full.items()} == names
        compare(dict(reference.state_dict()), full, 1e-4)
    else:
        assert full == {}


@case
def ddp_dense(ranks: Ranks) -> None:
    equal_to_one_process(ranks, LAYOUTS["ddp"], DENSE)


@case
def fsdp_dense(ranks: Ranks) -> None:
    equal_to_one_process(ranks, LAYOUTS["fsdp"], DENSE)


@case
def ddp_mixture(ranks: Ranks) -> None:
    equal_to_one_process(ranks, LAYOUTS["ddp"], MOE)


@case
def fsdp_mixture(ranks: Ranks) -> None:
    equal_to_one_process(ranks, LAYOUTS["fsdp"], MOE)


@case
def ep_mixture(ranks: Ranks) -> None:
    equal_to_one_process(ranks, LAYOUTS["ep"], MOE)


@case
def ep_fsdp_mixture(ranks: Ranks) -> None:
    equal_to_one_process(ranks, LAYOUTS["ep_fsdp"], MOE)


@case
def accumulated_micro_batches(ranks: Ranks) -> None:
    equal_to_one_process(ranks, LAYOUTS["ddp"], DENSE, parts=2, steps=1)
    equal_to_one_process(ranks, LAYOUTS["ep_fsdp"], MOE, parts=2, steps=1)
    equal_to_one_process(ranks, LAYOUTS["ep"], MOE, parts=2, steps=1)


def mixture(**options: Any) -> nn.Module:
    return Model(moe(**options))


def moe(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    expert = {"name": "swiglu", "intermediate_size": 16}
    usual = {"name": "moe", "num_experts": 4, "num_experts_per_tok": 2, "expert": expert}
    return build_ffn({**usual, **options}, hidden_size=8)


class Layer(nn.Module):
    """Stands around a MoE as a block does."""

    def __init__(self, ffn: nn.Module) -> None:
        super().__init__()
        self.ffn = ffn

    def forward(self, x: Tensor) -> Tensor:
        return 1.0 * self.ffn(x)


class Model(nn.Module):
    """A MoE as the only layer of a model."""

    def __init__(self, moe: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(moe)])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x)


def equal_to_own_rows(
    ranks: Ranks, reference: nn.Module, x: Tensor, *, exact: bool = True, autocast: bool = False
) -> nn.Module:
    """Each process's rows give what they give without exchange; gradients are the mean of both."""
    model = copy.deepcopy(reference)
    parallel = ManyProcesses(ranks=ranks, layout=LAYOUTS["ep"], device=CPU)
    parallel.apply(model)
    results = []
    for each in (reference, model):
        leaf = x.clone().requires_grad_()
        torch.manual_seed(ranks.rank)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            y = each(leaf)
        (y * torch.linspace(0.5, 1.5, y.numel()).view_as(y)).sum().backward()
        results.append((y.detach(), leaf.grad))
    (y, dx), (got_y, got_dx) = results
    want = {n: parallel.sum(p.grad) / 2 for n, p in reference.named_parameters() if _trains(p)}
    compare({"y": y, "dx": dx}, {"y": got_y, "dx": got_dx}, 0.0 if exact else 1e-6)
    compare(want, gradients(model), 1e-2 if autocast else 1e-6)
    return model


def _trains(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None


def rows_of(rank: int, count: int = 10) -> Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(rank))


@case
def ep_every_backend(ranks: Ranks) -> None:
    for backend in ("loop", "grouped", "padded", "gather", "auto"):
        equal_to_own_rows(ranks, mixture(backend=backend), rows_of(ranks.rank), exact=False)


@case
def ep_every_router(ranks: Ranks) -> None:
    for spec in mlpkit.list_routers():
        options = {"experts": [0, 3]} if spec.name == "forced" else {}
        equal_to_own_rows(
            ranks, mixture(router={"name": spec.name, **options}), rows_of(ranks.rank)
        )


@case
def ep_is_exact(ranks: Ranks) -> None:
    """The experts see the same rows in the same order as in one process: no bit differs."""
    reference = mixture(backend="loop")
    model, both = copy.deepcopy(reference), torch.cat([rows_of(0), rows_of(1)])
    parallel = ManyProcesses(ranks=ranks, layout=LAYOUTS["ep"], device=CPU)
    parallel.apply(model)
    weight = torch.linspace(0.5, 1.5, both.numel()).view_as(both)
    (reference(both) * weight).sum().backward()
    (model(parallel.rows(both)) * parallel.rows(weight)).sum().backward()
    for name, parameter in reference.layers[0].ffn.experts.named_parameters():
        mine = dict(model.layers[0].ffn.experts.named_parameters())[name].grad
        assert isinstance(mine, DTensor)
        assert torch.equal(mine.full_tensor() * 2, parameter.grad), name


@case
def ep_with_idle_processes(ranks: Ranks) -> None:
    """No tokens here; all tokens on one expert; on the last one; none anywhere."""
    mine = rows_of(ranks.rank)
    for backend in ("loop", "grouped", "padded"):
        build = {"backend": backend}
        equal_to_own_rows(ranks, mixture(**build), mine[: 10 * ranks.rank], exact=False)
        equal_to_own_rows(ranks, mixture(**build), mine[:0])
        for expert in (0, 3):
            one = {"router": {"name": "forced", "experts": [expert]}, "num_experts_per_tok": 1}
            equal_to_own_rows(ranks, mixture(**build, **one), mine, exact=False)


@case
def ep_of_other_mixtures(ranks: Ranks) -> None:
    narrow = {"name": "swiglu", "intermediate_size": 8, "num_experts": 2}
    wide = {"name": "naive", "intermediate_size": 24, "bias": True, "num_experts": 2}
    mixed = [narrow, wide, *({"name": n, "num_experts": 1} for n in ("zero", "copy"))]
    biased = {"name": "naive", "intermediate_size": 16, "bias": True}
    for options in (
        {"num_experts": 6, "expert": None, "experts": mixed},
        {"shared": {"name": "swiglu", "intermediate_size": 8}, "shared_combine": "gated"},
        {"expert": biased, "latent_size": 4, "output_bias": True},
        {"capacity_factor": 0.75, "drop_policy": "probs"},
        {"router": {"name": "topk", "score": "sigmoid", "selection_bias": True, "bias": True}},
        {"router": {"name": "topk", "apply_on": "input"}},
        {"expert": "constant"},
    ):
        equal_to_own_rows(ranks, mixture(**options), rows_of(ranks.rank), exact=False)
    equal_to_own_rows(ranks, mixture(), rows_of(ranks.rank), exact=False, autocast=True)


class Odd(nn.Module):
    """An FFN that cannot be grouped: tied weights, a frozen matrix, a buffer of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner = nn.Linear(8, 8, bias=False)
        self.again = nn.Linear(8, 8, bias=False)
        self.again.weight = self.inner.weight
        self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
        self.register_buffer("shift", torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.again(torch.relu(self.inner(x) + self.shift)) * self.frozen


@case
def ep_of_ties_frozen_tensors_and_buffers(ranks: Ranks) -> None:
    reference = mixture()
    reference.layers[0].ffn.experts = Experts([Odd(seed) for seed in range(4)])
    assert reference.layers[0].ffn.experts.backend_name == "loop"
    model = equal_to_own_rows(ranks, reference, rows_of(ranks.rank), exact=False)
    inner = model.layers[0].ffn.experts.inner.weight
    assert inner is model.layers[0].ffn.experts.again.weight
    assert inner.to_local().shape == (2, 8, 8)
    assert model.layers[0].ffn.experts.shift.to_local().shape == (2, 8)
    assert not model.layers[0].ffn.experts.frozen.requires_grad
    full = ManyProcesses(ranks=ranks, layout=LAYOUTS["ep"], device=CPU).full_state_dict(model)
    if ranks.rank == 0:
        compare(dict(reference.state_dict()), full, 0.0)


class Dispersion:
    """A stranger's term, no mean of anything: it knows nothing of processes."""

    coefficient, over_layers = 0.1, "mean"

    def __call__(self, routing: Routing, mask: Tensor | None = None) -> Tensor:
        real = torch.ones_like(routing.logits[:, 0]) if mask is None else mask.float()
        centre = (routing.scores * real[:, None]).sum(0) / real.sum()
        spread = ((routing.scores - centre) * real[:, None]).square().sum()
        return spread.sqrt() + (routing.weight * real[routing.token]).square().sum().sqrt()


@case
def balance_terms_are_over_the_whole_batch(ranks: Ranks) -> None:
    terms: list[dict[str, Any]] = [
        *({"load": {"coefficient": 1.0, "over_tokens": o}} for o in ("batch", "sequence", "token")),
        {"load_hf": 1.0},
        {"z": 1.0, "cv": 1.0, "entropy": 0.5},
        {"l1": 1.0},
    ]
    x = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(1))
    padding = torch.arange(5) < torch.tensor([[5], [2], [4], [0]])  # the processes differ
    for mask in (None, padding):
        for balance in [*terms, {"dispersion": Dispersion()}]:
            own = "dispersion" in balance
            router = {"name": "topk", "score": "sigmoid", "norm_topk_prob": False}
            reference = mixture(balance={} if own else balance, router=router)
            if own:
                reference.layers[0].ffn.balance = balance
            _equal_balance(ranks, reference, x, mask)


def _equal_balance(ranks: Ranks, reference: nn.Module, x: Tensor, mask: Tensor | None) -> None:
    for layout in ("ddp", "ep_fsdp"):
        model, single = copy.deepcopy(reference), copy.deepcopy(reference)
        parallel = ManyProcesses(ranks=ranks, layout=LAYOUTS[layout], device=CPU)
        forward = parallel.apply(model)
        values = []
        for each, call, rows in ((single, single, x), (model, forward, parallel.rows(x))):
            with record_routing(each) as record:
                y = call(rows)
                own = mask if mask is None or each is single else parallel.rows(mask)
                loss = sum(record.losses(own).values())
                (loss + 0 * y.sum()).backward()
            values.append(loss.item())
        assert abs(values[0] - values[1]) <= 1e-6 * max(1.0, abs(values[0])), values
        compare(gradients(single), gradients(model))
        assert gradients(single)["layers.0.ffn.router.weight"].abs().max() > 1e-4


@case
def bias_and_load_are_over_the_whole_batch(ranks: Ranks) -> None:
    router = {"name": "topk", "score": "sigmoid", "selection_bias": True}
    reference = mixture(router=router, balance={"selection_bias": 0.1})
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(2))
    for layout in ("ddp", "fsdp", "ep"):
        model, single = copy.deepcopy(reference), copy.deepcopy(reference)
        parallel = ManyProcesses(ranks=ranks, layout=LAYOUTS[layout], device=CPU)
        forward = parallel.apply(model)
        loads = []
        for each, call, rows in ((single, single, x), (model, forward, parallel.rows(x))):
            with record_routing(each) as record:
                call(rows)
                mlpkit.update_router_bias(each, record)
                loads.append(record.load(training=True))
        assert single.layers[0].ffn.router.e_score_correction_bias.abs().max() > 0
        assert torch.equal(
            single.layers[0].ffn.router.e_score_correction_bias,
            model.layers[0].ffn.router.e_score_correction_bias,
        )
        both = parallel.reduce_load(loads[1])
        assert both.keys() == loads[0].keys()
        assert all(torch.equal(both[name], load) for name, load in loads[0].items())
        assert any(not torch.equal(loads[1][name], load) for name, load in loads[0].items())


@case
def evaluation_and_generation_before_training(ranks: Ranks) -> None:
    for layout, overrides in (("ddp", DENSE), ("fsdp", MOE), ("ep", MOE), ("ep_fsdp", MOE)):
        reference = decoder(overrides)
        model = copy.deepcopy(reference)
        parallel = ManyProcesses(ranks=ranks, layout=LAYOUTS[layout], device=CPU)
        forward = parallel.apply(model)
        batch = tokens(rows=3)  # one process has two rows, the other one
        with torch.inference_mode():
            want = reference(batch)
            assert torch.allclose(parallel.rows(want), model(parallel.rows(batch)), atol=1e-5)
            last = parallel.rows(batch[:1])  # and here one has none
            assert torch.allclose(parallel.rows(want[:1]), model(last), atol=1e-5)
        prompt = batch[:1, :3]
        made = [
            generate(m, prompt, max_new_tokens=4, generator=torch.Generator().manual_seed(3))
            for m in (reference, model)
        ]
        assert torch.equal(*made)
        want_loss = train_once(reference, reference, tokens())
        got = train_once(model, forward, tokens(), parallel=parallel)
        assert abs(want_loss[0] - got[0]) < 1e-6 * got[0]
        compare(gradients(reference), gradients(model))


@case
def numbers_words_and_rows(ranks: Ranks) -> None:
    parallel = ManyProcesses(ranks=ranks, layout=LAYOUTS["ddp"], device=CPU)
    rank = float(ranks.rank)
    assert parallel.mean(rank) == 0.5
    assert parallel.total(1 + rank) == 3.0
    assert parallel.max(rank) == 1.0
    assert parallel.max(-rank) == 0.0
    assert parallel.mean(float("nan") if ranks.rank else 1.0) != 0.5  # a NaN reaches everyone
    counts = torch.tensor([1, ranks.rank])
    assert parallel.sum(counts).tolist() == [2, 1]
    assert counts.tolist() == [1, ranks.rank]  # as it was
    word = parallel.from_main({"run_dir": "häuser/1"} if parallel.is_main else None)
    assert word == {"run_dir": "häuser/1"}
    assert parallel.on_main(lambda: ranks.rank) == (0 if parallel.is_main else None)

    def fail() -> None:
        raise ParallelError("said once")

    kind, words = (ParallelError, "said once") if parallel.is_main else (FollowingError, "with 2")
    with pytest.raises(kind, match=words) as caught:
        parallel.on_main(fail)
    assert caught.value.exit_code == 2
    batch = torch.arange(5)
    assert parallel.rows(batch).tolist() == [[0, 1, 2], [3, 4]][ranks.rank]
    assert torch.equal(gather_rows(parallel.rows(batch), parallel.group), batch)
    parallel.wait()


@case
def a_gathered_routing_is_that_of_all_tokens(ranks: Ranks) -> None:
    router = build_router("topk", hidden_size=8, num_experts=4, num_experts_per_tok=2)
    with torch.no_grad():
        router.weight.copy_(torch.linspace(-1, 1, 32).view(4, 8))
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(5))
    group = torch.distributed.group.WORLD
    mine = x[:2] if ranks.rank == 0 else x[2:]
    together = gather_routing(router(mine)._replace(leading=(len(mine) // 2, 2)), group)
    for name, value in router(x)._replace(leading=(3, 2))._asdict().items():
        got = getattr(together, name)
        same = torch.equal(value, got) if isinstance(value, Tensor) else value == got
        assert same, (name, value, got)


def refused(parallel: ManyProcesses, model: nn.Module, words: str) -> None:
    with pytest.raises(ParallelError, match=re.escape(words)):
        parallel.apply(model)


@case
def what_does_not_fit_is_refused_by_all(ranks: Ranks) -> None:
    ep = ManyProcesses(ranks=ranks, layout=LAYOUTS["ep"], device=CPU)
    refused(ep, decoder(DENSE), "no layer has experts")
    refused(ep, mixture(num_experts=3), "layers.0.ffn.experts has 3 experts")
    uneven = [{"name": "swiglu", "num_experts": 1}, {"name": "naive", "num_experts": 3}]
    refused(ep, mixture(expert=None, experts=uneven), "layers.0.ffn.experts.0 has 1 experts")
    refused(ep, nn.Sequential(moe()), "names 'layers.*', and no module of Sequential")
    other = mixture()
    with torch.no_grad():
        next(other.parameters())[0, 0] += ranks.rank
    refused(ep, other, "different models")
    fsdp = ManyProcesses(ranks=ranks, layout=LAYOUTS["fsdp"], device=CPU)
    refused(fsdp, nn.Sequential(nn.Linear(2, 2)), "its children are: 0")


def stepped(ranks: Ranks, layout: str, seed: int | None) -> tuple[nn.Module, Any]:
    """A model and its optimizer in a layout, after one step on a batch; None: before any."""
    model = decoder(MOE)
    parallel = ManyProcesses(ranks=ranks, layout=LAYOUTS[layout], device=CPU)
    forward = parallel.apply(model)
    groups = parallel.parameter_groups([{"params": list(model.parameters())}])
    optimizer = torch.optim.AdamW(groups, lr=1e-2, fused=True)
    if seed is not None:
        train_once(model, forward, tokens(seed=seed), parallel=parallel)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def saved(model: nn.Module, optimizer: Any) -> dict[str, Tensor]:
    """Everything a checkpoint keeps, gathered, by name."""
    options = StateDictOptions(full_state_dict=True, flatten_optimizer_state_dict=True)
    weights, state = get_state_dict(model, optimizer, options=options)
    return {n: v for n, v in {**weights, **state}.items() if isinstance(v, Tensor)}


@case
def checkpoints_move_between_layouts(ranks: Ranks) -> None:
    """What DCP saves with the experts spread out is read in any layout, and by one process."""
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    helper = ManyProcesses(ranks=ranks, layout=LAYOUTS["ddp"], device=CPU)
    folder = helper.from_main(tempfile.mkdtemp() if helper.is_main else None)
    source = stepped(ranks, "ep", seed=0)
    weights, state = get_state_dict(*source, options=flat)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    want = saved(*source)
    assert any("exp_avg_sq" in name and "experts" in name for name in want)
    for layout in ("ep", "fsdp", "ep_fsdp", "ddp"):
        model, optimizer = stepped(ranks, layout, seed=1)
        weights, state = get_state_dict(model, optimizer, options=flat)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=weights,
            optim_state_dict=state,
            options=flat,
        )
        compare(want, saved(model, optimizer), 0.0)
    plain = decoder(MOE)
    alone = {"model": plain.state_dict()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it loads in a single process
        dcp.load(alone, checkpoint_id=folder, no_dist=True)
    if helper.is_main:
        compare({n: want[n] for n in alone["model"]}, alone["model"], 0.0)
    helper.wait()
    if helper.is_main:
        shutil.rmtree(folder)


def recomputed(layer: nn.Module) -> None:
    inner = layer.forward
    layer.forward = lambda *args: checkpoint(inner, *args, use_reentrant=False)


def equal_after(ranks: Ranks, before: Callable[[nn.Module], None], after: Any) -> None:
    for layout in ("ep", "ep_fsdp"):
        parallel = ManyProcesses(ranks=ranks, layout=LAYOUTS[layout], device=CPU)
        reference, model = decoder(MOE), decoder(MOE)
        before(model)
        forward = parallel.apply(model)
        after(model)
        want = train_once(reference, reference, tokens())
        got = train_once(model, forward, tokens(), parallel=parallel)
        assert abs(want[0] - got[0]) < 1e-6 * got[0]
        compare(gradients(reference), gradients(model))


@case
def checkpointing_recomputes_the_exchange(ranks: Ranks) -> None:
    equal_after(ranks, lambda m: [recomputed(layer) for layer in m.layers], lambda m: None)


@case
def slow_a_compiler_leaves_the_exchange_outside(ranks: Ranks) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        equal_after(ranks, lambda m: None, lambda m: m.compile(backend="eager"))


@case
def four_processes_hold_parts_of_experts(ranks: Ranks) -> None:
    """Experts spread over two, their copies averaged or sharded again; dense parts over four."""
    for sizes in ((2, 2, 2), (1, 4, 2), (4, 1, 2), (2, 2, 4), (2, 2, 1)):
        data, shard, expert = sizes
        layout = Layout(data=data, shard=shard, expert=expert)
        equal_to_one_process(ranks, layout, MOE, steps=1)

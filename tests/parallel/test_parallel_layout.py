"""Layouts and their checks, and which process this is: pure functions, no process group."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mlpkit
from mlpkit.cli import tell
from mlpkit.configs.run import ParallelConfig
from mlpkit.parallel import (
    FollowingError,
    Layout,
    OneProcess,
    ParallelError,
    Ranks,
    check_batch,
    check_experts,
    layout_of,
    ranks,
    start,
)
from mlpkit.parallel.gradients import grad_norm
from mlpkit.parallel.ranks import first_host, from_slurm


def config(**options: int) -> ParallelConfig:
    return ParallelConfig(**options)


@pytest.mark.parametrize(
    ("options", "processes", "sizes"),
    [  # data, shard, expert_data, expert_shard by hand
        ({}, 1, (1, 1, 1, 1)),
        ({}, 2, (2, 1, 2, 1)),
        ({"shard": 2}, 2, (1, 2, 1, 2)),
        ({"expert": 2}, 2, (2, 1, 1, 1)),
        ({"shard": 2, "expert": 2}, 2, (1, 2, 1, 1)),
        ({"shard": 4, "expert": 2}, 8, (2, 4, 2, 2)),
        ({"shard": 2, "expert": 4}, 8, (4, 2, 2, 1)),
        ({"data": 3, "shard": 2}, 6, (3, 2, 3, 2)),
    ],
)
def test_a_layout_fills_the_processes(
    options: dict[str, int], processes: int, sizes: tuple[int, ...]
) -> None:
    layout = layout_of(config(**options), processes)
    assert (layout.data, layout.shard, layout.expert_data, layout.expert_shard) == sizes
    assert layout.world == processes
    assert layout.expert_data * layout.expert_shard * layout.expert == processes


@pytest.mark.parametrize(
    ("options", "processes", "words"),
    [
        ({"shard": 2}, 1, "is 2 and this is one process; start torchrun --nproc-per-node 2"),
        ({"data": 2, "shard": 2}, 2, "is 4 and there are 2 processes"),
        ({"data": 2}, 1, "parallel.data=2"),
        ({"shard": 2}, 3, "is 2 and there are 3 processes"),
        ({"data": 1}, 2, "is 1 and there are 2 processes"),
        ({"expert": 2}, 1, "parallel.expert=2 with .* the same 1 process;"),
        ({"expert": 3}, 4, "parallel.expert=3 with .* choose a divisor of 4"),
        ({"shard": 2, "expert": 3}, 6, "that divides shard, or that shard divides"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(
    options: dict[str, int], processes: int, words: str
) -> None:
    with pytest.raises(ParallelError, match=words) as caught:
        layout_of(config(**options), processes)
    assert caught.value.exit_code == 2


def test_a_layout_in_words() -> None:
    assert str(Layout(data=1, shard=2, expert=1)) == "2: data 1 x shard 2"
    assert str(Layout(data=2, shard=2, expert=4)) == "4: data 2 x shard 2, experts over 4"


def test_what_the_main_process_says_the_others_do_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    assert tell(ParallelError("no")) == 2
    monkeypatch.setenv("RANK", "3")
    assert tell(FollowingError(75)) == 75
    assert tell(ParallelError("no")) == 2
    assert capsys.readouterr().err == "mlpkit: no\nmlpkit [rank 3]: no\n"


def test_a_batch_that_does_not_divide_is_refused() -> None:
    four = Layout(data=2, shard=2, expert=1)
    check_batch(four, batch_size=8, gradient_accumulation_steps=2)
    check_batch(Layout(data=1, shard=1, expert=1), batch_size=7, gradient_accumulation_steps=2)
    with pytest.raises(ParallelError, match=r"batch_size=6 over 4 processes .* a multiple of 4"):
        check_batch(four, batch_size=6)
    with pytest.raises(ParallelError, match=r"batch_size=12 .* 2 micro-batches .* multiple of 8"):
        check_batch(four, batch_size=12, gradient_accumulation_steps=2)


def test_experts_that_do_not_divide_are_refused() -> None:
    layout = Layout(data=2, shard=1, expert=2)
    check_experts(layout, {"layers.0.ffn.experts": 4})
    check_experts(Layout(data=2, shard=1, expert=1), {"layers.0.ffn.experts": 3})
    check_experts(Layout(data=2, shard=1, expert=1), {})
    with pytest.raises(ParallelError, match=r"layers.1.ffn.experts has 3 experts"):
        check_experts(layout, {"layers.0.ffn.experts": 4, "layers.1.ffn.experts": 3})
    with pytest.raises(ParallelError, match=r"no layer has experts; choose ffn=moe"):
        check_experts(layout, {})


def test_the_configuration_has_the_keys_and_their_limits() -> None:
    assert mlpkit.compose([]).parallel == {"data": None, "shard": 1, "expert": 1, "timeout": 300.0}
    for wrong in ("parallel.shard=0", "parallel.timeout=0", "parallel.data=0", "parallel.x=1"):
        with pytest.raises(ValueError, match=wrong.partition("=")[0]):
            mlpkit.compose([wrong])


def test_ranks_are_those_of_torchrun() -> None:
    assert ranks({}) == Ranks(rank=0, local_rank=0, world=1)
    found = ranks({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"})
    assert found == Ranks(rank=5, local_rank=1, world=8)
    for wrong, word in (
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x'"),
        ({"RANK": "0"}, "WORLD_SIZE is None"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 with WORLD_SIZE=2"),
    ):
        with pytest.raises(ParallelError, match=word):
            ranks(wrong)


def test_a_step_of_slurm_is_read_as_torchruns() -> None:
    step = {
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_JOB_ID": "1234567",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "gpu[07-08]",
    }
    environment = dict(step)
    assert ranks(environment) == Ranks(rank=3, local_rank=1, world=4)
    assert environment["MASTER_ADDR"] == "gpu07"
    assert 20_000 <= int(environment["MASTER_PORT"]) < 30_000
    assert from_slurm({**step, "SLURM_STEP_ID": "1"})["MASTER_PORT"] != environment["MASTER_PORT"]
    assert from_slurm({**step, "MASTER_ADDR": "mine"}).get("MASTER_ADDR") is None
    # a batch script has a rank, and is one process all the same
    assert ranks({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) == Ranks()
    with pytest.raises(ParallelError, match="SLURM_LOCALID is None"):
        ranks({k: v for k, v in step.items() if k != "SLURM_LOCALID"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("gpu[07-09,12],login1", "gpu07"),
        ("a1,a2", "a1"),
        ("n[3]", "n3"),
        ("rack[1-2]-gpu", "rack1-gpu"),
        ("", ""),
    ],
)
def test_the_first_machine_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_one_process_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    with start(config(), torch.device("cpu")) as parallel:
        assert isinstance(parallel, OneProcess)
        assert parallel.is_main
        model, batch = nn.Linear(2, 2), torch.ones(3, 2)
        before = dict(vars(model))
        forward = parallel.apply(model)
        assert forward is model
        assert vars(model) == before
        assert parallel.rows(batch) is batch
        assert (parallel.mean(2.5), parallel.total(2.5), parallel.max(2.5)) == (2.5, 2.5, 2.5)
        loads = {"layer": torch.tensor([1, 2])}
        assert parallel.reduce_load(loads)["layer"] is loads["layer"]
        groups = [{"params": list(model.parameters())}]
        assert parallel.parameter_groups(groups) is groups
        with parallel.accumulating(forward, True):
            forward(batch).sum().backward()
        want = float(torch.cat([p.grad.flatten() for p in model.parameters()]).double().norm())
        assert grad_norm([p.grad for p in model.parameters()]) == pytest.approx(want, rel=1e-6)
        assert parallel.clip_grad_norm(model.parameters(), 1.0) == pytest.approx(want, rel=1e-6)
        assert grad_norm([p.grad for p in model.parameters()]) == pytest.approx(1.0, rel=1e-5)
        full = parallel.full_state_dict(model)
        assert full.keys() == model.state_dict().keys()
        assert parallel.from_main("word") == "word"
        assert parallel.on_main(lambda: batch) is batch
        assert parallel.own_group() is None
        parallel.wait()
    assert not torch.distributed.is_initialized()


def test_a_process_that_was_not_started_in_company_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ParallelError, match="torchrun --nproc-per-node 2"):
        start(config(shard=2), torch.device("cpu"))

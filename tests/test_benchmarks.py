"""The benchmarks run at tiny sizes, and what they conclude from measurements is right."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib import import_module
from xml.etree import ElementTree

import pytest
import torch

from mlpkit.cli import main
from mlpkit.cli.bench import PARTS, load

NAME = load().__name__
backends, cases, clock, growth, layers, memory, mixtures, peers, picture, printing, running = (
    import_module(f"{NAME}.{name}")
    for name in (
        "backends",
        "cases",
        "clock",
        "growth",
        "layers",
        "memory",
        "mixtures",
        "peers",
        "picture",
        "printing",
        "running",
    )
)
QUICK = cases.Effort(quick=True, rounds=1, budget=0.0)
TINY = mixtures.TINY[0]


@pytest.mark.parametrize("part", [part for part in PARTS if part != "startup"])
def test_every_part_measures_every_contender_at_tiny_sizes(part, tmp_path):
    out, figure, said = tmp_path / "cases.json", tmp_path / "ratios.svg", []
    found = running.run([part], QUICK, json_path=out, figure=figure, say=said.append)
    record = json.loads(out.read_text())
    assert {case["part"] for case in record["cases"]} == {part}
    assert record["machine"]["threads"] == torch.get_num_threads()
    for case in found:
        assert all(0 < value < math.inf for value in case.values.values()), case.title
        assert not case.missing, case.title
        assert case.title in said
    ElementTree.parse(figure)


@pytest.mark.slow
def test_starting_composing_and_a_sweep_are_timed():
    startup = import_module(f"{NAME}.startup")
    found = [*startup.run(QUICK), startup.sweep_overhead()]
    assert [case.title for case in found][-1] == "a job of a sweep beside its training"
    for case in found:
        assert 0 <= case.values["mlpkit"] < 60
        assert case.facts["target_seconds"] <= 1.0


def test_the_verb_writes_json_and_refuses_unknown_parts(tmp_path, capsys):
    out = tmp_path / "ffn.json"
    assert main(["bench", "ffn", "--quick", "--json", str(out)]) == 0
    assert len(json.loads(out.read_text())["cases"]) == 2 * len(layers.dtypes())
    for wrong in (["bench", "fnn"], ["bench", "ffn", "--figure", "ratios.png"]):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2
    assert "unknown part 'fnn'; choose from ffn, moe" in capsys.readouterr().err


def test_the_parts_of_the_verb_are_those_of_the_package():
    assert tuple(running.PARTS) == PARTS


def test_a_disturbed_measurement_is_discarded():
    waits = iter([0.0, 0.0, 0.0, 5.0, 5.0, 5.0])  # before and after each; the second one waited
    pauses = iter([*[0.004] * 3, 0.004, 0.001, 0.003])

    def call():
        end = clock.time.perf_counter() + next(pauses)
        while clock.time.perf_counter() < end:
            pass

    timing = clock.fastest({"a": call}, rounds=2, budget=9.0, waiting=lambda: next(waits))["a"]
    assert (timing.kept, timing.discarded) == (2, 1)
    assert timing.best >= 0.003  # the one of 1 ms was taken while others ran


def test_where_all_were_disturbed_the_fastest_is_told_as_such():
    timing = clock.Timing()
    timing.add(2.0, disturbed=True)
    timing.add(1.0, disturbed=True)
    assert (timing.best, timing.kept, timing.discarded) == (1.0, 0, 2)
    case = cases.from_timings({"mlpkit": timing}, part="ffn", title="t")
    (line,) = printing.verdicts(case)
    assert line == "  2 of 2 measurements discarded: other processes held the processor"


def test_what_a_call_takes_as_a_rule_is_told_beside_the_fastest():
    timings = {"mlpkit": clock.Timing(), "peer": clock.Timing()}
    for ours, peer in ((1.0, 2.0), (3.0, 4.0), (3.5, 9.0)):
        timings["mlpkit"].add(ours, disturbed=False)
        timings["peer"].add(peer, disturbed=peer > 8)
    case = cases.from_timings(timings, part="moe", title="t", ours="mlpkit")
    assert (case.ratio, case.median_ratio) == (0.5, 0.75)
    assert printing.verdicts(case)[0] == "  ours over the best peer: 0.50, by medians 0.75"


@pytest.mark.skipif(not clock.can_tell(), reason="the system does not tell")
def test_time_spent_waiting_for_a_processor_is_seen():
    # Two busy threads of this process on one processor: each waits while the other runs.
    code = (
        "import os, sys, time, threading, importlib\n"
        "from mlpkit.cli.bench import load\n"
        "clock = importlib.import_module(load().__name__ + '.clock')\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "if os.fork() == 0:\n"
        "    end = time.monotonic() + 0.6\n"
        "    while time.monotonic() < end: pass\n"
        "    os._exit(0)\n"
        "before, end = clock.waited(), time.monotonic() + 0.4\n"
        "while time.monotonic() < end: pass\n"
        "print(clock.waited() - before)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(ended.stdout) > 0.05


@pytest.mark.parametrize(
    ("unit", "ratio"), [("s", 4.0 / 2.0), ("tokens/s", 4.0 / 8.0)], ids=["times", "rates"]
)
def test_ours_is_compared_with_the_best_peer(unit, ratio):
    values = {"mlpkit auto": 4.0, "mlpkit loop": 1.0, "peer": 8.0, "other": 2.0, "floor": 0.5}
    case = cases.Case(
        part="moe", title="t", values=values, unit=unit, ours="mlpkit auto", floor="floor"
    )
    assert case.ratio == ratio
    assert case.over_floor == 8.0
    assert set(case.peers) == {"peer", "other"}


def test_the_share_of_the_peak_is_printed():
    case = cases.Case(
        part="ffn", title="t", values={"mlpkit": 0.5}, facts={"dtype": "float32"}, flops=1e9
    )
    printed = printing.lines(case, {"float32": {"flops": 8e9, "bytes": 1.0}})
    assert printed[2].split() == ["mlpkit", "500.000", "ms", "25%", "of", "peak"]


def test_a_swiglu_has_as_many_products_as_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    for backward in (False, True):
        with FlopCounterMode(display=False) as counter:
            layers.step(peers.SwiGLU(16, 24), layers.windows(16, 7, torch.float32), backward)()
        assert counter.get_total_flops() == layers.products(16, 24, 7, backward)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_contenders_compute_the_same(dtype):
    torch.manual_seed(0)
    found, missing = mixtures.contenders(TINY, dtype, 8, True)
    assert not missing
    assert len(found) == len(mixtures.BACKENDS) + len(peers.IMPLEMENTATIONS) + 2


def test_a_peer_that_computes_something_else_is_no_peer():
    torch.manual_seed(0)
    found, _ = mixtures.contenders(TINY, torch.float32, 8, True)
    with torch.no_grad():
        found["masked loop (MiniMind)"].gate.weight.neg_()
    dropped = mixtures.dropped_that_fail(found, TINY, torch.float32)
    assert set(dropped) == {"masked loop (MiniMind)"}
    assert "away from mlpkit's with the same weights" in dropped["masked loop (MiniMind)"]


def test_a_missing_peer_is_told_and_the_others_run(monkeypatch):
    def absent(*_):
        raise ModuleNotFoundError("No module named 'transformers'")

    monkeypatch.setattr(mixtures, "transformers_moe", absent)
    case = mixtures.measured(TINY, torch.float32, 1, False, QUICK)
    assert {name.split()[0] for name in case.missing} == {"transformers"}
    assert any("No module named 'transformers'" in line for line in printing.lines(case, {}))
    assert case.ratio is not None  # the masked loop is still a peer


@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's count")
def test_peak_memory_is_what_is_alive_at_once():
    def call():
        first = torch.empty(1000, dtype=torch.float32)
        second = torch.empty(500, dtype=torch.float32)
        del first
        third = torch.empty(300, dtype=torch.float32)
        return second, third

    assert memory.peak(torch.nn.Identity(), call) == 6000


@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's count")
def test_peak_memory_is_the_same_whoever_was_measured_before():
    found = []
    for width in (240, 2400, 240, 240):
        layer = peers.SwiGLU(160, width)
        call = layers.step(layer, layers.windows(160, 70, torch.float32), True)
        found.append(memory.peak(layer, call))
    assert found[0] == found[2] == found[3] < found[1]


def test_the_exponent_of_a_power_law_is_found():
    sizes = [8, 16, 64]
    assert growth.exponent(sizes, [0.1 * size**1.5 for size in sizes]) == pytest.approx(1.5)


def test_prices_are_fitted_to_what_they_decide():
    # Side by side costs 1e7 and its padding; a turn costs 1e6: worth it from 20 experts on.
    seen = [
        backends.Seen(
            cost=1000,
            spare=spare,
            active=active,
            in_turn=1e6 * active,
            side_by_side=1e7 + 1000 * spare,
        )
        for active in (2, 5, 12, 20, 40, 64)
        for spare in (0, 100, 5_000, 20_000, 60_000)
    ]
    best = backends.fitted(seen)
    assert best.regret < 0.005
    assert best.turn / 1e6 == pytest.approx(1.0, rel=0.4)
    always = backends.regret(seen, math.inf, math.inf)
    slower = [max(0.0, math.log(s.in_turn / s.side_by_side)) for s in seen]
    assert always == pytest.approx(sum(slower) / len(seen))


def test_the_picture_has_a_dot_for_each_contender():
    values = {"mlpkit auto": 2.0, "peer": 3.0, "dense": 1.0}
    case = cases.Case(
        part="moe", title="E 8 & more", values=values, ours="mlpkit auto", floor="dense"
    )
    svg = ElementTree.fromstring(picture.drawn([case]).file())
    tips = [node.text for node in svg.iter() if node.tag.endswith("title")]
    assert sorted(tips) == ["dense: 0.50", "mlpkit auto: 1.00", "peer: 1.50"]

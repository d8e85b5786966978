"""Two real processes compute what one does: copies, shards, exchanged experts, and their mixes."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from launching import launch

HERE = Path(__file__).parent
CASES = [
    node.name
    for node in ast.parse((HERE / "cases.py").read_text()).body
    if isinstance(node, ast.FunctionDef)
    and any(isinstance(mark, ast.Name) and mark.id == "case" for mark in node.decorator_list)
]


FAST = [name for name in CASES if not name.startswith(("slow_", "four_"))]
ALWAYS = [  # one of each kind
    *("ddp_dense", "fsdp_dense", "ep_is_exact", "bias_and_load_are_over_the_whole_batch"),
    *("numbers_words_and_rows", "what_does_not_fit_is_refused_by_all"),
]


def run_cases(out: Path, names: list[str], *, world: int = 2) -> list[dict[str, str]]:
    """What each process wrote: case to "ok" or a traceback, and how all ended."""
    ended = launch(HERE / "pair.py", [str(out), *names], world=world, limit=200)
    files = [out / f"{rank}.json" for rank in range(world)]
    assert all(file.exists() for file in files), ended
    said = str([(process.code, process.err[-2000:]) for process in ended])
    return [{**json.loads(file.read_text()), "ended": said} for file in files]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return run_cases(tmp_path_factory.mktemp("pair"), ALWAYS)  # one import of torch for all


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    rest = [name for name in FAST if name not in ALWAYS]
    return run_cases(tmp_path_factory.mktemp("more"), rest)


def require_ok(results: list[dict[str, str]], name: str) -> None:
    for rank, found in enumerate(results):
        said = found.get(name, f"not reached; {found['ended']}")
        assert said == "ok", f"rank {rank}: {said}"


def test_the_cases_are_found() -> None:
    assert len(FAST) > 15
    assert set(ALWAYS) < set(FAST)


@pytest.mark.parametrize("name", ALWAYS)
def test_two_processes_equal_one(name: str, results: list[dict[str, str]]) -> None:
    require_ok(results, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAST if name not in ALWAYS])
def test_two_processes_equal_one_in_everything(name: str, more: list[dict[str, str]]) -> None:
    require_ok(more, name)


def test_the_pair_ends_in_order(results: list[dict[str, str]]) -> None:
    assert results[0]["ended"] == str([(0, ""), (0, "")])


@pytest.mark.slow
def test_a_compiler_leaves_the_exchange_outside(tmp_path: Path) -> None:
    name = "slow_a_compiler_leaves_the_exchange_outside"
    require_ok(run_cases(tmp_path, [name]), name)


@pytest.mark.slow
def test_four_processes_equal_one(tmp_path: Path) -> None:
    name = "four_processes_hold_parts_of_experts"
    require_ok(run_cases(tmp_path, [name], world=4), name)

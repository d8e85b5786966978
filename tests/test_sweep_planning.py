"""The dry run: counts against built models, warnings, equal models, and nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlpkit.build import build_data, build_model
from mlpkit.cli import main
from mlpkit.compose import ConfigError, compose
from mlpkit.data.batches import tokens_per_epoch
from mlpkit.sweep import checked_jobs
from mlpkit.sweep.equality import run_key
from mlpkit.sweep.planning import plan, plan_lines
from mlpkit.sweep.timing import measure, validation_tokens
from mlpkit.sweep.warnings import warnings_of
from mlpkit.training.memory import require_memory


@pytest.fixture
def line(tiny: list[str]) -> list[str]:
    return [o for o in tiny if not o.startswith("ffn.")]


def warned(*overrides: str) -> str:
    return "\n".join(warnings_of(plan(checked_jobs(overrides, sweeps=True))))


def test_counts_are_those_of_the_built_models(line: list[str]) -> None:
    jobs = checked_jobs(["ffn=naive,moe", *line], sweeps=True)
    for entry in plan(jobs):
        model = build_model(entry.job.config)
        parameters = sum(p.numel() for p in model.parameters())
        assert entry.description.parameters == parameters
        assert entry.tokens == 6 * 4 * 16
        assert entry.flops == 3 * entry.description.flops_per_token * entry.tokens
        per_epoch = tokens_per_epoch(build_data(entry.job.config), sequence_length=16)
        assert entry.epochs == pytest.approx(entry.tokens / per_epoch)


@pytest.mark.parametrize("flag", [[], ["-m"]])
def test_a_dry_run_writes_nothing(
    flag: list[str],
    line: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *flag, "ffn=naive", *line, "match=params", "dry_run=true"]) == 0
    out = capfd.readouterr().out
    # 3·16·64 = 2·16·96; the embedding has 257·16, and attention and norms are the same
    ((parameters, width),) = re.findall(r"naive\s+([\d,]+)\s+[\d,]+\s+\S+\s+(\d+)\s+\+0\.00%", out)
    assert int(parameters.replace(",", "")) == 257 * 16 + 2 * (3072 + 768 + 2 * 16) + 16
    assert width == "96"
    assert "1 job to run" in out
    assert "budget: 3,072 params of swiglu in each layer" in out
    assert list(tmp_path.iterdir()) == []


def test_jobs_that_are_the_same_model_are_named(line: list[str]) -> None:
    said = warned("ffn=gated,geglu,naive", "activation=null,gelu", "seed=0,1", *line)
    # gated with gelu (3, 4), geglu as it is (5, 6), geglu with gelu said again (7, 8)
    for jobs in ("3 and 5 and 7", "4 and 6 and 8"):
        assert f"jobs {jobs} are the same model and run" in said
    assert said.count("are the same") == 2
    assert "ffn=geglu activation=gelu seed=0" in said


def test_options_that_change_the_function_keep_runs_apart(line: list[str]) -> None:
    different = [
        [],
        ["ffn.router.norm_topk_prob=false"],
        ["ffn.router.routed_scaling_factor=2.0"],
        ["ffn.balance.load=0.02"],
        ["ffn.num_experts_per_tok=3"],
        ["ffn.expert.activation=gelu"],
        ["model.dropout=0.1"],
        ["training.learning_rate=1e-4"],
        ["seed=1"],
    ]
    keys = [run_key(compose(["ffn=moe", *line, *options])) for options in different]
    assert len(set(keys)) == len(different)
    same = [["ffn=moe"], ["ffn=moe", "keep_going=false"], ["ffn=moe", "activation=silu"]]
    assert len({run_key(compose([*options, *line])) for options in same}) == 1


def test_unequal_budgets_single_seeds_and_epochs_are_warned_of(line: list[str]) -> None:
    said = warned("ffn=naive,swiglu", *line, "training.max_steps=2000", "ffn.intermediate_size=24")
    # 257·16 + 16 + 2·(768 + 32) and 2·2·16·24, or 2·3·16·24
    assert "the jobs have 7,264 to 8,032 parameters" in said
    assert "every variant has a single seed" in said
    assert re.search(r"4\.5 epochs over the data: more than 4", said)
    assert "no multiple of 8" not in said
    fair = warned("ffn=naive,swiglu", "seed=0,1", "match=params", *line)
    assert fair == ""
    other = warned("seed=0,1", *line, "training.max_steps=6,7")
    assert "the jobs have 384 to 448 tokens" in other


def test_unmatched_and_missed_budgets_are_warned_of(line: list[str]) -> None:
    said = warned("ffn=constant,longcat_flash", "match=params", *line)
    assert "ffn=constant is not matched: ffn 'constant' has no width" in said
    assert "ffn=longcat_flash misses the budget by +" in said


def test_lint_findings_are_listed_with_their_jobs(line: list[str]) -> None:
    said = warned("ffn=naive,moe", "seed=0,1", "match=flops", *line)
    assert re.search(
        r"ffn\.expert\.intermediate_size is \d+, no multiple of 8.*\(ffn=moe seed=0;", said
    )


def test_sums_count_what_is_left_and_each_run_once(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlpkit.sweep.conducting.report", lambda *_: None)
    assert main(["train", "-m", "ffn=naive", *line]) == 0
    planned = plan(checked_jobs(["ffn=naive,swiglu,swiglu", *line], sweeps=True))
    assert [entry.timing is None for entry in planned] == [True, False, False]
    (summed,) = [text for text in plan_lines(planned) if "to run" in text]
    assert summed.startswith(f"1 job to run: {planned[1].flops:.3g} FLOPs")


def test_the_estimate_is_steps_and_validations(line: list[str]) -> None:
    config = compose(line)
    present = len(build_data(config).val)
    # validated at 0 and 3 on 200 tokens, at the end on all
    assert validation_tokens(config) == 2 * 200 + present
    timing = measure(config)
    steps = 6 + (2 * 200 + present) / (4 * 16) / 3
    assert timing.seconds == pytest.approx(timing.per_step * steps)
    assert "5 steps" in timing.how


def test_an_optimizer_has_no_dry_run(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-m", "hydra/sweeper=optuna", "dry_run=true"]) == 2
    assert "dry_run cannot list" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        # two matrices of 1e9·1e9 in each of 4 layers, at 16 bytes, are 113,687 PiB
        (["model.hidden_size=1000000000"], ("more than 113686.8 PiB", "1000000000")),
        (["training.batch_size=100000000"], ("TiB", "12,800,000,000 tokens", "100000000")),
        (["ffn.intermediate_size=2000000000"], ("TiB", "model.hidden_size")),
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_allocated(
    overrides: list[str], words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as raised:
        require_memory(compose(overrides))
    for word in words:
        assert word in str(raised.value)


def test_what_fits_is_described() -> None:
    config = compose([])
    assert require_memory(config).parameters == sum(
        p.numel() for p in build_model(config).parameters()
    )

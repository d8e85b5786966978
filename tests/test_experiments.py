"""The experiments that ship: their jobs, budgets and what they say was published."""

from pathlib import Path

import pytest

from mlpkit import describe
from mlpkit.cli import main
from mlpkit.compose import conf_dir
from mlpkit.sweep import checked_jobs, expand

NAMES = sorted(path.stem for path in Path(conf_dir(), "experiment").glob("*.yaml"))
SIZE = {"glu_variants": 10, "dense_to_moe": 4, "minimind_top1_trap": 4}


@pytest.fixture(scope="module", params=NAMES)
def experiment(request):
    jobs = checked_jobs([f"experiment={request.param}", "seed=0"], sweeps=True)
    return request.param, jobs


def test_the_jobs_of_an_experiment_are_distinct_and_matched(experiment):
    name, jobs = experiment
    assert len({job.id for job in jobs}) == len(jobs) == SIZE[name]
    for job in jobs:
        assert job.config.experiment.name == name
        assert abs(job.match["residual"]) < 0.01


def test_what_was_published_is_of_ffns_that_are_run(experiment):
    _, jobs = experiment
    labels = {describe(job.config).ffn for job in jobs}
    for source in jobs[0].config.experiment.published:
        assert source.source
        assert source.measure
        assert set(source["values"]) <= labels
        assert source["values"] or source.note


def test_every_experiment_has_three_seeds_by_itself_and_the_command_line_wins():
    for name in NAMES:
        own, given = expand([f"experiment={name}"]), expand([f"experiment={name}", "seed=7"])
        assert len(own) == 3 * SIZE[name]
        assert len(given) == SIZE[name]
        assert all("seed=7" in job for job in given)


def test_a_job_of_an_experiment_is_the_same_job_by_hand():
    (job,) = checked_jobs(
        ["experiment=dense_to_moe", "ffn=gated", "seed=1"], sweeps=True
    )  # an axis that is given one value is none
    (by_hand,) = checked_jobs(
        ["ffn=gated", "seed=1", "match=active_params", "match_to=naive"], sweeps=False
    )
    assert job.id == by_hand.id
    assert "experiment=dense_to_moe" in job.overrides


def test_an_experiment_without_m_is_refused_with_its_jobs(capsys):
    assert main(["train", "experiment=dense_to_moe"]) == 2
    assert "12 jobs; add -m" in capsys.readouterr().err

"""Jobs of a sweep: their list, their identity, their names, and the record of the whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlpkit.compose import ConfigError, compose
from mlpkit.sweep import checked_jobs, expand, job_id, labels, sweep_id
from mlpkit.sweep.records import command, write_sweep


def test_expand_lists_the_product_in_order() -> None:
    assert expand(["ffn=naive,swiglu", "seed=range(2)", "training=quick"]) == [
        ["ffn=naive", "seed=0", "training=quick"],
        ["ffn=naive", "seed=1", "training=quick"],
        ["ffn=swiglu", "seed=0", "training=quick"],
        ["ffn=swiglu", "seed=1", "training=quick"],
    ]


def test_expand_globs_over_the_registry() -> None:
    found = expand(["ffn=glob(*,exclude=[moe,s*])"])
    assert ["ffn=naive"] in found
    assert ["ffn=swiglu"] not in found


@pytest.mark.parametrize(
    ("overrides", "jobs"),
    [
        (["experiment=glu_variants"], 2 * 5 * 3),
        (["experiment=glu_variants", "seed=5"], 2 * 5),  # a value in the place of its axis
        (["ffn=naive", "training=quick"], 1),
    ],
)
def test_expand_takes_the_axes_that_a_configuration_brings(overrides: list[str], jobs: int) -> None:
    assert len(expand(overrides)) == jobs


def test_null_sweeps_over_as_it_is() -> None:
    jobs = expand(["activation=null,relu"])
    assert [compose(job).activation is None for job in jobs] == [True, False]


def test_what_cannot_be_read_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="seed=range"):
        expand(["seed=range("])


def test_identity_depends_on_what_is_run_alone() -> None:
    base = job_id(compose(["ffn=gated", "seed=1"]), {})
    assert job_id(compose(["seed=1", "ffn=gated"]), {}) == base  # order
    assert job_id(compose(["ffn=gated", "seed=1", "ffn.bias=false"]), {}) == base  # a default said
    assert job_id(compose(["ffn=gated", "seed=1", "run_dir=elsewhere"]), {}) == base  # a path
    assert job_id(compose(["ffn=gated", "seed=2"]), {}) != base
    assert job_id(compose(["ffn=gated", "seed=1"]), {"mlpkit-foo": "1.0"}) != base
    assert len(base) == 12
    assert int(base, 16) >= 0


@pytest.mark.parametrize(
    "way", ["keep_going=false", "rerun=true", "dry_run=true", "resume=auto", "match_to=naive"]
)
def test_how_a_sweep_goes_about_it_is_no_part_of_a_job(way: str) -> None:
    assert job_id(compose([way]), {}) == job_id(compose([]), {})


def test_identity_is_that_of_the_matched_widths() -> None:
    (plain,) = checked_jobs(["ffn=naive"], sweeps=False)
    (matched,) = checked_jobs(["ffn=naive", "match=params"], sweeps=False)
    (other,) = checked_jobs(["ffn=naive", "match=params", "match_to=mixtral"], sweeps=False)
    # a width that is solved for is not looked at
    (given,) = checked_jobs(["ffn=naive", "match=params", "ffn.intermediate_size=24"], sweeps=False)
    assert len({plain.id, matched.id, other.id}) == 3
    assert given.id == matched.id
    assert given.config.ffn.intermediate_size == 576


def test_a_sweep_is_its_jobs_in_any_order_and_each_once() -> None:
    one = checked_jobs(["ffn=naive,swiglu", "seed=0,1"], sweeps=True)
    two = checked_jobs(["seed=1,0,1", "ffn=swiglu,naive"], sweeps=True)
    assert len(two) == 6
    assert sweep_id(one) == sweep_id(two)
    assert sweep_id(one) != sweep_id(one[:3])


def test_jobs_are_called_by_what_they_do_not_share() -> None:
    jobs = checked_jobs(["ffn=naive,swiglu", "training=quick", "hydra/launcher=basic"], sweeps=True)
    assert labels(jobs) == ["ffn=naive", "ffn=swiglu"]
    assert labels(jobs[:1]) == ["ffn=naive training=quick"]
    assert labels(checked_jobs([], sweeps=False)) == ["(as it is)"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["ffn=naive,swigul"], ("job 2 of 2 (ffn=swigul)", "did you mean 'swiglu'")),
        (["seed=1,2", "run_dir=x"], ("job 1 of 2", "run_dir is 'x'", "multirun")),
        (["ffn=naive,swiglu", "match=params", "match_to=swigul"], ("match_to", "swiglu")),
        (["match=parameters"], ("match is 'parameters'", "active_params")),
    ],
)
def test_a_wrong_job_is_found_before_the_first_runs(
    overrides: list[str], words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as raised:
        checked_jobs(overrides, sweeps=True)
    for word in words:
        assert word in str(raised.value)


def test_the_record_of_a_sweep_repeats_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLPKIT_PLUGIN_MODULES", "/home/me/my ffn.py, other")
    jobs = checked_jobs(["ffn=naive,naive,moe", "match=flops", "seed=3"], sweeps=True)
    path = write_sweep(jobs, ["-m", "ffn=naive,naive,moe", "ffn.activation={name: elu}"])
    assert path == Path("multirun/sweeps", sweep_id(jobs), "sweep.json")
    record = json.loads(path.read_text())
    assert record["baseline"] == "swiglu"
    assert record["jobs"] == [
        {"id": jobs[0].id, "overrides": ["ffn=naive", "match=flops", "seed=3"]},
        {"id": jobs[2].id, "overrides": ["ffn=moe", "match=flops", "seed=3"]},
    ]
    assert record["command"] == (
        "mlpkit -p '/home/me/my ffn.py' -p other train -m ffn=naive,naive,moe "
        "'ffn.activation={name: elu}'"
    )
    monkeypatch.delenv("MLPKIT_PLUGIN_MODULES")
    assert command(["-m"]) == "mlpkit train -m"


def test_the_sweeper_works_whichever_of_hydras_plugins_was_loaded_first():
    code = (
        "from mlpkit.sweep import conducting, sweeper\n"  # before Hydra looks for plugins
        "from hydra.core.plugins import Plugins\n"
        "Plugins.instance()\n"
        "name = sweeper.choose_checked().partition('=')[2]\n"
        "Plugins.instance().class_name_to_class[name](None)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr

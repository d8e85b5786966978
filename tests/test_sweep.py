"""Jobs of a sweep: their list and their identity."""

from __future__ import annotations

import pytest

from mlpkit.compose import ConfigError, compose
from mlpkit.sweep import expand, job_id


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

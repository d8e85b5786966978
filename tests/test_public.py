"""The public surface: every name resolves, lists itself, and stays a function beside its module."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import mlpkit


@pytest.mark.parametrize("name", mlpkit.__all__)
def test_a_public_name_resolves_and_is_listed(name: str) -> None:
    assert getattr(mlpkit, name) is not None
    assert name in dir(mlpkit)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="swigul"):
        _ = mlpkit.swigul


@pytest.mark.parametrize("name", ["compose", "describe"])
def test_a_function_is_not_hidden_by_the_module_of_its_name(name: str) -> None:
    import_module(f"mlpkit.{name}")
    assert callable(getattr(mlpkit, name))
    code = f"import mlpkit.{name}, mlpkit; assert callable(mlpkit.{name})"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_declaring_a_plugin_imports_no_torch() -> None:
    code = (
        "import sys, mlpkit\n"
        "kinds = ('register', 'hook', 'list')\n"
        "names = [n for n in mlpkit.__all__ if n.endswith('Spec') or n.startswith(kinds)]\n"
        "assert len(names) > 12\n"
        "[getattr(mlpkit, n) for n in names]\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_router_and_a_record_from_the_top_level() -> None:
    torch = import_module("torch")
    torch.manual_seed(0)
    moe = mlpkit.build_ffn(
        "moe",
        hidden_size=8,
        router={"name": "topk", "selection_bias": True},
        balance={"selection_bias": 0.1},
        expert={"name": "gated", "activation": "gelu", "intermediate_size": 16},
    )
    with mlpkit.record_routing(moe) as record:
        moe.train()(torch.randn(5, 8))
    (load,) = record.load().values()
    assert int(load.sum()) == 5 * 2
    mlpkit.update_router_bias(moe, record)
    assert moe.router.e_score_correction_bias.abs().max() == pytest.approx(0.1)
    router = mlpkit.build_router("topk", hidden_size=8, num_experts=4, num_experts_per_tok=2)
    assert router(torch.randn(3, 8)).expert.shape == (6,)

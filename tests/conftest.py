"""What every test gets: a token cache of its own session, and no user's plugins or settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("MLPKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
    for name in (
        "MLPKIT_PLUGINS",
        "MLPKIT_PLUGINS_BLOCK",
        "MLPKIT_PLUGIN_MODULES",
        "MLPKIT_PLUGINS_STRICT",
        "MLPKIT_PLUGINS_PREFER",
        "MLPKIT_PLUGINS_SECONDS",
        "HYDRA_FULL_ERROR",
    ):
        patch.delenv(name, raising=False)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _environment_is_kept(_own_environment: None) -> Iterator[None]:
    """What a test sets in this process ends with it, as a plugin named by ``-p`` for a run."""
    before = dict(os.environ)
    yield
    if os.environ == before:
        return
    os.environ.clear()
    os.environ.update(before)
    if plugins := sys.modules.get("mlpkit.plugins"):
        plugins.load_once.cache_clear()
        plugins.load_environment.cache_clear()


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small text files, enough for a few steps of a tiny model."""
    folder = tmp_path_factory.mktemp("text")
    for number in range(40):
        lines = (f"line {i} of file {number}: the cat sat on mat {i * number}" for i in range(20))
        (folder / f"{number:02}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def tiny(tiny_text: Path) -> list[str]:
    """Overrides for a run of a few milliseconds a step."""
    return [
        "data=text",
        f"data.path={tiny_text}",
        "data.val_fraction=0.1",
        "model.hidden_size=16",
        "model.num_layers=2",
        "model.num_attention_heads=2",
        "model.num_key_value_heads=1",
        "ffn.intermediate_size=24",
        "training.max_steps=6",
        "training.batch_size=4",
        "training.sequence_length=16",
        "training.eval_every=3",
        "training.eval_tokens=200",
        "training.warmup_steps=2",
        "training.log_every=1",
        "training.sample_tokens=8",
        "training.precision=float32",
    ]

"""The plain values of a checkpoint whose manifest agrees with what somebody else wrote there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlpkit.training.checkpoints import CheckpointError
from mlpkit.training.checkpoints.store import Checkpoint
from mlpkit.training.progress import Meter
from mlpkit.training.resume import Start
from mlpkit.training.saving import restore_run


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"meter": None}, "TypeError"),
        ({"meter": {}}, "KeyError: 'steps'"),
        ({"meter": {name: "x" for name in vars(Meter(max_steps=1, eval_every=1))}}, "no number"),
        ({"seconds": [1]}, "seconds is \\[1\\], and no number"),
    ],
)
def test_a_signed_state_that_no_run_wrote_is_one_message(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr("mlpkit.training.saving.restore", lambda *_: None)
    meter = Meter(max_steps=9, eval_every=3)
    run = SimpleNamespace(meter=meter, mixture=None, model=None, optimizer=None)
    state = {"unscored": False, "seconds": 1.5, "meter": meter.state()}
    restore_run(run, Start(checkpoint=Checkpoint(Path("step_2"), 2, state)))
    assert (run.step, run.unscored) == (2, False)
    with pytest.raises(
        CheckpointError, match=f"step_2 has a state.json that no run wrote: .*{said}"
    ):
        restore_run(run, Start(checkpoint=Checkpoint(Path("step_2"), 2, {**state, **change})))

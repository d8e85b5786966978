"""FFNs that fail in training, as a local plugin: ``mlpkit -p sweep_faults.py train ffn=raises``.

Each works for three training forwards and then does what it is called. ``killed_once`` and
``slow_once`` look for a file in the working directory, and do it while it is there.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import mlpkit

GOOD = 3  # training forwards before the fault; the time estimate takes two of them


class Faulty(nn.Module):
    """A naive FFN that counts its forwards in training."""

    def __init__(self, *, hidden_size: int, intermediate_size: int | None = None) -> None:
        super().__init__()
        width = intermediate_size or 24
        self.up_proj = nn.Linear(hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, hidden_size, bias=False)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (..., H) to (..., H)."""
        if torch.is_grad_enabled() and x.device.type != "meta":
            self.calls += 1
        y = self.down_proj(self.up_proj(x).relu())
        return self.fault(y) if self.calls > GOOD else y

    def fault(self, y: torch.Tensor) -> torch.Tensor:
        """What goes wrong."""
        return y


@mlpkit.register_ffn("raises")
class Raises(Faulty):
    """Raises."""

    def fault(self, y: torch.Tensor) -> torch.Tensor:
        """Raises."""
        raise RuntimeError("a fault in the plugin\nin two lines")


@mlpkit.register_ffn("exits")
class Exits(Faulty):
    """Calls sys.exit."""

    def fault(self, y: torch.Tensor) -> torch.Tensor:
        """Ends the program."""
        sys.exit(3)


@mlpkit.register_ffn("killed")
class Killed(Faulty):
    """Dies like a process that ran out of memory."""

    def fault(self, y: torch.Tensor) -> torch.Tensor:
        """Kills its process."""
        print("about to be killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        return y


@mlpkit.register_ffn("killed_once")
class KilledOnce(Killed):
    """Dies while there is a file ``kill`` here."""

    def fault(self, y: torch.Tensor) -> torch.Tensor:
        """Kills its process, and not the next one."""
        if Path("kill").exists():
            Path("kill").unlink()
            return super().fault(y)
        return y


@mlpkit.register_ffn("nans")
class Nans(Faulty):
    """Becomes NaN."""

    def fault(self, y: torch.Tensor) -> torch.Tensor:
        """NaN everywhere."""
        return y * float("nan")


@mlpkit.register_ffn("slow_once")
class SlowOnce(Faulty):
    """Takes its time while there is a file ``slow`` here."""

    def fault(self, y: torch.Tensor) -> torch.Tensor:
        """Waits, so that a test can send a signal."""
        if Path("slow").exists():
            time.sleep(0.05)
        return y

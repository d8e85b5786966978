"""Being stopped: a first signal ends a run after its step, a second one at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from mlpkit.parallel import Parallel

NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")  # schedulers send the first and the last
LAUNCHER_GONE = "the end of torchrun"
REASONS = (*NAMES, LAUNCHER_GONE)


class StoppedError(Exception):
    """A run that a signal has stopped; it can go on."""

    exit_code = 75  # EX_TEMPFAIL: try again later


class StopSignals:
    """Notes the first signal, and leaves the second to the system.

    ``received`` is what came to this process, ``heard`` what all of them have agreed upon.

    Args:
        say: Called with one line when a signal comes.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.received = self.heard = ""
        self._parent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        # Python hands signals to its main thread alone; elsewhere they stay as they are.
        if threading.current_thread() is threading.main_thread():
            known = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
            self._before = {number: signal.signal(number, self._note) for number in known}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def listen(self, parallel: Parallel) -> None:
        """Agrees with the other processes whether one of them was told to stop.

        Every process calls this after the same steps, so that all stop after the same one.
        """
        # Killed, torchrun leaves its processes behind, and nobody can stop them any more.
        if self._parent not in (None, os.getppid()):
            self.received = self.received or LAUNCHER_GONE
        mine = REASONS.index(self.received) + 1 if self.received else 0
        self.heard = ("", *REASONS)[int(parallel.max(mine))]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)  # a step that never ends cannot hold up the next
        self.say(f"{self.received}: stopping after this step; a second signal ends at once")

"""A time limit for what a plugin does while it is loaded."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SECONDS = 60.0  # importing torch from a cold network disk takes about 20 s


class LoadTimeout(BaseException):
    """A plugin that takes too long; no Exception, so that the plugin cannot catch it by chance."""


@contextmanager
def bounded(name: str, seconds: float = SECONDS) -> Iterator[None]:
    """A block that ends after a time: with LoadTimeout where it can be interrupted.

    Python code on the main thread of a POSIX system can. Elsewhere, and where the plugin holds
    on (code in C, a bare ``except``), a message names the plugin and the program ends with 3.

    Args:
        name: The plugin, for the message.
        seconds: The limit; what cannot be interrupted gets twice the time.

    Raises:
        LoadTimeout: The time is over.
    """
    watchdog = threading.Timer(2 * seconds, _end_program, (name, seconds))
    watchdog.daemon = True
    watchdog.start()
    try:
        if _can_interrupt():
            with _alarm(seconds):
                yield
        else:
            yield
    finally:
        watchdog.cancel()


def _can_interrupt() -> bool:
    main = threading.current_thread() is threading.main_thread()
    # a timer that runs already belongs to someone else, such as a test runner
    return main and hasattr(signal, "setitimer") and signal.getitimer(signal.ITIMER_REAL)[0] == 0


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise LoadTimeout(f"not loaded after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)


def _end_program(name: str, seconds: float) -> None:
    print(
        f"mlpkit: plugin {name!r} is not loaded after {2 * seconds:g} s and cannot be interrupted; "
        f"keep it out with MLPKIT_PLUGINS_BLOCK={name}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(3)  # no exception reaches the thread that hangs

"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from mlpkit.training.evaluation import Validation

PLANNED = ("max_steps", "eval_every")
PLAIN_LINES = 20  # lines of a whole run where there is no terminal


class Meter:
    """Speed and remaining time, from the steps and validations so far.

    Args:
        max_steps: Steps of the run.
        eval_every: Steps between validations.
    """

    def __init__(self, *, max_steps: int, eval_every: int) -> None:
        self.max_steps, self.eval_every = max_steps, eval_every
        self.steps, self.step_seconds, self.tokens = 0, 0.0, 0
        self.evals, self.eval_seconds = 0, 0.0

    def add_step(self, seconds: float, tokens: int) -> None:
        """Counts one training step."""
        self.steps, self.step_seconds = self.steps + 1, self.step_seconds + seconds
        self.tokens += tokens

    def add_validation(self, seconds: float) -> None:
        """Counts one validation."""
        self.evals, self.eval_seconds = self.evals + 1, self.eval_seconds + seconds

    def state(self) -> dict[str, Any]:
        """The counts so far, for a checkpoint."""
        return {name: value for name, value in vars(self).items() if name not in PLANNED}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on counting from a ``state``."""
        for name in self.state():
            setattr(self, name, state[name])

    @property
    def tokens_per_second(self) -> float:
        """Training tokens over the time of training steps; validation is not in it."""
        return self.tokens / self.step_seconds if self.step_seconds else 0.0

    @property
    def eta(self) -> float:
        """Seconds until the last step, validations included."""
        left = self.max_steps - self.steps
        evals_left = self.max_steps // self.eval_every - self.steps // self.eval_every
        per_eval = self.eval_seconds / self.evals if self.evals else 0.0
        return left * self.step_seconds / max(1, self.steps) + evals_left * per_eval


class Display:
    """Shows steps and validations.

    Args:
        console: Where.
        meter: Speed and remaining time.
    """

    def __init__(self, console: Console, meter: Meter) -> None:
        self.console, self.meter = console, meter
        self.every = max(1, meter.max_steps // PLAIN_LINES)
        self.progress = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("", total=meter.max_steps)

    def __enter__(self) -> Display:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def step(self, step: int, loss: float) -> None:
        """Shows a finished step."""
        speed, eta = f"{self.meter.tokens_per_second:,.0f} tokens/s", clock(self.meter.eta)
        text = f"loss {loss:.4f}  {speed}  eta {eta}"
        self.progress.update(self.task, completed=step, description=text)
        if not self.console.is_terminal and (step % self.every == 0 or step == 1):
            self.console.print(f"step {step}/{self.meter.max_steps}  {text}", highlight=False)

    def validation(self, step: int, result: Validation, health: Mapping[str, Any]) -> None:
        """Shows a validation, and in a MoE the load since the last one."""
        self.console.print(
            f"step {step}  validation loss {result.loss:.4f}  perplexity {result.perplexity:.2f}  "
            f"{result.bpb:.3f} bits per byte",
            highlight=False,
        )
        if health:
            self.console.print(
                f"    experts  MaxVio {health['max_violation']:.2f} of the worst layer "
                f"({health['max_violation_share']:.0%} of collapse)  "
                f"dead {health['dead_experts']}/{health['num_experts']}",
                highlight=False,
            )


def clock(seconds: float) -> str:
    """Seconds as m:ss, or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Stopwatch:
    """Seconds since it was made.

    Args:
        before: Seconds that were measured earlier, and count as well.
    """

    def __init__(self, before: float = 0.0) -> None:
        self.start = time.perf_counter() - before

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self.start

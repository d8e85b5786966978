"""The training loop: steps, validations and checkpoints of one run."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig
from rich.console import Console
from torch import Tensor

from mlpkit.build import derived_seed
from mlpkit.data import Dataset
from mlpkit.data.batches import train_batch
from mlpkit.describe import Description
from mlpkit.model import Decoder
from mlpkit.parallel import OneProcess, Parallel
from mlpkit.training.checkpoints import no_stage
from mlpkit.training.evaluation import Validation, evaluate_both
from mlpkit.training.measures import peak_memory_bytes, start_peak
from mlpkit.training.optimizer import build_optimizer, learning_rate
from mlpkit.training.preamble import announcement
from mlpkit.training.precision import Precision
from mlpkit.training.products import has_experts, write_products
from mlpkit.training.progress import Display, Meter, Stopwatch, clock
from mlpkit.training.resume import Start
from mlpkit.training.run_directory import RunDirectory
from mlpkit.training.saving import farewell, open_store, save_run
from mlpkit.training.signals import StoppedError, StopSignals

if TYPE_CHECKING:
    from mlpkit.training.checkpoints.writing import Stage
    from mlpkit.training.mixture import Mixture


class NonFiniteLossError(ArithmeticError):
    """A loss or gradient that is NaN or infinite; the weights are those before the step."""

    exit_code = 5


class Run:
    """One training run: its parts, and what it has measured so far.

    Args:
        config: The composed configuration.
        model: The model, on its device.
        dataset: The tokens.
        precision: Where and how to compute.
        description: The model in numbers.
        console: Where to show progress.
        parallel: The processes of the run, over which the model is spread here; None: this one.
        stage: Called at each stage of writing a checkpoint.
    """

    def __init__(
        self,
        config: DictConfig,
        model: Decoder,
        dataset: Dataset,
        precision: Precision,
        description: Description,
        console: Console,
        *,
        parallel: Parallel | None = None,
        stage: Stage = no_stage,
    ) -> None:
        self.config, self.options = config, config.training
        self.model, self.dataset, self.precision = model, dataset, precision
        self.description, self.console = description, console
        self.parallel = parallel or OneProcess()
        self.forward = self.parallel.apply(model)  # what is called in training
        self.optimizer = build_optimizer(model, self.options, self.parallel)
        self.meter = Meter(max_steps=self.options.max_steps, eval_every=self.options.eval_every)
        self.signals, self.watch, self.start = StopSignals(self.say), Stopwatch(), Start()
        self.stage = stage
        self.step, self.unscored = 0, True  # whether the validation of this step is still to come
        self.val_bpb: float | None = None  # of this step
        self.mixture = build_mixture(model, self.parallel)
        self.health: dict[str, Any] = {}
        if self.options.compile:
            model.compile()  # in place: the names in the state dict stay as they are

    def say(self, line: str) -> None:
        """Prints a line as it is."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def run(self, directory: RunDirectory) -> dict[str, Any]:
        """All steps; returns the final metrics."""
        options = self.options
        self.announce(directory)
        start_peak(self.precision.device)
        with Display(self.console, self.meter) as display, open_store(self, directory) as store:
            self.catch_up(directory, display)
            while self.step < options.max_steps and not self.signals.heard:
                self.take_step(directory, display)
                self.catch_up(directory, display)
                if self.is_due(options.checkpoint_every) or self.signals.heard:
                    save_run(self, directory, store)
            if self.signals.heard:
                raise StoppedError(farewell(self, directory, store))
            validation = self.validate(directory, display, everything=True)
        parts = (self.model, self.dataset, self.precision, self.config)
        write_products(directory, *parts, self.say, self.parallel)
        return self.metrics(validation)

    def is_due(self, every: int) -> bool:
        """Whether something that is done every so many steps (0: never), and at the end, is due."""
        return every > 0 and (self.step % every == 0 or self.step == self.options.max_steps)

    def catch_up(self, directory: RunDirectory, display: Display) -> None:
        """Validates where that is due; a run that is to stop does it when it goes on."""
        self.signals.listen(self.parallel)
        if self.unscored and not self.signals.heard and self.step < self.options.max_steps:
            self.val_bpb = self.validate(directory, display).bpb
            self.signals.listen(self.parallel)

    def announce(self, directory: RunDirectory) -> None:
        """Prints what will be trained, and how long it will take."""
        lines = announcement(self.config, self.dataset, self.precision, self.description)
        lines += [f"processes  {self.parallel.layout}"] if self.parallel.world > 1 else []
        lines += [f"run        {directory.path}", f"estimated  {clock(self.estimate())}"]
        for line in lines:
            self.say(line)

    def estimate(self) -> float:
        """Seconds of all steps, measured on one forward and backward after a warm one."""
        with torch.random.fork_rng(devices=[]):
            self.loss_and_gradients(0)
            watch = Stopwatch()
            self.loss_and_gradients(0)
            seconds = watch.seconds
        self.optimizer.zero_grad()
        return seconds * (int(self.options.max_steps) - self.step)

    def take_step(self, directory: RunDirectory, display: Display) -> None:
        """One optimizer step.

        Raises:
            NonFiniteLossError: The loss or the gradient is not finite; nothing was updated.
        """
        options, watch = self.options, Stopwatch()
        # Whatever is random in a step depends on (seed, step) alone, not on what ran before it.
        # Processes draw for other tokens, and so other numbers.
        own = f" rank {self.parallel.rank}" if self.parallel.world > 1 else ""
        torch.manual_seed(derived_seed(self.config.seed, f"step {self.step}{own}"))
        with self.mixture or nullcontext():
            loss = self.loss_and_gradients(self.step)
        norm = self.parallel.clip_grad_norm(self.model.parameters(), options.max_grad_norm)
        self.require_finite(loss, norm)
        rate = learning_rate(self.step, options)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.mixture:
            self.mixture.after_step()
        self.step += 1
        self.unscored, self.val_bpb = self.step % options.eval_every == 0, None
        self.meter.add_step(watch.seconds, options.batch_size * options.sequence_length)
        if self.step % options.log_every == 0 or self.step in (1, options.max_steps):
            self.log(
                directory,
                loss=loss,
                **(self.mixture.terms if self.mixture else {}),
                learning_rate=rate,
                grad_norm=norm,
                tokens_per_second=round(self.meter.tokens_per_second, 1),
            )
        display.step(self.step, loss)

    def log(self, directory: RunDirectory, **numbers: Any) -> None:
        """Appends a line to metrics.jsonl: where the run is, and some numbers."""
        where = {
            "step": self.step,
            "tokens": self.meter.tokens,
            "seconds": round(self.meter.step_seconds, 3),
        }
        if self.parallel.is_main:
            directory.log({**where, **numbers})

    def loss_and_gradients(self, index: int) -> float:
        """Accumulates the gradient of a batch; returns its mean loss over all tokens, in nats."""
        options = self.options
        inputs, targets = train_batch(
            self.dataset,
            seed=self.config.seed,
            index=index,
            batch_size=options.batch_size,
            sequence_length=options.sequence_length,
        )
        parts = min(options.gradient_accumulation_steps, options.batch_size)
        own = targets.numel() / self.parallel.world  # the tokens of this process
        total = 0.0
        for part in range(parts):
            x, y = (self.parallel.rows(t.tensor_split(parts)[part]) for t in (inputs, targets))
            with self.parallel.accumulating(self.forward, more=part + 1 < parts):
                # Each micro-batch counts by its tokens: a mean of means would favour short ones.
                loss = self.summed_loss(x, y) / own
                balance = self.mixture.losses(y.numel() / own) if self.mixture else 0.0
                torch.autograd.backward(loss + balance)
            total += loss.item()
        return self.parallel.mean(total)

    def summed_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The summed cross-entropy of (B, S) tokens, in nats."""
        device = self.precision.device
        with self.precision.autocast():
            loss: Tensor = self.forward(inputs.to(device), targets=targets.to(device))
        return loss

    def require_finite(self, loss: float, norm: float) -> None:
        """Raises if a number is NaN or infinite, before it reaches the weights."""
        if math.isfinite(loss) and math.isfinite(norm):
            return
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {norm}"
        raise NonFiniteLossError(
            f"at step {self.step + 1} {what}; the weights were not updated. Try a lower "
            f"training.learning_rate (now {self.options.learning_rate}), "
            "or training.precision=float32"
        )

    def validate(
        self, directory: RunDirectory, display: Display, *, everything: bool = False
    ) -> Validation:
        """Scores the model on the first of the validation text or, in the end, everything."""
        watch = Stopwatch()
        first, result = evaluate_both(
            self.model,
            self.dataset,
            precision=self.precision,
            batch_size=self.options.batch_size,
            sequence_length=self.options.sequence_length,
            max_tokens=self.options.eval_tokens,
            everything=everything,
            parallel=self.parallel,
        )
        self.meter.add_validation(watch.seconds)
        self.health = self.mixture.health() if self.mixture else {}
        self.unscored = False
        # A curve is of one text: the score of everything would be a kink in it.
        final = {"final_val_loss": result.loss, "final_val_bpb": result.bpb} if everything else {}
        self.log(directory, val_loss=first.loss, val_bpb=first.bpb, **final, **self.health)
        display.validation(self.step, result, self.health)
        return result

    def metrics(self, validation: Validation) -> dict[str, Any]:
        """The numbers of a finished run."""
        tokens = self.step * self.options.batch_size * self.options.sequence_length
        peak = peak_memory_bytes(self.precision.device)
        return {
            "val_loss": validation.loss,
            "val_bpb": validation.bpb,
            "val_perplexity": validation.perplexity,
            "val_tokens": validation.tokens,
            "parameters": self.description.parameters,
            "flops_per_token": self.description.flops_per_token,
            "tokens": tokens,
            "training_flops": tokens * self.description.training_flops_per_token,
            "tokens_per_second": round(self.meter.tokens_per_second, 1),
            "training_seconds": round(self.meter.step_seconds, 3),
            "peak_memory_bytes": peak and int(self.parallel.max(peak)),
            **self.health,
        }


def build_mixture(model: Decoder, parallel: Parallel) -> Mixture | None:
    """What the MoE layers of a model need; None for a dense model, which loads no MoE code."""
    if not has_experts(model):
        return None
    from mlpkit.training.mixture import Mixture

    return Mixture(model, parallel)

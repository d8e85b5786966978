"""The training loop, from a configuration to a run directory with weights."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from omegaconf import DictConfig
from rich.console import Console
from torch import Tensor

from mlpkit.build import build_data, build_model, derived_seed
from mlpkit.compose import check
from mlpkit.configs.run import TrainingConfig
from mlpkit.data import Dataset
from mlpkit.data.batches import tokens_per_epoch, train_batch
from mlpkit.describe import Description, describe
from mlpkit.figures.curves import save_loss_curve
from mlpkit.model import Decoder, generate
from mlpkit.training.evaluation import Validation, evaluate
from mlpkit.training.optimizer import build_optimizer, learning_rate
from mlpkit.training.preamble import announcement, provenance
from mlpkit.training.precision import Precision, choose_precision
from mlpkit.training.progress import Display, Meter, Stopwatch, clock, printable
from mlpkit.training.run_directory import RunDirectory

if TYPE_CHECKING:
    from mlpkit.training.mixture import Mixture


class NonFiniteLossError(ArithmeticError):
    """A loss or gradient that is NaN or infinite; the weights are those before the step."""

    exit_code = 5


def train(
    config: DictConfig,
    *,
    run_dir: Path | None = None,
    overrides: Sequence[str] = (),
    console: Console | None = None,
) -> dict[str, Any]:
    """Trains the model of a configuration.

    Everything that can be wrong in the configuration or the data is found before the run
    directory is made.

    Args:
        config: A composed configuration.
        run_dir: Where to write; None: the configuration's, or outputs/<date>/<time>.
        overrides: What was overridden, for the record.
        console: Where to show progress; None: standard output.

    Returns:
        The result record, as in result.json.

    Raises:
        ValueError: Something in the configuration or data is wrong.
        NonFiniteLossError: The loss or a gradient became NaN or infinite.
    """
    console = console or Console()
    check(config)
    options: TrainingConfig = config.training
    precision = choose_precision(options.device, options.precision)
    dataset = build_data(config)
    model = build_model(config, tokenizer=dataset.tokenizer).to(precision.device)
    description = describe(config, model)
    chosen = run_dir or (Path(config.run_dir) if config.run_dir else None)
    tokens_per_epoch(dataset, sequence_length=options.sequence_length)  # too short a text ends here
    run = Run(config, model, dataset, precision, description, console)
    directory = RunDirectory.create(chosen)
    return run.record(directory, overrides)


class Run:
    """One training run: its parts, and what it has measured so far.

    Args:
        config: The composed configuration.
        model: The model, on its device.
        dataset: The tokens.
        precision: Where and how to compute.
        description: The model in numbers.
        console: Where to show progress.
    """

    def __init__(
        self,
        config: DictConfig,
        model: Decoder,
        dataset: Dataset,
        precision: Precision,
        description: Description,
        console: Console,
    ) -> None:
        self.config, self.options = config, config.training
        self.model, self.dataset, self.precision = model, dataset, precision
        self.description, self.console = description, console
        self.optimizer = build_optimizer(model, self.options)
        self.meter = Meter(max_steps=self.options.max_steps, eval_every=self.options.eval_every)
        self.step = 0
        self.mixture = build_mixture(model)
        self.health: dict[str, Any] = {}
        if self.options.compile:
            model.compile()  # in place: the names in the state dict stay as they are

    def record(self, directory: RunDirectory, overrides: Sequence[str]) -> dict[str, Any]:
        """Runs, and keeps result.json true whatever happens."""
        watch = Stopwatch()
        made_from = provenance(self.config, self.dataset, self.precision, self.description)
        result = {
            "status": "running",
            "pid": os.getpid(),
            "overrides": list(overrides),
            **made_from,
        }
        # the result first: with it, whatever fails next can be run again in this directory
        directory.write_result(result)
        directory.write_config(self.config)
        directory.write_tokenizer(self.config)
        directory.start_metrics()
        try:
            result["metrics"] = self.run(directory)
            result["status"] = "ok"
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            result["status"] = "stopped" if stopped else "failed"
            result["error"] = f"{type(error).__name__}: {error}".rstrip(": ")
            raise
        finally:
            result.update(step=self.step, seconds=round(watch.seconds, 3))
            directory.write_result(result)
        self.console.print(f"done in {clock(watch.seconds)}: {directory.path}", soft_wrap=True)
        return result

    def run(self, directory: RunDirectory) -> dict[str, Any]:
        """All steps; returns the final metrics."""
        self.announce(directory)
        with Display(self.console, self.meter) as display:
            validation = self.validate(directory, display)
            while self.step < self.options.max_steps:
                self.take_step(directory, display)
                last = self.step == self.options.max_steps
                if last or self.step % self.options.eval_every == 0:
                    validation = self.validate(directory, display, whole=last)
        directory.write_weights(self.model)
        sample = self.sample()
        if sample:
            (directory.path / "sample.txt").write_text(sample)
            self.console.print(f"\nsample:\n{printable(sample)}\n", markup=False, highlight=False)
        missing = save_loss_curve(directory.path / "metrics.jsonl", directory.path / "loss.svg")
        if missing:
            self.console.print(f"no loss.svg: {missing}")
        return self.metrics(validation)

    def announce(self, directory: RunDirectory) -> None:
        """Prints what will be trained, and how long it will take."""
        lines = announcement(self.config, self.dataset, self.precision, self.description)
        lines += [f"run        {directory.path}", f"estimated  {clock(self.estimate())}"]
        for line in lines:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def estimate(self) -> float:
        """Seconds of all steps, measured on one forward and backward after a warm one."""
        with torch.random.fork_rng(devices=[]):
            self.loss_and_gradients(0)
            watch = Stopwatch()
            self.loss_and_gradients(0)
            seconds = watch.seconds
        self.optimizer.zero_grad()
        return seconds * int(self.options.max_steps)

    def take_step(self, directory: RunDirectory, display: Display) -> None:
        """One optimizer step.

        Raises:
            NonFiniteLossError: The loss or the gradient is not finite; nothing was updated.
        """
        options, watch = self.options, Stopwatch()
        # Whatever is random in a step depends on (seed, step) alone, not on what ran before it.
        torch.manual_seed(derived_seed(self.config.seed, f"step {self.step}"))
        with self.mixture or nullcontext():
            loss = self.loss_and_gradients(self.step)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), options.max_grad_norm))
        self.require_finite(loss, norm)
        rate = learning_rate(self.step, options)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.mixture:
            self.mixture.after_step()
        self.step += 1
        self.meter.add_step(watch.seconds, options.batch_size * options.sequence_length)
        if self.step % options.log_every == 0 or self.step in (1, options.max_steps):
            directory.log(
                {
                    "step": self.step,
                    "loss": loss,
                    **(self.mixture.terms if self.mixture else {}),
                    "learning_rate": rate,
                    "grad_norm": norm,
                    "tokens_per_second": round(self.meter.tokens_per_second, 1),
                }
            )
        display.step(self.step, loss)

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
        total = 0.0
        for x, y in zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True):
            # Each micro-batch counts by its tokens: a mean of means would favour short ones.
            loss = self.summed_loss(x, y) / targets.numel()
            balance = self.mixture.losses(y.numel() / targets.numel()) if self.mixture else 0.0
            torch.autograd.backward(loss + balance)
            total += loss.item()
        return total

    def summed_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The summed cross-entropy of (B, S) tokens, in nats."""
        device = self.precision.device
        with self.precision.autocast():
            logits = self.model(inputs.to(device))  # (B, S, V)
        # float32: in bf16 the logarithm of a sum over the vocabulary has two digits
        logits = logits.flatten(0, 1).float()  # (B*S, V)
        return F.cross_entropy(logits, targets.to(device).flatten(), reduction="sum")

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
        self, directory: RunDirectory, display: Display, *, whole: bool = False
    ) -> Validation:
        """Scores the model on (all of) the validation text."""
        watch = Stopwatch()
        result = evaluate(
            self.model,
            self.dataset,
            precision=self.precision,
            batch_size=self.options.batch_size,
            sequence_length=self.options.sequence_length,
            max_tokens=None if whole else self.options.eval_tokens,
        )
        self.meter.add_validation(watch.seconds)
        self.health = self.mixture.health() if self.mixture else {}
        scores = {"step": self.step, "val_loss": result.loss, "val_bpb": result.bpb}
        directory.log({**scores, **self.health})
        display.validation(self.step, result, self.health)
        return result

    def sample(self) -> str:
        """What the model writes after the first tokens of the validation text."""
        if not self.options.sample_tokens:
            return ""
        prompt = torch.from_numpy(self.dataset.val[:32].astype("int64"))[None]  # (1, 32)
        generator = torch.Generator(self.precision.device).manual_seed(self.config.seed)
        tokens = generate(
            self.model,
            prompt.to(self.precision.device),
            max_new_tokens=self.options.sample_tokens,
            temperature=0.8,
            generator=generator,
        )
        return self.dataset.tokenizer.decode(tokens[0].tolist()).decode("utf-8", "replace")

    def metrics(self, validation: Validation) -> dict[str, Any]:
        """The numbers of a finished run."""
        tokens = self.step * self.options.batch_size * self.options.sequence_length
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
            **self.health,
        }


def build_mixture(model: Decoder) -> Mixture | None:
    """What the MoE layers of a model need; None for a dense model, which loads no MoE code."""
    if not any("taps" in vars(module) for module in model.modules()):
        return None
    from mlpkit.training.mixture import Mixture

    return Mixture(model)

"""How long a run will take, from a few real steps of its model."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from omegaconf import DictConfig
from torch import Tensor, nn

from mlpkit.build import build_data, build_model
from mlpkit.data import build_tokenizer
from mlpkit.sizing import training_flops
from mlpkit.training.optimizer import build_optimizer
from mlpkit.training.precision import Precision, choose_precision
from mlpkit.training.progress import Stopwatch

STEPS = 5  # after one to warm up
SECONDS = 4.0  # no further step is begun after so many


@dataclass(frozen=True, kw_only=True)
class Timing:
    """An estimate of a run's time.

    Args:
        per_step: Seconds of an optimizer step, the median of those taken.
        seconds: Of the whole run, validations included.
        how: How it was found, in words.
    """

    per_step: float
    seconds: float
    how: str


def measure(config: DictConfig) -> Timing:
    """Estimates the time of a run from a few steps of its model on random tokens.

    Steps have the run's batch, micro-batches, precision and optimizer; the balance terms of a
    mixture, reading data, checkpoints and start-up are left out. Validation is counted as forwards,
    a third of a step's work for each token.

    Args:
        config: A composed configuration.
    """
    options = config.training
    per_step = statistics.median(step_seconds(config))
    per_batch = options.batch_size * options.sequence_length
    forwards = validation_tokens(config) / per_batch / training_flops(1)
    compiled = "; torch.compile is not counted in" if options.compile else ""
    return Timing(
        per_step=per_step,
        seconds=per_step * (options.max_steps + forwards),
        how=f"the median of up to {STEPS} steps of each model on random tokens, here and now, "
        "and its validations as forwards; data, checkpoints and start-up come on "
        f"top{compiled}",
    )


def step_seconds(config: DictConfig) -> list[float]:
    """The seconds of a few optimizer steps, after one to warm up.

    Args:
        config: A composed configuration.
    """
    options = config.training
    precision = choose_precision(options.device, options.precision)
    tokenizer = build_tokenizer(config.data.tokenizer)
    model = build_model(config, tokenizer=tokenizer).to(precision.device)
    optimizer = build_optimizer(model, options)
    shape = (options.batch_size, options.sequence_length + 1)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(tokenizer.vocab_size, shape, generator=generator).to(precision.device)
    parts = tokens.tensor_split(min(options.gradient_accumulation_steps, options.batch_size))
    taken: list[float] = []
    whole = Stopwatch()
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
        while len(taken) <= STEPS and (len(taken) < 2 or whole.seconds < SECONDS):
            watch = Stopwatch()
            for part in parts:
                torch.autograd.backward(mean_loss(model, part, precision))
            optimizer.step()
            optimizer.zero_grad()
            if precision.device.type == "cuda":
                torch.cuda.synchronize()
            taken.append(watch.seconds)
    return taken[1:]


def mean_loss(model: nn.Module, tokens: Tensor, precision: Precision) -> Tensor:
    """The mean cross-entropy of (B, S + 1) tokens."""
    with precision.autocast():
        logits = model(tokens[:, :-1])  # (B, S, V)
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def validation_tokens(config: DictConfig) -> int:
    """The tokens that all validations of a run look at; the last takes all there are.

    Args:
        config: A composed configuration.
    """
    options, present = config.training, len(build_data(config).val)
    times = -(-options.max_steps // options.eval_every)  # at step 0, and before the last
    return int(times * min(options.eval_tokens, present)) + present

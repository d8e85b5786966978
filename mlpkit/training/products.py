"""What a finished run leaves for people and programs: weights, a sample, a picture, its experts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from omegaconf import DictConfig

from mlpkit.data import Dataset
from mlpkit.figures.curves import save_loss_curve
from mlpkit.model import Decoder, generate
from mlpkit.parallel import Parallel
from mlpkit.registry import printable
from mlpkit.training.precision import Precision
from mlpkit.training.run_directory import METRICS, RunDirectory


def has_experts(model: torch.nn.Module) -> bool:
    """Whether a model has MoE layers; asked without loading any of their code."""
    return any("taps" in vars(module) for module in model.modules())


def write_products(
    directory: RunDirectory,
    model: Decoder,
    dataset: Dataset,
    precision: Precision,
    config: DictConfig,
    say: Callable[[str], None],
    parallel: Parallel,
) -> None:
    """Writes the weights, the sample, the loss curve and, of a model with experts, what they do.

    Args:
        directory: Where.
        model: The trained model.
        dataset: The tokens.
        precision: Where it computes.
        config: The run's configuration.
        say: Shows a line to a person.
        parallel: The processes that hold the model: all of them come here, the main one writes.
    """
    weights = parallel.full_state_dict(model)
    if parallel.is_main:
        directory.write_weights(weights)
    mixture = None
    if has_experts(model):
        mixture = analysed(model, dataset, precision, config)
    text = sample(model, dataset, precision, config)
    if not parallel.is_main:
        return
    if mixture is not None:
        # in one line: tables of 64 experts with a number a line would be most of a run's files
        directory.write_text("mixture.json", json.dumps(mixture, ensure_ascii=False))
    if text:
        directory.write_text("sample.txt", text)
        say(f"\nsample:\n{printable(text)}\n")
    missing = save_loss_curve(directory.path / METRICS, directory.path / "loss.svg")
    if missing:
        say(f"no loss.svg: {missing}")


def analysed(
    model: Decoder, dataset: Dataset, precision: Precision, config: DictConfig
) -> dict[str, Any]:
    """What the experts of a model do with validation text, for mixture.json.

    Args:
        model: The trained model.
        dataset: The tokens.
        precision: Where it computes.
        config: The run's configuration.
    """
    from mlpkit.training.mixture_analysis import analyse_mixture  # a dense model loads no MoE code

    return analyse_mixture(
        model,
        dataset,
        precision=precision,
        batch_size=config.training.batch_size,
        sequence_length=config.training.sequence_length,
    )


def sample(model: Decoder, dataset: Dataset, precision: Precision, config: DictConfig) -> str:
    """What a model writes after the first 32 tokens of the validation text.

    Args:
        model: The model.
        dataset: The tokens.
        precision: Where it computes.
        config: The run's configuration; its ``sample_tokens`` are drawn with its seed.
    """
    if not config.training.sample_tokens:
        return ""
    prompt = torch.from_numpy(dataset.val[:32].astype("int64"))[None]  # (1, 32)
    tokens = generate(
        model,
        prompt.to(precision.device),
        max_new_tokens=config.training.sample_tokens,
        temperature=0.8,
        generator=torch.Generator(precision.device).manual_seed(config.seed),
    )
    return dataset.tokenizer.decode(tokens[0].tolist()).decode("utf-8", "replace")

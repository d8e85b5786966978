"""Upcycling a run: from a run directory with a dense model to one with a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from mlpkit.convert.upcycling import Upcycled, upcycle_model
from mlpkit.data import Tokenizer
from mlpkit.describe import describe
from mlpkit.model import Decoder
from mlpkit.training.preamble import untrained
from mlpkit.training.run_directory import RunDirectory, load_run

Loaded = tuple[Decoder, Tokenizer, DictConfig]


def upcycle(
    run: str | Path | Loaded,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    split: int = 1,
    noise: float = 0.0,
    scale: float | None = None,
    layers: str | None = None,
) -> Upcycled:
    """Turns the dense FFNs of a run into mixtures of copies or parts of themselves.

    See ``mlpkit.convert.upcycling.upcycle_model``; ``receipt`` of what is returned says how far
    the function stayed the same.

    Args:
        run: A run directory, or what ``load_run`` gives.
        overrides: Of ``ffn`` alone, e.g. ``["ffn=mixtral", "ffn.num_experts=4"]``; none: ``moe``
            with 8 experts, 2 per token.
        out: A run directory to write, which ``init_from``, generate and export accept; None: none.
        split: In how many parts an FFN is cut; a shared FFN is one of them.
        noise: Standard deviation of what is added to the experts' matrices, relative to theirs.
        scale: What the router's weights are multiplied by; None: what keeps the sum.
        layers: Which layers, e.g. "2-"; None: all.

    Raises:
        UpcycleError: A layer has experts already, or its FFN cannot be cut so.
        ConfigError: An override is wrong.
        RunDirectoryError: ``run`` cannot be read, or ``out`` cannot be written.
    """
    loaded = load_run(Path(run)) if isinstance(run, str | Path) else run
    model, tokenizer, config = loaded
    upcycled = upcycle_model(
        model, tokenizer, config, overrides, split=split, noise=noise, scale=scale, layers=layers
    )
    if out is not None:
        options = {"split": split, "noise": noise, "layers": layers, "overrides": list(overrides)}
        source = str(run) if isinstance(run, str | Path) else None
        write_upcycled(upcycled, Path(out), {"from": source, **options})
    return upcycled


def write_upcycled(upcycled: Upcycled, path: Path, how: dict[str, Any]) -> None:
    """Writes an upcycled model as a run that has ended.

    Args:
        upcycled: What to write.
        path: A new or empty directory.
        how: From what and with which options, for the record.

    Raises:
        RunDirectoryError: It holds something, or cannot be written.
    """
    directory = RunDirectory.create(path)
    try:
        directory.write_config(upcycled.config)
        directory.write_tokenizer(upcycled.tokenizer)
        directory.write_weights(upcycled.model.state_dict())
        directory.write_result(_record(upcycled, how))
    finally:
        directory.close()


def _record(upcycled: Upcycled, how: dict[str, Any]) -> dict[str, Any]:
    described = describe(upcycled.config, upcycled.model)
    return {
        **untrained(upcycled.config, described, how["overrides"]),
        "upcycled": {**how, "receipt": upcycled.receipt.as_dict()},
    }

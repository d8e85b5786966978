"""``mlpkit export``: a run becomes a folder that plain transformers loads."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlpkit.cli.printing import print_json

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from mlpkit.convert.exporting import Exported

# What the record of an imported model keeps of its config.json.
FACTS = ("max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
EPILOG = """\
mlpkit export outputs/2026-01-01/12-00-00 hf/mine
python -c 'from transformers import pipeline; print(pipeline("text-generation", "hf/mine")("def "))'
"""


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="a run that has ended")
    parser.add_argument("out", metavar="HF_DIR", type=Path, help="the folder to write")
    parser.add_argument(
        "--no-verify", action="store_true", help="do not compare logits with transformers"
    )
    parser.add_argument(
        "--shard-size",
        type=positive,
        default=5.0,
        metavar="GB",
        help="the most gigabytes of weights in a file (default 5)",
    )
    parser.add_argument("--json", action="store_true", help="print the account as JSON")
    parser.set_defaults(run=run)


def positive(text: str) -> float:
    """Reads a number above 0; argparse reports what it refuses."""
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: give a number above 0")
    return float(text)


def run(options: argparse.Namespace) -> int:
    """Writes the folder and prints what became of every tensor, and the check."""
    # they import torch: the parser does without
    from mlpkit.convert.exporting import export_model
    from mlpkit.training.run_directory import load_config, read_result

    path = options.run_dir
    config, result = load_config(path), read_result(path)
    imported = result.get("imported") or {}
    tokenizer, eos = tokenizer_of(path, config, imported)
    facts = {
        "max_position_embeddings": config.training.sequence_length,
        **({} if eos is None else {"eos_token_id": eos, "pad_token_id": eos}),
        **{key: imported[key] for key in FACTS if key in imported},
    }
    exported = export_model(
        config,
        path,
        options.out,
        facts=facts,
        tokenizer=tokenizer,
        verify=not options.no_verify,
        shard_bytes=int(options.shard_size * 10**9),
    )
    report = account(exported, options.out, sorted(tokenizer))
    if options.json:
        print_json(report)
    else:
        print(text(report))
    return 0


def tokenizer_of(
    path: Path, config: DictConfig, imported: dict[str, Any]
) -> tuple[dict[str, bytes], int | None]:
    """The tokenizer's files of a run, and the id that ends a document.

    Args:
        path: The run directory.
        config: Its configuration.
        imported: What the record says of an imported model.
    """
    from mlpkit.convert.tokenizer_files import byte_tokenizer, copied_tokenizer
    from mlpkit.data import build_tokenizer
    from mlpkit.training.run_directory import TOKENIZER

    if (path / TOKENIZER).is_file():
        eos = build_tokenizer(str(path / TOKENIZER)).eos
        return copied_tokenizer(path, eos), eos
    if config.data.tokenizer == "bytes" and imported.get("tokenizer", True):
        return byte_tokenizer(), build_tokenizer("bytes").eos
    return {}, None  # its tokenizer is not with it: an imported model that had none


def account(exported: Exported, out: Path, tokenizer: list[str]) -> dict[str, Any]:
    """What was written, for people and programs."""
    return {
        "architecture": exported.architecture,
        "model_type": exported.family,
        "tensors": [
            {"ours": line["ours"], "theirs": line["theirs"], "tensors": line["tensors"]}
            for line in exported.matching.summary()
        ],
        "tokenizer": tokenizer,
        "largest_logit_difference": exported.difference,
        "not_verified": exported.unverified or None,
        "notes": list(exported.notes),
        "folder": str(out),
    }


def text(report: dict[str, Any]) -> str:
    """The account for people."""
    difference = report["largest_logit_difference"]
    checked = f"not compared with transformers: {report['not_verified']}"
    if difference is not None:
        checked = f"logits as transformers computes them, largest difference {difference:.2g}"
    written = sum(line["tensors"] for line in report["tensors"])
    lines = [
        f"class      {report['architecture']}",
        f"tensors    {written:,} written",
        f"tokenizer  {', '.join(report['tokenizer']) or 'none: the run has none with it'}",
        f"checked    {checked}",
        *(f"note       {note}" for note in report["notes"]),
        f"folder     {report['folder']}",
    ]
    return "\n".join(lines)

"""``mlpkit import``: a checkpoint of transformers or MiniMind becomes a run directory."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlpkit.cli.printing import print_json

if TYPE_CHECKING:
    from mlpkit.convert.importing import Imported

EPILOG = """\
mlpkit import Qwen3-0.6B runs/qwen3
mlpkit import minimind/out/full_sft_768.pth runs/minimind --tokenizer minimind/model
mlpkit generate runs/qwen3 --prompt "Once"           uses it
mlpkit train init_from=runs/qwen3 data=text …        goes on training it
"""


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "source",
        metavar="HF_DIR",
        type=Path,
        help="a folder with config.json and safetensors, or a .pth of MiniMind",
    )
    parser.add_argument("out", metavar="RUN", type=Path, help="the run directory to write")
    parser.add_argument(
        "--tokenizer", type=Path, help="a tokenizer.json or its folder (default: the source's own)"
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=("sliding_window", "unused"),
        help="import what differs from the original so, or has tensors without a place",
    )
    parser.add_argument("--json", action="store_true", help="print the account as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the run and prints where every tensor went."""
    # they import torch: the parser does without
    from mlpkit.convert.exporting import appearing
    from mlpkit.convert.importing import read_checkpoint
    from mlpkit.training.run_directory import TOKENIZER, WEIGHTS, RunDirectory

    out = options.out.expanduser()
    with appearing(out) as folder:
        found = read_checkpoint(options.source, allow=options.allow, tokenizer=options.tokenizer)
        if found.tokenizer:
            found.config.data.tokenizer = str(out.resolve() / TOKENIZER)
        found.write_weights(folder / WEIGHTS)
        found.copy_tokenizer(folder)
        directory = RunDirectory(folder)
        directory.write_config(found.config)
        directory.write_result(record(found, options.source))
    report = {**found.report(), "run": str(out)}
    if options.json:
        print_json(report)
    else:
        print("\n".join(lines(report)))
    return 0


def record(found: Imported, source: Path) -> dict[str, Any]:
    """The ``result.json`` of an imported model.

    Args:
        found: The checkpoint.
        source: Where it was.
    """
    from mlpkit.build import hollow_model  # see run
    from mlpkit.convert.matching import Vocabulary
    from mlpkit.describe import describe
    from mlpkit.training.preamble import untrained

    model = hollow_model(found.config, tokenizer=Vocabulary(found.config.model.vocab_size))
    return {
        **untrained(found.config, describe(found.config, model), found.overrides),
        "imported": {
            "from": str(source),
            "family": found.family.name,
            "tokenizer": bool(found.tokenizer),
            **found.facts,
        },
    }


def lines(report: dict[str, Any]) -> list[str]:
    """The account for people: what it is, and where every tensor went."""
    shown = [
        f"family     {report['family']}",
        f"as typed   {' '.join(report['overrides'])}",
        f"tensors    {sum(line['tensors'] for line in report['tensors']):,}",
    ]
    for line in report["tensors"]:
        arrow = f" → {line['ours']}" if line["ours"] else ""
        shown.append(f"  {line['tensors']:6,}  {line['theirs']}{arrow}  ({line['how']})")
    files = ", ".join(report["tokenizer"])
    missing = "none: generate reads and writes bytes; give one with --tokenizer PATH"
    return [*shown, f"tokenizer  {files or missing}", f"run        {report['run']}"]

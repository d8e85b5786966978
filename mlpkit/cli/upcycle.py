"""``mlpkit upcycle``: a run's dense FFNs become mixtures of copies or parts of themselves."""

from __future__ import annotations

import argparse
from pathlib import Path

from mlpkit.cli.printing import print_json

EPILOG = """\
mlpkit upcycle outputs/dense outputs/moe                       8 copies, 2 per token
mlpkit upcycle outputs/dense outputs/moe ffn=mixtral ffn.num_experts=4 --noise 0.01
mlpkit upcycle outputs/dense outputs/fine ffn.num_experts=16 ffn.num_experts_per_tok=4 --split 4
mlpkit train init_from=outputs/moe                             goes on from there
"""


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="a run with a dense model")
    parser.add_argument("out", metavar="OUT", type=Path, help="the run directory to write")
    parser.add_argument(
        "overrides", nargs="*", help="of ffn: ffn=PRESET ffn.num_experts=8 … (default ffn=moe)"
    )
    parser.add_argument(
        "--split", type=int, default=1, help="parts an FFN is cut into; 1: whole copies"
    )
    parser.add_argument(
        "--noise", type=float, default=0.0, help="added to the experts, in their own deviations"
    )
    parser.add_argument("--scale", type=float, help="times the router's weights (default: fits)")
    parser.add_argument("--layers", help="which layers, such as 2- or 0,3 (default: all)")
    parser.add_argument("--json", action="store_true", help="print the receipt as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the run and prints the receipt."""
    from mlpkit.training.surgery import upcycle  # imports torch: the parser does without

    upcycled = upcycle(
        options.run_dir,
        options.overrides,
        out=options.out,
        split=options.split,
        noise=options.noise,
        scale=options.scale,
        layers=options.layers,
    )
    if options.json:
        print_json(upcycled.receipt.as_dict())
    else:
        print(f"{upcycled.receipt}\nrun        {options.out}")
    return 0

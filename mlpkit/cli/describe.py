"""``mlpkit describe``: a model in numbers."""

from __future__ import annotations

import argparse
import json


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.add_argument("overrides", nargs="*", help="as for train, e.g. ffn=naive model=small")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the description."""
    from mlpkit.describe import describe  # imports torch: the parser does without

    description = describe(options.overrides)
    print(json.dumps(description.as_dict(), indent=2) if options.json else description)
    return 0

"""``mlpkit describe``: a model in numbers, or several side by side."""

from __future__ import annotations

import argparse

from mlpkit.cli.printing import print_json


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.add_argument(
        "overrides",
        nargs="*",
        help="as for train, e.g. ffn=naive model=small; ffn=naive,swiglu gives a column for each",
    )
    parser.add_argument("--json", action="store_true", help="print JSON; of several a list")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the description, or a table of several."""
    from mlpkit.describe import describe, side_by_side  # imports torch: the parser does without
    from mlpkit.sweep import checked_job, expand

    jobs = expand(options.overrides)
    found = [describe(checked_job(job).config) for job in jobs]
    if options.json:
        facts = [{"overrides": job, **d.as_dict()} for job, d in zip(jobs, found, strict=True)]
        shown = facts if len(jobs) > 1 else found[0].as_dict()
        print_json(shown)
    elif len(jobs) > 1:
        common = set.intersection(*map(set, jobs))
        titles = [" ".join(o for o in job if o not in common) for job in jobs]
        print(side_by_side(found, titles))
    else:
        print(found[0])
    return 0

"""``mlpkit report``: runs compared, as a page, figures and tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlpkit.registry import printable

if TYPE_CHECKING:
    from mlpkit.report.records import Comparison


class MissingReportError(ImportError):
    """Reports need an extra that is not installed."""

    exit_code = 2


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="a run, a folder that holds runs at any depth, or a sweep.json",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="the folder of the report (default: beside the sweep.json of one sweep, else report)",
    )
    parser.add_argument(
        "--lang", choices=("en", "zh"), default="en", help="in which language the page opens"
    )
    parser.add_argument(
        "--baseline", metavar="NAME", help="the variant or FFN to compare with (default swiglu)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the comparison as JSON and write nothing"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the report and says what it says, or prints it as JSON."""
    try:  # an extra, and slow to import: the parser does without
        from mlpkit.report.comparison import compare
        from mlpkit.report.provenance import sweep_commands
        from mlpkit.report.runs import find_runs
        from mlpkit.report.tables import to_json
        from mlpkit.report.writing import PAGE, write_files
    except ModuleNotFoundError as error:
        raise MissingReportError(
            f"reports need {error.name}, which is not installed; pip install 'mlpkit[report]'"
        ) from error
    compared = compare(find_runs(options.paths), baseline=options.baseline)
    if options.json:
        print(to_json(compared), end="")
        return 0
    out = options.out or default_folder(options.paths)
    write_files(compared, out, language=options.lang, sweeps=sweep_commands(options.paths))
    for line in said(compared, options.lang):
        print(line)
    print(f"wrote {out / PAGE}")
    if options.open:
        import webbrowser  # only here

        webbrowser.open((out / PAGE).resolve().as_uri())
    return 0


def said(compared: Comparison, lang: str) -> list[str]:
    """The verdict and the warnings of a comparison, a line each.

    Args:
        compared: What the runs say.
        lang: "en" or "zh".
    """
    from mlpkit.report.words import sentence  # see run

    lines = [sentence(statement, lang) for statement in compared.verdict]
    lines += [f"! {sentence(statement, lang)}" for statement in compared.warnings]
    return [printable(line.replace("\n", " ")) for line in lines]  # a name may hold a line's end


def default_folder(paths: Sequence[Path]) -> Path:
    """Where a report goes when nobody says.

    Args:
        paths: What it is about.

    Returns:
        The folder of the sweep.json, if the paths are one sweep; else ``report``.
    """
    sweeps = [
        path for path in paths if path.name == "sweep.json" or (path / "sweep.json").is_file()
    ]
    if len(sweeps) == len(paths) == 1:
        return sweeps[0].parent if sweeps[0].name == "sweep.json" else sweeps[0]
    return Path("report")

"""``mlpkit bench``: speed side by side with peers, on this machine."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from mlpkit.cli.allocator import keep_freed_memory

PACKAGE = "mlpkit.benchmarks"
SOURCES = Path(__file__).parents[2] / "benchmarks"  # in a checkout; a wheel has it inside mlpkit
PARTS = ("ffn", "moe", "steps", "generation", "startup", "memory", "growth", "backends")


class BenchmarksMissingError(ImportError):
    """An installation without the benchmarks."""

    exit_code = 2


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"one or more of {', '.join(PARTS)}; default: all but backends",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument(
        "--rounds", type=int, default=10, help="undisturbed measurements of each (default 10)"
    )
    parser.add_argument(
        "--budget", type=float, default=20.0, help="seconds for a case (default 20)"
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's choice)")
    parser.add_argument(
        "--keep-memory", action="store_true", help="all keep what they free, as training may"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything here")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the ratios: an .svg")
    parser.set_defaults(run=run, error=parser.error)


def run(options: argparse.Namespace) -> int:
    """Runs the parts and prints them as they come."""
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        options.error(f"unknown part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    if options.figure is not None and options.figure.suffix != ".svg":
        options.error(f"--figure {options.figure} is written as SVG; let its name end in .svg")
    for path in (options.json, options.figure):
        if path is not None and not path.absolute().parent.is_dir():
            options.error(f"the folder of {path} does not exist; make it first")
    # torch's profiler, which counts memory, tells of itself on standard error; read when loaded.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    benchmarks = load()
    import torch  # takes a second: the parser does without

    if options.keep_memory and not keep_freed_memory():
        options.error("--keep-memory needs glibc; leave it out here")
    if options.threads:
        torch.set_num_threads(options.threads)
    effort = importlib.import_module(f"{PACKAGE}.cases").Effort(
        quick=options.quick,
        rounds=1 if options.quick else options.rounds,
        budget=1.0 if options.quick else options.budget,
    )
    running = importlib.import_module(f"{benchmarks.__name__}.running")
    running.run(options.parts, effort, json_path=options.json, figure=options.figure, say=said)
    return 0


def said(line: str) -> None:
    """Prints a line at once, also into a pipe: a run takes long."""
    print(line, flush=True)


def load() -> ModuleType:
    """The benchmarks as a package of mlpkit, wherever they lie.

    Raises:
        BenchmarksMissingError: They are neither installed nor beside the sources.
    """
    if PACKAGE in sys.modules:
        return sys.modules[PACKAGE]
    try:
        return importlib.import_module(PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:
            raise
    where = SOURCES / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        PACKAGE, where, submodule_search_locations=[str(SOURCES)]
    )
    if spec is None or spec.loader is None or not where.is_file():
        raise BenchmarksMissingError(
            f"the benchmarks are not installed and {SOURCES} does not exist; reinstall mlpkit"
        )
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    return package

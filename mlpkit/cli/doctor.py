"""``mlpkit doctor``: what this installation is and whether it works, to paste into a report."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from mlpkit import __version__
from mlpkit.cli.plugins import row_of, shadowed_presets
from mlpkit.cli.printing import print_json
from mlpkit.plugins import load_environment
from mlpkit.registry import printable

PACKAGES = (
    *("torch", "hydra-core", "omegaconf", "pluggy", "einops", "numpy", "safetensors", "rich"),
    *("matplotlib", "pandas", "tokenizers", "transformers", "hydra-joblib-launcher"),
    "hydra-submitit-launcher",
)
CHECKED = (("activation", "silu"), ("ffn", "swiglu"), ("router", "topk"), ("backend", "auto"))
Facts = dict[str, str]


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints every section; 3 where a plugin failed, else 1 where a section or check did."""
    sections: dict[str, Callable[[], Facts]] = {
        "versions": versions,
        "environment": environment,
        "computing": computing,
        "plugins": plugins,
        "data": data,
        "self-check": self_check,
    }
    found = {name: asked(section) for name, section in sections.items()}
    if options.json:
        print_json(found)
    else:
        for name, facts in found.items():
            print(printable("\n".join(lines(name, facts))))
    if any(status.state == "failed" for status in load_environment().statuses):
        return 3
    wrong = [v for facts in found.values() for v in facts.values() if v.startswith("failed: ")]
    return 1 if wrong else 0


def asked(section: Callable[[], Facts]) -> Facts:
    """A section's facts; one that fails, on whatever is broken here, says so and ends nothing."""
    try:
        return section()
    except Exception as error:
        return {"section": f"failed: {type(error).__name__}: {error}"}


def lines(name: str, facts: Facts) -> list[str]:
    """A section as lines of text."""
    return [f"{name}:", *(f"  {key:<24} {value}" for key, value in facts.items())]


def versions() -> Facts:
    """mlpkit, Python, the system and the packages that matter."""
    found = {
        "mlpkit": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": platform.platform(),
    }
    return found | {name: installed(name) for name in PACKAGES}


def installed(name: str) -> str:
    """The version of a distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def environment() -> Facts:
    """The variables that change what mlpkit does."""
    names = [n for n in sorted(os.environ) if n.startswith(("MLPKIT_", "HYDRA_"))]
    return {name: os.environ[name] for name in names} or {"variables": "none of MLPKIT_*, HYDRA_*"}


def computing() -> Facts:
    """Device and number format that training would choose, with the reason."""
    import torch

    from mlpkit.training.precision import choose_precision

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "chosen": str(choose_precision("auto", "auto")),
        "GPUs": ", ".join(gpus) or "none that torch finds",
        "CPU threads": str(torch.get_num_threads()),
    }


def plugins() -> Facts:
    """What became of each plugin."""
    loaded = load_environment()
    found = {}
    for row in map(row_of, loaded.statuses):
        told = row["reason"] or f"{len(row['provides'])} entries"
        distribution = f"{row['distribution']} {row['version']}".strip()
        found[row["name"]] = f"{row['state']}: {distribution}: {told}"
    for number, line in enumerate(shadowed_presets(loaded.statuses), start=1):
        found[f"note {number}"] = line
    return found


def data() -> Facts:
    """The default data source and where token caches lie."""
    from mlpkit.data.cache import default_cache_dir
    from mlpkit.data.sources import PyStdlib

    sizes = [len(document.text) for document in PyStdlib().documents()]
    cache = default_cache_dir()
    caches = [path.parent for path in cache.glob("*/meta.json")]
    held = sum(file.stat().st_size for folder in caches for file in folder.iterdir())
    return {
        "pystdlib": f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB",
        "token caches": f"{len(caches)} in {cache}, {held / 1e6:.1f} MB",
    }


def self_check() -> Facts:
    """The conformance kit on what the default model and a mixture are made of."""
    from mlpkit.testing import run_checks

    found = {}
    for kind, name in CHECKED:
        results = run_checks(kind, name)
        failed = [f"{r.check} ({r.reason})" for r in results if r.state == "failed"]
        good = f"ok: {len(results)} checks"
        found[f"{kind} {name}"] = f"failed: {'; '.join(failed)}" if failed else good
    return found

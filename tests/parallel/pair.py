"""One of several processes: runs the cases it is told to, and writes down how each ended."""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from cases import CASES

from mlpkit.configs.run import ParallelConfig
from mlpkit.parallel import ranks, start


def main(out: Path, names: list[str]) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    here = ranks()
    results: dict[str, str] = {}
    with start(ParallelConfig(timeout=60), torch.device("cpu")) as parallel:
        for name in names or [n for n in CASES if not n.startswith(("slow_", "four_"))]:
            try:
                CASES[name](here)
                results[name] = "ok"
            except BaseException:
                results[name] = traceback.format_exc()
            (out / f"{here.rank}.json").write_text(json.dumps(results))
            if parallel.max(float(results[name] != "ok")):
                break  # the others may be somewhere else by now


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

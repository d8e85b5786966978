"""Finding and reading run directories, also half-finished, damaged and lost ones; no torch."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from mlpkit.compose.untrusted import (
    LARGEST,
    LARGEST_CONFIG,
    SAFE_LOADER,
    require_plain_file,
    require_plain_yaml,
)
from mlpkit.report.records import Run

STATUSES = ("ok", "running", "failed", "stopped")  # what a run says of itself
JOB = re.compile(r"\w[\w.-]{0,99}", re.ASCII)  # a plain name, which leads nowhere else
LOG_LINES = 30  # of a log that are kept: enough for a traceback


class NoRunsError(LookupError):
    """A path that holds nothing to report on."""

    exit_code = 2


def find_runs(paths: Iterable[str | Path] | str | Path) -> list[Run]:
    """All runs in some places, each once, whatever state they are in.

    Args:
        paths: Run directories, folders that hold runs at any depth, and sweeps: a sweep.json or its
            folder, of which each listed job is one run, begun or not.

    Returns:
        The runs, sorted within a folder by name, in a sweep as listed.

    Raises:
        NoRunsError: A path does not exist, or there is no run in any of them.
    """
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    found: dict[Path, Run] = {}
    for path in given:
        if not path.exists():
            raise NoRunsError(
                f"{path} does not exist; give a run directory, a folder or sweep.json"
            )
        for run in _runs_of(path):
            found.setdefault(run.path.resolve(), run)
    if not found:
        asked = ", ".join(str(path) for path in given) or "no path"
        raise NoRunsError(f"no run in {asked}: a run is a directory with a result.json")
    return _with_unique_ids(list(found.values()))


def read_run(path: Path) -> Run:
    """Reads a run directory; what cannot be read is named in ``problems``.

    Args:
        path: A directory.
    """
    files = _Files(path)
    result = files.read("result.json", json.loads, {})
    if not result and not files.problems:
        files.problems.append("result.json is missing or empty")
    status = _status(path, result, files.problems)
    overrides, tail = result.get("overrides"), result.get("log_tail")
    if not tail and status != "ok":
        tail = files.read("log.txt", lambda text: text.splitlines()[-LOG_LINES:], [])
    steps = files.read("metrics.jsonl", lambda text: _steps(text, files.problems), ())
    if status == "ok" and not steps and "metrics.jsonl" not in " ".join(files.problems):
        files.problems.append("metrics.jsonl is missing or empty")
    return Run(
        path=path,
        id=path.resolve().name,
        status=status,
        config=files.read("config.yaml", _config, {}, largest=LARGEST_CONFIG),
        overrides=tuple(map(str, overrides)) if isinstance(overrides, list) else (),
        result=result,
        steps=steps,
        sample=files.read("sample.txt", str, "") or None,
        mixture=files.read("mixture.json", json.loads, {}) or None,
        error=str(result["error"]) if result.get("error") else None,
        log_tail=tuple(map(str, tail)) if isinstance(tail, list) else (),
        problems=tuple(files.problems),
    )


class _Files:
    """The files of a run directory, and what was wrong with them.

    Args:
        path: The directory.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.problems = path, list[str]()

    def read(
        self, name: str, parse: Callable[[str], Any], otherwise: Any, *, largest: int = LARGEST
    ) -> Any:
        """A parsed file, or ``otherwise`` if it is missing, damaged or of another type."""
        try:
            require_plain_file(self.path / name, largest=largest)
            value = parse((self.path / name).read_text(errors="replace"))
        except FileNotFoundError:
            return otherwise
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            self.problems.append(f"{name} cannot be read: {lines[0]}")
            return otherwise
        if not isinstance(value, type(otherwise)):
            found, wanted = type(value).__name__, type(otherwise).__name__
            self.problems.append(f"{name} holds a {found}, not a {wanted}")
            return otherwise
        return value


def _config(text: str) -> Any:
    """A configuration as it stands in its file: no alias lets a few bytes become all memory."""
    require_plain_yaml(text)
    return yaml.load(text, SAFE_LOADER) or {}


def _runs_of(path: Path) -> Iterator[Run]:
    """The runs of one given path."""
    if path.is_file():
        if path.name != "sweep.json":
            path = path.parent  # a result.json, say
        else:
            yield from _jobs(path)
            return
    if (path / "sweep.json").is_file() and not _is_run(path):
        yield from _jobs(path / "sweep.json")
    else:
        yield from _walk(path)


def _walk(folder: Path) -> Iterator[Run]:
    """The runs at or below a folder; a run holds no other runs."""
    if _is_run(folder):
        yield read_run(folder)
        return
    try:
        children = sorted(child for child in folder.iterdir() if child.name[0] != ".")
        for child in children:
            # a link may lead in a circle, so that only a link to a run itself is followed
            if child.is_dir() and (_is_run(child) or not child.is_symlink()):
                yield from _walk(child)
    except OSError as error:
        said = f"cannot be listed: {error.strerror or error}"
        yield Run(path=folder, id=folder.name, status="broken", problems=(said,))


def _is_run(folder: Path) -> bool:
    try:
        return (folder / "result.json").exists() or (folder / "metrics.jsonl").exists()
    except OSError:
        return False


def _jobs(path: Path) -> Iterator[Run]:
    """The jobs that a sweep.json lists; they lie two folders above it."""
    root = path.resolve().parent.parent.parent
    try:
        jobs = [
            (str(job["id"]), [str(o) for o in job.get("overrides", ())])
            for job in json.loads(path.read_text(errors="replace"))["jobs"]
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        said = f"sweep.json cannot be read: {type(error).__name__}: {error}"
        yield Run(path=path.parent, id=path.parent.name, status="broken", problems=(said,))
        return
    for given, overrides in jobs:
        name = Path(given).name
        if not JOB.fullmatch(name):
            said = f"sweep.json names the job {given[:40]!r}, which is no id of a job"
            yield Run(path=path.parent, id=path.parent.name, status="broken", problems=(said,))
            continue
        folder = root / name
        if _is_run(folder):
            yield read_run(folder)
        else:
            begun = "has no result.json" if folder.exists() else "has not begun"
            yield Run(
                path=folder,
                id=folder.name,
                status="missing",
                overrides=tuple(overrides),
                problems=(f"the job {begun}",),
            )


def _status(path: Path, result: Mapping[str, Any], problems: list[str]) -> str:
    status = result.get("status")
    if status not in STATUSES:
        if result:
            problems.append(f"result.json has the status {status!r}")
        return "broken"
    if status == "running" and not _is_running(path, result.get("pid")):
        return "lost"
    if status == "ok" and not isinstance(result.get("metrics"), dict):
        problems.append("result.json says ok and has no metrics")
        return "broken"
    return str(status)


def _is_running(path: Path, pid: Any) -> bool:
    """Whether the process of a run goes on."""
    if not isinstance(pid, int) or pid <= 0:  # to the system, 0 and below are whole groups
        return False
    # training imports torch, which takes seconds: only a run that says "running" pays for it
    from mlpkit.training.run_directory.reading import is_running

    return is_running(path, pid)


def _steps(text: str, problems: list[str]) -> tuple[Mapping[str, Any], ...]:
    """The lines of metrics.jsonl; of two about the same step the later one counts."""
    lines, damaged, rows = text.splitlines(), [], []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
        elif line.strip():
            damaged.append(number)
    if damaged:
        which = ", ".join(map(str, damaged[:3])) + (" …" if damaged[3:] else "")
        problems.append(f"metrics.jsonl: {len(damaged)} of {len(lines)} lines damaged ({which})")
    return tuple(_without_repeated(rows))


def _without_repeated(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What a stopped run did after the checkpoint it was resumed from was done again: drop it."""
    kept: list[Mapping[str, Any]] = []
    for row in rows:
        kind = "val_loss" in row
        if any(r["step"] > row["step"] or ("val_loss" in r) == kind for r in _since(kept, row)):
            del kept[len(kept) - len(_since(kept, row)) :]
        kept.append(row)
    return kept


def _since(rows: list[Mapping[str, Any]], row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The last lines that are not before a step."""
    start = len(rows)
    while start and rows[start - 1]["step"] >= row["step"]:
        start -= 1
    return rows[start:]


def _with_unique_ids(runs: Sequence[Run]) -> list[Run]:
    """Names that are there several times get the names of their folders in front."""
    depth, named = 1, list(runs)
    while max(Counter(run.id for run in named).values()) > 1 and depth < 20:
        depth += 1
        counts = Counter(run.id for run in named)
        named = [
            replace(run, id="/".join(run.path.resolve().parts[-depth:]))
            if counts[run.id] > 1
            else run
            for run in named
        ]
    return named

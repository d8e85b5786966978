"""Running the checks: results, expected failures, one call per kind, and pytest."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from mlpkit.build import ffn_options
from mlpkit.build.parts import refuse_unknown
from mlpkit.plugins import PluginError, PluginStatus, load_once, registries
from mlpkit.plugins.loading import normalised
from mlpkit.registry import UnknownNameError, suggestion
from mlpkit.schema import option_parameters
from mlpkit.specs import FFNSpec, resolve
from mlpkit.testing import activation, backend, balance, data, ffn, router
from mlpkit.testing.subjects import Check, Subject, title

KINDS: dict[str, Any] = {
    "activation": activation,
    "ffn": ffn,
    "router": router,
    "balance": balance,
    "backend": backend,
    "data": data,
}


class ConformanceError(AssertionError):
    """An entry that breaks its contract; the message has a line for each check that failed."""


class ExpectationError(ValueError):
    """An expected failure of a check that there is not."""

    exit_code = 2


class Result(NamedTuple):
    """What became of one check.

    Args:
        kind: The entry's extension point.
        name: The entry's name.
        check: The check's title.
        state: "ok", "failed", or "expected" for a failure that was declared.
        reason: Why it failed, or why that is expected.
    """

    kind: str
    name: str
    check: str
    state: str
    reason: str = ""


class Case(NamedTuple):
    """One check of one entry, ready to be called.

    Args:
        subject: The entry.
        check: The check.
        expected: Why it may fail; empty if it may not.
    """

    subject: Subject
    check: Check
    expected: str = ""

    def __call__(self) -> None:
        """Runs the check; whatever it raises is the failure."""
        self.check(self.subject)

    def __str__(self) -> str:
        return f"{self.subject.spec.name}-{title(self.check).replace(' ', '_')}"


def cases(
    kind: str, name: str, *, expected: Mapping[str, str] | None = None, **options: Any
) -> list[Case]:
    """The checks that apply to an entry.

    Args:
        kind: Its extension point.
        name: Its name or alias.
        expected: Title of a check to the reason why it fails.
        options: Options to build it with; for FFNs and routers also ``hidden_size``.

    Raises:
        UnknownNameError: There is no such entry.
        ExpectationError: A title that no check of this entry has.
        BuildError: An option that the entry does not have.
    """
    subject = KINDS[kind].subject(name, **options)
    if subject.options:
        refuse_options(subject)
    reasons = dict(expected or {})
    found = [
        Case(subject, check, reasons.pop(title(check), ""))
        for check in KINDS[kind].checks(subject.spec)
    ]
    if reasons:
        wrong, titles = next(iter(reasons)), [title(case.check) for case in found]
        raise ExpectationError(
            f"{kind} {name!r} has no check {wrong!r}{suggestion(wrong, titles)} "
            f"(checks: {', '.join(titles)})"
        )
    return found


def refuse_options(subject: Subject) -> None:
    """Refuses an option that the entry does not have: once, not as the failure of every check.

    Raises:
        BuildError: There is one.
    """
    target = resolve(subject.spec.target)
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(target).parameters.values()):
        return
    known = list(option_parameters(subject.noun, target))
    if isinstance(subject.spec, FFNSpec):
        known = ffn_options(subject.spec)
    refuse_unknown(subject.noun, subject.spec.name, subject.options, known)


def run_case(case: Case) -> Result:
    """The result of one check; an expected failure that does not fail is a failure too."""
    subject = case.subject
    done = (subject.noun, subject.spec.name, title(case.check))
    try:
        case()
    except Exception as error:  # the entry is a stranger's code
        text = f"{type(error).__name__}: {error}" if not _is_own(error) else str(error)
        if case.expected:
            return Result(*done, "expected", case.expected)
        return Result(*done, "failed", first_lines(text))
    if case.expected:
        return Result(*done, "failed", f"it passes; do not expect it to fail ({case.expected})")
    return Result(*done, "ok")


def run_checks(kind: str, name: str, **options: Any) -> list[Result]:
    """Every check of an entry, whatever fails; arguments as for ``cases``."""
    return [run_case(case) for case in cases(kind, name, **options)]


def subjects_of(name: str, kind: str | None = None) -> list[tuple[str, str]]:
    """The entries that a name means, as (kind, name).

    Args:
        name: An entry's name or alias, or a distribution, local module or file: all it provides.
        kind: Where to look; None: in every extension point.

    Raises:
        UnknownNameError: Neither an entry nor a plugin has the name.
        PluginError: The plugin that has it failed.
    """
    by_noun = registries().by_noun()
    nouns = [kind] if kind else list(by_noun)
    found = [(noun, by_noun[noun].get(name).name) for noun in nouns if name in by_noun[noun]]
    if not found and not kind:
        entries = (e.partition(":")[::2] for row in plugins_of(name) for e in row.provides)
        found = [(noun, entry) for noun, entry in entries if noun in by_noun]
    if not found:
        known = [n for noun in nouns for n in by_noun[noun].names()]
        raise UnknownNameError(
            f"unknown {kind or 'entry or distribution'} {name!r}{suggestion(name, known)}; "
            "`mlpkit list` shows the entries and `mlpkit plugins` the distributions"
        )
    return found


def plugins_of(name: str) -> list[PluginStatus]:
    """The plugins of a distribution's, entry point's, module's or file's name.

    Raises:
        PluginError: One of them failed.
    """
    rows = [
        status
        for status in load_once().statuses
        if normalised(name) in map(normalised, (status.provider.distribution, status.name))
    ]
    for status in rows:
        if status.state == "failed":
            raise PluginError(f"plugin {status.name!r} failed: {status.reason}")
    return rows


def run_plugin(name: str, **options: Any) -> list[Result]:
    """Every check of everything that a distribution provides, and of how it is declared.

    Args:
        name: The distribution, or an entry's name: then of that entry alone.
        options: As for ``cases``.
    """
    pairs = subjects_of(name)
    results = [r for kind, entry in pairs for r in run_checks(kind, entry, **options)]
    if any(name in registries().by_noun()[kind] for kind, _ in pairs):
        return results
    # a local file declares and computes in one place, and may import torch
    modules = {s.target.partition(":")[0] for s in plugins_of(name) if s.provider.entry_point}
    return [*results, *(imports_no_torch(module) for module in sorted(modules))]


def conformance(
    *names: str, kind: str | None = None, expected: Mapping[str, str] | None = None, **options: Any
) -> Callable[[Any], Any]:
    """A pytest parametrisation over every check: the test takes ``check`` and calls it.

    Args:
        names: Entries, or distributions (everything they provide).
        kind: Their extension point, where a name is in several.
        expected: Title of a check to the reason why it fails; it then must.
        options: Options to build the entries with.
    """
    import pytest  # the only part that needs it

    found = [
        case
        for name in names
        for noun, entry in subjects_of(name, kind)
        for case in cases(noun, entry, expected=expected, **options)
    ]
    parameters = [
        pytest.param(
            case,
            id=str(case),
            marks=[pytest.mark.xfail(reason=case.expected, strict=True)] if case.expected else [],
        )
        for case in found
    ]
    return pytest.mark.parametrize("check", parameters)


def imports_no_torch(module: str) -> Result:
    """Whether a plugin's module can be imported without torch, in a process of its own.

    Args:
        module: Its name.
    """
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import {module}; "
        "sys.exit('it imports torch' if 'torch' in sys.modules else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    done = ("plugin", module, "importing it imports no torch")
    if ended.returncode:
        return Result(*done, "failed", ended.stderr.strip().splitlines()[-1])
    return Result(*done, "ok")


def checked(kind: str, name: str, options: Mapping[str, Any]) -> list[Result]:
    """Every check of an entry.

    Raises:
        ConformanceError: One failed that was not expected to.
    """
    results = run_checks(kind, name, **options)
    complain(results)
    return results


def complain(results: Iterable[Result]) -> None:
    """Raises for what failed.

    Raises:
        ConformanceError: Something did; the message has a line for each.
    """
    failed = [f"{r.kind} {r.name!r}, {r.check}: {r.reason}" for r in results if r.state == "failed"]
    if failed:
        raise ConformanceError("\n".join(failed))


def first_lines(text: str, limit: int = 300) -> str:
    """The beginning of a message, on one line."""
    short = " ".join(text.split())
    return short if len(short) <= limit else f"{short[:limit]} …"


def _is_own(error: Exception) -> bool:
    return type(error) is AssertionError

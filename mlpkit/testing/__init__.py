"""The conformance kit: one call, or one pytest parametrisation, checks an entry's contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlpkit.testing.running import (
    ConformanceError,
    ExpectationError,
    Result,
    cases,
    checked,
    complain,
    conformance,
    imports_no_torch,
    run_case,
    run_checks,
    run_plugin,
    subjects_of,
)
from mlpkit.testing.subjects import Subject, must

__all__ = [
    "ConformanceError",
    "ExpectationError",
    "Result",
    "Subject",
    "cases",
    "check_activation",
    "check_backend",
    "check_balance",
    "check_data",
    "check_ffn",
    "check_plugin",
    "check_router",
    "complain",
    "conformance",
    "imports_no_torch",
    "must",
    "run_case",
    "run_checks",
    "run_plugin",
    "subjects_of",
]

Expected = Mapping[str, str] | None


def check_activation(name: str, *, expected: Expected = None, **options: Any) -> list[Result]:
    """Checks a registered activation.

    Args:
        name: Its name.
        expected: Title of a check to the reason why it fails; it then must.
        options: Its options; ``hidden_size`` is the number of features it is checked with.

    Returns:
        A result per check.

    Raises:
        ConformanceError: It breaks its contract.
    """
    return checked("activation", name, {"expected": expected, **options})


def check_ffn(name: str, *, expected: Expected = None, **options: Any) -> list[Result]:
    """Checks a registered FFN, also as an expert; as ``check_activation``."""
    return checked("ffn", name, {"expected": expected, **options})


def check_router(name: str, *, expected: Expected = None, **options: Any) -> list[Result]:
    """Checks a registered router, also in a MoE; as ``check_activation``."""
    return checked("router", name, {"expected": expected, **options})


def check_balance(name: str, *, expected: Expected = None, **options: Any) -> list[Result]:
    """Checks a registered balance term or bias rule; as ``check_activation``."""
    return checked("balance", name, {"expected": expected, **options})


def check_backend(name: str, *, expected: Expected = None, **options: Any) -> list[Result]:
    """Checks a registered backend against the loop; as ``check_activation``."""
    return checked("backend", name, {"expected": expected, **options})


def check_data(name: str, *, expected: Expected = None, **options: Any) -> list[Result]:
    """Checks a registered data source; as ``check_activation``, without sizes."""
    return checked("data", name, {"expected": expected, **options})


def check_plugin(name: str) -> list[Result]:
    """Checks everything that a distribution or local plugin provides, and how it is declared.

    Args:
        name: The distribution, entry point, module or file.

    Raises:
        ConformanceError: Something breaks its contract.
    """
    results = run_plugin(name)
    complain(results)
    return results

"""Checks of a data source."""

from __future__ import annotations

from itertools import islice
from typing import Any

from mlpkit.data import Document
from mlpkit.specs import DataSpec, resolve
from mlpkit.testing.subjects import Check, Subject, must, spec_of

LOOKED_AT = 1000  # documents


def subject(name: str, **options: Any) -> Subject:
    """A data source under test."""
    spec = spec_of("data", name)
    return Subject(
        noun="data",
        spec=spec,
        make=lambda: resolve(spec.target)(**options),
        options=options,
    )


def checks(spec: DataSpec) -> tuple[Check, ...]:
    """The checks that apply."""
    return documents_are_named_bytes, documents_come_in_the_same_order, the_fingerprint_is_stable


def some(subject: Subject) -> list[Document]:
    """The first documents of a new instance."""
    return list(islice(subject.make().documents(), LOOKED_AT))


def documents_are_named_bytes(subject: Subject) -> None:
    """Each name once, none that depends on the machine, and bytes."""
    documents = some(subject)
    must(documents, "it has no documents")
    for name, text in documents:
        must(isinstance(name, str) and name, f"a document's name is {name!r}")
        must(not name.startswith(("/", "~")) and ".." not in name, f"{name!r} is no relative path")
        must(isinstance(text, bytes), f"the text of {name!r} is {type(text).__name__}, not bytes")
    names = [name for name, _ in documents]
    must(len(set(names)) == len(names), "two documents have one name")


def documents_come_in_the_same_order(subject: Subject) -> None:
    """Asked twice, and asked of another instance."""
    source = subject.make()
    twice = [list(islice(source.documents(), LOOKED_AT)) for _ in range(2)]
    must(twice[0] == twice[1], "asked again it gives other documents")
    must(twice[0] == some(subject), "another instance gives other documents")


def the_fingerprint_is_stable(subject: Subject) -> None:
    """One text, for every instance the same."""
    first, second = subject.make().fingerprint(), subject.make().fingerprint()
    must(isinstance(first, str) and first, f"the fingerprint is {first!r}")
    must(first == second, f"the fingerprint is {first!r}, then {second!r}")

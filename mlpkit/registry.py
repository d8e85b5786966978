"""The registries: names to specs, with suggestions, wildcards and who provided what; no torch."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from mlpkit.specs import Spec

MOST_NAMES = 30  # that a message spells out
NAME = re.compile(r"[a-z][a-z0-9_]*\Z")

S = TypeVar("S", bound=Spec)


class UnknownNameError(LookupError):
    """A name that no entry has; the message suggests the nearest one."""

    exit_code = 2


class RegistrationError(ValueError):
    """An entry that cannot be registered: a bad name, or one that is taken."""

    exit_code = 3


@dataclass(frozen=True)
class Provider:
    """Who brought an entry: a distribution with its version, or a local module.

    Args:
        distribution: The distribution's name, or the module or file of a local plugin.
        version: Its version; empty for a local plugin.
        entry_point: The entry point's name in the group ``mlpkit.plugins``; empty if none.
    """

    distribution: str
    version: str = ""
    entry_point: str = ""

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".strip()


def suggestion(name: str, known: Iterable[str]) -> str:
    """The nearest known name as "; did you mean 'x'?", or nothing when none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def printable(text: str) -> str:
    """Text that is safe on a terminal.

    Names and messages come from plugins' metadata, from files and from models: nothing in them may
    move the cursor, colour the terminal or turn the direction of writing.
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def names_text(names: Sequence[str], noun: str) -> str:
    """An extension point's names for a message; where they are many, how to see them."""
    if len(names) > MOST_NAMES:
        return f"{len(names)} names; mlpkit list {noun} shows them"
    return ", ".join(names)


@dataclass
class Registry(Generic[S]):
    """The entries of one extension point.

    Args:
        noun: The extension point's one word, e.g. ``"ffn"``.
    """

    noun: str
    _entries: dict[str, tuple[S, Provider]] = field(default_factory=dict)
    _aliases: dict[str, str] = field(default_factory=dict)

    def add(self, specs: Iterable[S], provider: Provider) -> None:
        """Registers specs: all of them, or none when one cannot be.

        Args:
            specs: The entries.
            provider: Who brings them.

        Raises:
            RegistrationError: A name is malformed or taken; both providers are named.
        """
        entries, aliases = dict(self._entries), dict(self._aliases)
        for spec in specs:
            for name in (spec.name, *spec.aliases):
                if not NAME.match(name):
                    raise RegistrationError(
                        f"{self.noun} {name!r} from {provider}: a name is lower case letters, "
                        "digits and underscores and starts with a letter"
                    )
                owner = aliases.get(name, name)
                if owner in entries:
                    raise RegistrationError(
                        f"{self.noun} {name!r} is offered by both {entries[owner][1]} and "
                        f"{provider}; rename one of them or block one plugin with "
                        "MLPKIT_PLUGINS_BLOCK"
                    )
            entries[spec.name] = (spec, provider)
            aliases.update(dict.fromkeys(spec.aliases, spec.name))
        self._entries, self._aliases = entries, aliases

    def remove(self, name: str) -> None:
        """Takes an entry out, with its aliases.

        Raises:
            UnknownNameError: No entry has the name.
        """
        spec = self.get(name)
        del self._entries[spec.name]
        self._aliases = {a: owner for a, owner in self._aliases.items() if owner != spec.name}

    def get(self, name: str) -> S:
        """The spec of a name or alias.

        Raises:
            UnknownNameError: No entry has the name; the nearest one is suggested.
        """
        return self._lookup(name)[0]

    def provider(self, name: str) -> Provider:
        """Who brought the entry of a name or alias.

        Raises:
            UnknownNameError: No entry has the name.
        """
        return self._lookup(name)[1]

    def list(self, pattern: str = "*") -> Sequence[S]:
        """The specs whose name or alias matches a shell wildcard, sorted by name."""
        return [
            spec
            for name, (spec, _) in sorted(self._entries.items())
            if any(fnmatchcase(n, pattern) for n in (name, *spec.aliases))
        ]

    def names(self) -> Sequence[str]:
        """All registered names, sorted, without aliases."""
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._aliases

    def copy(self) -> Registry[S]:
        """An independent copy: what is added to it leaves this one as it is."""
        return Registry(self.noun, dict(self._entries), dict(self._aliases))

    def _lookup(self, name: str) -> tuple[S, Provider]:
        if name not in self:
            hint = suggestion(str(name), [*self._entries, *self._aliases])
            known = names_text(self.names(), self.noun)
            raise UnknownNameError(f"unknown {self.noun} {name!r}{hint} (registered: {known})")
        return self._entries[self._aliases.get(name, name)]

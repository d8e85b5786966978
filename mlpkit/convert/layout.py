"""The layouts of weights: how other projects name and fold what our state dict holds, both ways."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import final

import torch
from torch import Tensor

Fetch = Callable[[str], Tensor]


class Step(ABC):
    """One lossless change of a few tensors: ``inward`` is towards our layout.

    ``inward`` and ``outward`` undo each other bit for bit; on meta tensors they are arithmetic
    of shapes, which is how sizes are checked before anything is read. Both are told how many
    tensors must come out.
    """

    words = ""

    @abstractmethod
    def inward(self, tensors: Sequence[Tensor], parts: int) -> list[Tensor]:
        """Theirs to ours."""

    @abstractmethod
    def outward(self, tensors: Sequence[Tensor], parts: int) -> list[Tensor]:
        """Ours to theirs."""


@final
@dataclass(frozen=True)
class Stack(Step):
    """One tensor for each expert becomes one with E in front."""

    words = "stacked"

    def inward(self, tensors: Sequence[Tensor], parts: int) -> list[Tensor]:
        """E tensors to one (E, …)."""
        return [torch.stack(list(tensors))]

    def outward(self, tensors: Sequence[Tensor], parts: int) -> list[Tensor]:
        """One (E, …) to E tensors."""
        (stack,) = tensors
        return list(stack.unbind(0))


@final
@dataclass(frozen=True)
class Split(Step):
    """One tensor holds several behind each other, as [gate; up] does.

    Args:
        dim: The axis they share.
    """

    dim: int
    words = "split"

    def inward(self, tensors: Sequence[Tensor], parts: int) -> list[Tensor]:
        """One tensor to its parts."""
        (whole,) = tensors
        _divisible(whole, self.dim, parts)
        return list(whole.chunk(parts, self.dim))

    def outward(self, tensors: Sequence[Tensor], parts: int) -> list[Tensor]:
        """The parts to one tensor."""
        return [torch.cat(list(tensors), self.dim)]


@final
@dataclass(frozen=True)
class Join(Step):
    """Several tensors become one: n shared experts are one FFN of n times the width.

    Args:
        dim: The axis they are put behind each other on.
    """

    dim: int
    words = "joined"

    def inward(self, tensors: Sequence[Tensor], parts: int) -> list[Tensor]:
        """The parts to one tensor."""
        return Split(self.dim).outward(tensors, parts)

    def outward(self, tensors: Sequence[Tensor], parts: int) -> list[Tensor]:
        """One tensor to its parts."""
        return Split(self.dim).inward(tensors, parts)


@final
@dataclass(frozen=True)
class Interleaved(Step):
    """One tensor holds two whose entries alternate on an axis, as in GPT-OSS.

    Args:
        dim: That axis.
    """

    dim: int
    words = "taken apart"

    def inward(self, tensors: Sequence[Tensor], parts: int) -> list[Tensor]:
        """One tensor to the even entries and the odd ones."""
        (mixed,) = tensors
        _divisible(mixed, self.dim, 2)
        before, after = mixed.shape[: self.dim], mixed.shape[self.dim + 1 :]
        pairs = mixed.reshape(*before, mixed.shape[self.dim] // 2, 2, *after)
        return list(pairs.unbind(self.dim + 1))

    def outward(self, tensors: Sequence[Tensor], parts: int) -> list[Tensor]:
        """The even and the odd entries to one tensor."""
        pairs = torch.stack(list(tensors), self.dim + 1)
        return [pairs.flatten(self.dim, self.dim + 1)]


@final
@dataclass(frozen=True)
class Transposed(Step):
    """Each tensor has its last two axes the other way round."""

    words = "transposed"

    def inward(self, tensors: Sequence[Tensor], parts: int) -> list[Tensor]:
        """Swaps the last two axes."""
        return [tensor.transpose(-1, -2) for tensor in tensors]

    def outward(self, tensors: Sequence[Tensor], parts: int) -> list[Tensor]:
        """Swaps the last two axes."""
        return self.inward(tensors, parts)


class LayoutError(ValueError):
    """Tensors that do not have the form which their layout says."""

    exit_code = 4


def _divisible(tensor: Tensor, dim: int, parts: int) -> None:
    if tensor.dim() <= dim or not parts or tensor.shape[dim] % parts:
        raise LayoutError(
            f"a tensor of shape {tuple(tensor.shape)} cannot be taken apart into {parts} on axis "
            f"{dim}; the checkpoint has another layout than its family"
        )


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which of their tensors are which of ours; names may hold ``{e}`` and ``{s}``.

    Args:
        theirs: Their names; ``{e}`` stands for each expert, ``{s}`` for each shared one.
        ours: Our names.
        steps: From theirs to ours.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    steps: tuple[Step, ...] = ()

    def moved(self, theirs: str, ours: str) -> Rule:
        """The rule with these words in front of its names."""
        return replace(
            self,
            theirs=tuple(theirs + name for name in self.theirs),
            ours=tuple(ours + name for name in self.ours),
        )

    def move(self, counts: Mapping[str, int]) -> Rule:
        """The rule with names written out.

        Args:
            counts: ``e`` and ``s``: how many there are.
        """
        names = [n for name in self.theirs for n in _written_out(name, counts)]
        ours = [n for name in self.ours for n in _written_out(name, counts)]
        return replace(self, theirs=tuple(names), ours=tuple(ours))

    def read(self, fetch: Fetch) -> dict[str, Tensor]:
        """Our tensors, made of theirs.

        Args:
            fetch: Gives one of their tensors by its name.

        Raises:
            LayoutError: They have another form.
        """
        return self._through(fetch, self.theirs, self.ours, inward=True)

    def write(self, fetch: Fetch) -> dict[str, Tensor]:
        """Their tensors, made of ours.

        Args:
            fetch: Gives one of our tensors by its name.
        """
        return self._through(fetch, self.ours, self.theirs, inward=False)

    def _through(
        self, fetch: Fetch, names: Sequence[str], wanted: Sequence[str], *, inward: bool
    ) -> dict[str, Tensor]:
        tensors = [fetch(name) for name in names]
        for step in self.steps if inward else self.steps[::-1]:
            change = step.inward if inward else step.outward
            try:
                tensors = change(tensors, len(wanted))
            except (RuntimeError, IndexError) as error:  # torch's, for shapes that do not fit
                shown = ", ".join(names[:2]) + (" …" if len(names) > 2 else "")
                raise LayoutError(f"{shown}: {str(error).splitlines()[0]}") from error
        if len(tensors) != len(wanted):
            raise LayoutError(
                f"{names[0]}: {len(tensors)} tensors came out of the layout, and {len(wanted)} "
                "were expected"
            )
        return dict(zip(wanted, tensors, strict=True))


def _written_out(name: str, counts: Mapping[str, int]) -> Iterator[str]:
    """A name for each expert that it stands for."""
    letters = [letter for letter in ("e", "s") if f"{{{letter}}}" in name]
    for numbers in product(*(range(counts[letter]) for letter in letters)):
        yield name.format(**dict(zip(letters, numbers, strict=True)))


def same(theirs: str, ours: str | None = None) -> Rule:
    """One tensor that is ours as it is."""
    return Rule(theirs=(theirs,), ours=(theirs if ours is None else ours,))


def count_numbered(names: Sequence[str], template: str) -> int:
    """How many there are of ``…{e}…``: one more than the largest number that a name has there.

    Args:
        names: The names of a checkpoint.
        template: A name with ``{e}`` in it, all else written out.
    """
    pattern = re.compile(re.escape(template).replace(re.escape("{e}"), "([0-9]{1,6})") + r"\Z")
    found = (pattern.match(name) for name in names)
    return max((int(match.group(1)) + 1 for match in found if match), default=0)

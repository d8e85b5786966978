"""Which of their tensors become which of ours: every one accounted for, every shape checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from mlpkit.build import hollow_model
from mlpkit.convert.families import Family
from mlpkit.convert.folders import WeightsError
from mlpkit.convert.layout import LayoutError, Rule
from mlpkit.convert.names import BESIDE, EMBEDDING, HEAD, OUTSIDE
from mlpkit.convert.sources import Source
from mlpkit.data import Tokenizer, Tokens

# What some checkpoints carry along and no model reads: the angles of rotary positions.
CARRIED = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|freqs_cos|freqs_sin|masked_bias)\Z")
SHOWN = 5


class Vocabulary(Tokenizer):
    """Stands for a tokenizer where only its size matters.

    Args:
        vocab_size: Ids are below it.
    """

    def __init__(self, vocab_size: int) -> None:
        self.name, self.vocab_size, self.eos = "none", vocab_size, None

    def tokenize(self, text: bytes) -> Tokens:
        """Nothing can be read with it."""
        raise NotImplementedError("a vocabulary alone reads no text")

    def decode(self, ids: Iterable[int]) -> bytes:
        """Nothing can be written with it."""
        raise NotImplementedError("a vocabulary alone writes no text")

    def fingerprint(self) -> str:
        """Its size."""
        return f"none-{self.vocab_size}"


@dataclass(frozen=True, kw_only=True)
class Matching:
    """How a checkpoint's tensors become a model's.

    Args:
        moves: The rules, names written out, in the order of the layers.
        tied: Copies of the embedding under the head's name, which the model does not hold twice.
        unused: What the model has no place for.
    """

    moves: tuple[Rule, ...]
    tied: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def summary(self) -> list[dict[str, Any]]:
        """A line for each kind of tensor: names with ``*`` for numbers, how, and how many."""
        found: dict[tuple[str, str, str], int] = {}
        for move in self.moves:
            how = " and ".join(step.words for step in move.steps) or "as it is"
            line = (_starred(move.theirs), _starred(move.ours), how)
            found[line] = found.get(line, 0) + len(move.theirs)
        for names, how in ((self.tied, "the embedding again"), (self.unused, "unused")):
            for name in names:
                line = (_starred([name]), "", how)
                found[line] = found.get(line, 0) + 1
        return [
            {"theirs": theirs, "ours": ours, "how": how, "tensors": number}
            for (theirs, ours, how), number in found.items()
        ]


def _starred(names: Sequence[str]) -> str:
    shown = dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in names)
    return ", ".join(shown)


def shapes_of(config: DictConfig, vocab_size: int) -> dict[str, Tensor]:
    """A model's state dict without its memory.

    Args:
        config: Its configuration.
        vocab_size: Rows of its embedding.
    """
    return dict(hollow_model(config, tokenizer=Vocabulary(vocab_size)).state_dict())


def rules_of(family: Family, num_layers: int) -> list[Rule]:
    """A family's rules for a whole model, with each layer's place in their names and in ours."""
    found = list(OUTSIDE)
    for layer in range(num_layers):
        theirs, ours = f"model.layers.{layer}.", f"layers.{layer}."
        found += [rule.moved(theirs, ours) for rule in (*BESIDE, *family.rules)]
    return found


def match(
    family: Family, model: Mapping[str, Tensor], source: Source, counts: Mapping[str, int]
) -> Matching:
    """Finds their tensor or tensors for each of a model's.

    Args:
        family: The family of the checkpoint.
        model: The model's state dict, on any device.
        source: The checkpoint.
        counts: ``s``: how many shared experts there are.

    Raises:
        WeightsError: One is missing, or has another shape.
    """
    layers = 1 + max((int(n.split(".")[1]) for n in model if n.startswith("layers.")), default=-1)
    rules = rules_of(family, layers)
    moves = choose(rules, model, counts, source)
    missing = uncovered(model, moves)
    if missing:
        theirs = _expected(rules, missing[0], model, counts)
        raise WeightsError(
            f"{source.label} has no {theirs} for {missing[0]}"
            + (f" (and {len(missing) - 1} more are missing)" if missing[1:] else "")
            + ": its configuration and its weights are of different models, or a file is missing"
        )
    for move in moves:
        check_shapes(move, model, source)
    taken = {name for move in moves for name in move.theirs}
    left = [name for name in source.entries if name not in taken]
    tied = tuple(n for n in left if n == HEAD and HEAD not in model and same_bits(source))
    return Matching(
        moves=tuple(moves), tied=tied, unused=tuple(name for name in left if name not in tied)
    )


def choose(
    rules: Sequence[Rule],
    model: Mapping[str, Tensor],
    counts: Mapping[str, int],
    source: Source | None = None,
) -> list[Rule]:
    """The first rule that can be used for each of a model's tensors, names written out.

    Args:
        rules: The rules.
        model: The model's state dict.
        counts: ``s``: how many shared experts there are.
        source: A checkpoint, which must have the tensors of a rule; None: any rule can be used.
    """
    moves, covered = [], set()
    for rule in rules:
        if rule.ours[0] not in model or rule.ours[0] in covered:
            continue
        move = rule.move({"s": 1, **counts, "e": model[rule.ours[0]].shape[0]})
        if source is None or source.entries.keys() >= {*move.theirs}:
            moves.append(move)
            covered |= {*move.ours}
    return moves


def uncovered(model: Mapping[str, Tensor], moves: Sequence[Rule]) -> list[str]:
    """The names in a model's state dict that no rule gives a value."""
    return sorted(model.keys() - {name for move in moves for name in move.ours})


def _expected(
    rules: Sequence[Rule], ours: str, model: Mapping[str, Tensor], counts: Mapping[str, int]
) -> str:
    """What a checkpoint of the family calls a tensor of ours, or how many of it."""
    for rule in rules:
        if ours in rule.ours:
            names = rule.move({"s": 1, **counts, "e": model[ours].shape[0]}).theirs
            return names[0] if len(names) == 1 else f"{names[0]} … ({len(names)} of them)"
    return "tensor"


def check_shapes(move: Rule, model: Mapping[str, Tensor], source: Source) -> None:
    """Checks a rule's result before anything is read.

    Raises:
        WeightsError: A shape is not the model's.
    """
    first = source.entries[move.theirs[0]]
    try:
        found = move.read(lambda name: source.entries[name].meta())
    except LayoutError as error:
        raise WeightsError(f"{first.where}: {error}") from error
    for ours, tensor in found.items():
        if tensor.shape != model[ours].shape:
            shown = move.theirs[0] if len(move.theirs) == 1 else f"{move.theirs[0]} …"
            raise WeightsError(
                f"{first.where}: {shown} has the shape {first.shape} and becomes "
                f"{tuple(tensor.shape)}; its configuration says {tuple(model[ours].shape)} ({ours})"
            )


def same_bits(source: Source) -> bool:
    """Whether a tied head is the embedding again.

    Raises:
        WeightsError: It is another matrix, and the configuration says that it is the same.
    """
    head, embedding = source.get(HEAD), source.get(EMBEDDING)
    if head.shape != embedding.shape or not head.equal(embedding):
        raise WeightsError(
            f"{source.label}: tie_word_embeddings is true, and {HEAD} is not {EMBEDDING}; set it "
            "to false in its config.json if the head is a matrix of its own"
        )
    return True

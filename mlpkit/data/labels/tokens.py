"""The categories of validation tokens, from those of the bytes of their source; no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlpkit.data.cache import Dataset
from mlpkit.data.labels.python import python_labels
from mlpkit.data.labels.text import CATEGORIES, END, WHITE, Labels, text_labels
from mlpkit.data.packing import pieces
from mlpkit.data.sources import DataError, Document
from mlpkit.data.split import divide

WHOLE_BYTES = 8 * 2**20  # a longer document is labelled piece by piece


class LabelsError(DataError):
    """Validation text whose tokens cannot be labelled."""


class TokenLabels(NamedTuple):
    """Tokens and the category of each.

    Args:
        categories: The names; a label is an index into them. The last is "end".
        labels: One label a token, (N,).
    """

    categories: tuple[str, ...]
    labels: Labels


def validation_labels(dataset: Dataset, *, num_tokens: int | None = None) -> TokenLabels:
    """The category of each of the first validation tokens.

    The documents are read again from the source and tokenized as they were for the cache; the
    tokens must be the same, so that each label is that of its own bytes. A source with a method
    ``labels(document)``, one index into its ``categories`` for each byte, labels its own text;
    else ``label_document`` does.

    A token has the category that most of its bytes have, white space counting only in a token of
    nothing else (the earlier of ``CATEGORIES`` if two are equal). A token without bytes is "end"
    if it ends a document, else what the next token is.

    Args:
        dataset: The tokens, with their source.
        num_tokens: How many, from the first; None: all.

    Raises:
        LabelsError: The source is not known, is no longer what the tokens were made from, or
            labels its text wrongly.
    """
    source = dataset.source
    if source is None:
        raise LabelsError("the tokens cannot be labelled: their source is unknown; use load_data")
    names = tuple(getattr(source, "categories", CATEGORIES))
    wanted = len(dataset.val) if num_tokens is None else min(num_tokens, len(dataset.val))
    labels = np.empty(wanted, np.uint8)
    found = 0
    for ids, kinds in _labelled_pieces(dataset, names):
        end = min(found + len(ids), wanted)
        if not np.array_equal(ids[: end - found], dataset.val[found:end]):
            break
        labels[found:end] = kinds[: end - found]
        found = end
        if found == wanted:
            return TokenLabels((*names, END), labels)
    raise LabelsError(
        f"validation token {found} is another one in the source than in the cache; the text of "
        f"{dataset.meta.source} has changed since the run began, label a run that is made now"
    )


def label_document(document: Document) -> Labels:
    """The category of each byte: of Python source if the name ends in .py or .pyi, else of text.

    Args:
        document: The document.

    Returns:
        Indices into ``CATEGORIES``, one a byte.
    """
    is_python = document.name.endswith((".py", ".pyi"))
    return python_labels(document.text) if is_python else text_labels(document.text)


def token_labels(labels: Labels, num_bytes: npt.NDArray[Any], names: tuple[str, ...]) -> Labels:
    """The category of tokens from those of their bytes; the rule is that of validation_labels.

    Args:
        labels: One label a byte, (M,).
        num_bytes: The bytes of each token, (N,); they sum to M.
        names: What the labels mean.

    Returns:
        One label a token, (N,).
    """
    if (num_bytes == 1).all():
        return labels
    white = np.array([name in WHITE for name in names])
    owner = np.repeat(np.arange(len(num_bytes)), num_bytes)
    votes = np.zeros((len(num_bytes), len(names)), np.int64)
    np.add.at(votes, (owner, labels), np.where(white[labels], 1, 2**32))  # never outvoted
    kinds: Labels = votes.argmax(1).astype(np.uint8)
    filled = np.flatnonzero(num_bytes)
    if not len(filled):
        return np.full(len(num_bytes), names.index("other") if "other" in names else 0, np.uint8)
    after = np.minimum(np.searchsorted(filled, np.arange(len(num_bytes))), len(filled) - 1)
    return kinds[filled[after]]


def _labelled_pieces(
    dataset: Dataset, names: tuple[str, ...]
) -> Iterator[tuple[npt.NDArray[np.int64], Labels]]:
    """Ids and labels of the validation text, piece by piece as the cache was written."""
    meta, tokenizer, source = dataset.meta, dataset.tokenizer, dataset.source
    assert source is not None, "asked by validation_labels alone"
    for document in source.documents():
        text = divide(document, meta.split, meta.val_fraction).val
        if not text:
            continue
        own = hasattr(source, "labels")
        whole = own or len(document.text) <= WHOLE_BYTES
        # The whole document, of which a tail alone might start inside a string.
        labels = _checked(source, document, names) if whole else None
        start = len(document.text) - len(text)
        for piece in pieces(text):
            ids, num_bytes = tokenizer.tokenize(piece)
            if labels is None:
                part = label_document(Document(document.name, piece))
            else:
                part = labels[start : start + len(piece)]
            start += len(piece)
            if len(ids):
                yield ids, token_labels(part, num_bytes, names)
        if tokenizer.eos is not None:
            yield np.array([tokenizer.eos]), np.array([len(names)], np.uint8)


def _checked(source: Any, document: Document, names: tuple[str, ...]) -> Labels:
    if not hasattr(source, "labels"):
        return label_document(document)
    where = f"data source {type(source).__name__}: labels of {document.name!r}"
    try:
        labels = np.asarray(source.labels(document))
    except Exception as error:  # a stranger's code, at the end of a training that went well
        raise LabelsError(f"{where} failed: {type(error).__name__}: {error}") from error
    if labels.shape != (len(document.text),) or labels.dtype.kind not in "iu":
        raise LabelsError(
            f"{where} are {labels.dtype} of shape {labels.shape}; give one integer for each of "
            f"its {len(document.text)} bytes"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < len(names):
        raise LabelsError(
            f"{where} go from {labels.min()} to {labels.max()}; there are {len(names)} categories"
        )
    return labels.astype(np.uint8)

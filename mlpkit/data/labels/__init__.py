"""Categories of text: what kind of thing each byte, and each validation token, is; no torch."""

from mlpkit.data.labels.python import python_labels
from mlpkit.data.labels.text import CATEGORIES, END, Labels, text_labels
from mlpkit.data.labels.tokens import (
    LabelsError,
    TokenLabels,
    label_document,
    token_labels,
    validation_labels,
)

__all__ = [
    "CATEGORIES",
    "END",
    "Labels",
    "LabelsError",
    "TokenLabels",
    "label_document",
    "python_labels",
    "text_labels",
    "token_labels",
    "validation_labels",
]

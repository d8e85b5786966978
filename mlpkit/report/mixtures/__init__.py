"""What the experts of compared runs do: findings, tables, figures, and their part of the page."""

from mlpkit.report.mixtures.findings import Specialist, specialists
from mlpkit.report.mixtures.page import section_files, section_markup
from mlpkit.report.mixtures.section import (
    Figure,
    MixtureSection,
    MixtureVariant,
    Table,
    mixture_section,
)

__all__ = [
    "Figure",
    "MixtureSection",
    "MixtureVariant",
    "Specialist",
    "Table",
    "mixture_section",
    "section_files",
    "section_markup",
    "specialists",
]

"""What a report is made of, as frozen records: runs, variants, estimates, rows, a comparison."""

from mlpkit.report.records.comparison import Comparison, Group, Row
from mlpkit.report.records.numbers import Difference, Estimate, Noise, Noisiest, Verdict
from mlpkit.report.records.runs import Axis, Run, Statement, Variant

__all__ = [
    "Axis",
    "Comparison",
    "Difference",
    "Estimate",
    "Group",
    "Noise",
    "Noisiest",
    "Row",
    "Run",
    "Statement",
    "Variant",
    "Verdict",
]

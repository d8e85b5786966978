"""What mlpkit-coverage adds to mlpkit; no torch."""

from mlpkit.hookspecs import hookimpl
from mlpkit.specs import BalanceSpec


@hookimpl
def mlpkit_balances():
    """Yields the term."""
    yield BalanceSpec(
        name="coverage",
        target="mlpkit_coverage.term:Coverage",
        summary="entropy that the experts' mean score lacks: 0 is even, log E one expert alone",
        paper="Chen 2022, arXiv:2212.08066",
        formula="log E + Σ_e P_e · log P_e, P the mean score",
    )

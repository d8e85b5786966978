"""mlpkit-coverage keeps the contract of a balance term."""

from mlpkit.testing import conformance


@conformance("mlpkit-coverage")
def test_an_entry_keeps_its_contract(check):
    """Everything that the distribution provides."""
    check()

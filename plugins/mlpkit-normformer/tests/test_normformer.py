"""mlpkit-normformer keeps the contract of an FFN, also as an expert."""

from mlpkit.testing import conformance


@conformance("mlpkit-normformer")
def test_an_entry_keeps_its_contract(check):
    """Everything that the distribution provides."""
    check()

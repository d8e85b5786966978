"""mlpkit-demo keeps the contracts of mlpkit; run it with the plugin installed."""

from mlpkit.testing import conformance, imports_no_torch


@conformance("mlpkit-demo")
def test_an_entry_keeps_its_contract(check):
    """Everything that the distribution provides."""
    check()


def test_the_plugin_is_declared_without_torch():
    """So that `mlpkit list` stays fast."""
    assert imports_no_torch("mlpkit_demo").state == "ok"

"""mlpkit-cosine: the contract of a router, and its preset."""

from mlpkit import compose
from mlpkit.testing import conformance


@conformance("mlpkit-cosine")
def test_an_entry_keeps_its_contract(check):
    """Everything that the distribution provides."""
    check()


def test_the_preset_is_a_choice():
    """Beside those that ship."""
    config = compose(["ffn=moe", "ffn/router=cosine_sharp"])
    assert (config.ffn.router.name, config.ffn.router.temperature) == ("cosine", 0.05)

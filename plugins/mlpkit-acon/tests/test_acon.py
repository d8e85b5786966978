"""mlpkit-acon: its contract, and what the paper says of it."""

import torch
from torch.nn import functional as F

from mlpkit import build_activation
from mlpkit.testing import conformance


@conformance("mlpkit-acon")
def test_an_entry_keeps_its_contract(check):
    """Everything that the distribution provides."""
    check()


def test_it_starts_as_silu():
    """With p1 = 1, p2 = 0 and beta = 1."""
    x = torch.linspace(-4, 4, 9)
    torch.testing.assert_close(build_activation("acon")(x), F.silu(x))

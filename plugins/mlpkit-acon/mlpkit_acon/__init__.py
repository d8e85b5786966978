"""What mlpkit-acon adds to mlpkit; no torch."""

from mlpkit import ActivationSpec, hookimpl


@hookimpl
def mlpkit_activations():
    """Yields ACON-C."""
    yield ActivationSpec(
        name="acon",
        target="mlpkit_acon.acon:Acon",
        summary="learns how far to activate: from linear to the larger of two lines",
        formula="d·x·sigmoid(beta·d·x) + p2·x, d = p1 - p2",
        paper="Ma 2020, arXiv:2009.04759",
        parameters=("p1", "p2", "beta"),
    )

"""What mlpkit-demo adds to mlpkit: specs only, so that listing them loads no torch."""

from collections.abc import Iterable

from mlpkit import ActivationSpec, FFNSpec, hookimpl

MLPKIT_API = (1, 0)  # the version of the hooks that this was written for


@hookimpl
def mlpkit_activations() -> Iterable[ActivationSpec]:
    """Yields the activation."""
    yield ActivationSpec(
        name="demo_act",
        target="mlpkit_demo.activation:demo_act",
        summary="x times its own tanh",
        formula="x · tanh(sharpness · x)",
        range="[0, ∞)",
    )


@hookimpl
def mlpkit_ffns() -> Iterable[FFNSpec]:
    """Yields the FFN."""
    yield FFNSpec(
        name="demo",
        target="mlpkit_demo.ffn:Demo",
        summary="two matrices with an activation and a learned scale in between",
        default_activation="demo_act",
    )

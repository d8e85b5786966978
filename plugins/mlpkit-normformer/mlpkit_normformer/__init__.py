"""What mlpkit-normformer adds to mlpkit; no torch."""

from mlpkit import FFNSpec, hookimpl


@hookimpl
def mlpkit_ffns():
    """Yields the NormFormer FFN."""
    yield FFNSpec(
        name="normformer",
        target="mlpkit_normformer.ffn:NormFormerFFN",
        summary="the naive FFN with a LayerNorm after its activation",
        paper="Shleifer 2021, arXiv:2110.09456",
        default_activation="gelu",
    )

"""What mlpkit-cosine adds to mlpkit; no torch."""

from pathlib import Path

from mlpkit.hookspecs import hookimpl
from mlpkit.specs import RouterSpec


@hookimpl
def mlpkit_routers():
    """Yields the router."""
    yield RouterSpec(
        name="cosine",
        target="mlpkit_cosine.router:CosineRouter",
        summary="top-k of the angle between a token and each expert's direction",
        paper="Chi 2022, arXiv:2204.09179",
        formula="p = softmax(cos(x, W_e) / temperature); i = topk(p); w = p[i]",
    )


@hookimpl
def mlpkit_presets():
    """Yields the folder with ffn/router/cosine_sharp.yaml."""
    yield Path(__file__).parent / "conf"

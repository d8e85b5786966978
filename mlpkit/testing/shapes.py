"""Checks of what maps (..., H) to (..., H): activations and FFNs."""

from __future__ import annotations

import torch

from mlpkit.testing.subjects import Check, Subject, close, must

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def shape_and_dtype_are_those_of_the_input(subject: Subject) -> None:
    """In float64, float32 and bfloat16, with none, one and two leading dimensions."""
    exact = subject.build()(subject.rows(2, 3))
    for dtype in DTYPES:
        module = subject.build(dtype=dtype)
        for leading in ((), (5,), (2, 3)):
            x = subject.rows(*leading, dtype=dtype)
            out = module(x)
            must(out.shape == x.shape, f"{tuple(x.shape)} gives {tuple(out.shape)}")
            must(out.dtype == dtype, f"{dtype} gives {out.dtype}")
            must(out.isfinite().all(), f"not finite in {dtype}")
        if dtype == torch.float32:
            close(out, exact, "float32 against float64", 1e-4)


def an_empty_input_gives_an_empty_output(subject: Subject) -> None:
    """No tokens, with a backward."""
    module = subject.build()
    for leading in ((0,), (2, 0)):
        x = subject.rows(*leading).requires_grad_()
        out = module(x)
        must(out.shape == x.shape, f"{tuple(x.shape)} gives {tuple(out.shape)}")
        if out.requires_grad:
            out.sum().backward()


def strides_do_not_matter(subject: Subject) -> None:
    """A transposed and an expanded input give what their contiguous copies give."""
    module = subject.build()
    turned = subject.rows(4, 3).transpose(0, 1)
    spread = subject.rows(1).expand(4, -1)
    wide = subject.rows(3, 2).flatten(1)[:, 1 : 1 + subject.hidden_size]
    for x in (turned, spread, wide):
        close(module(x), module(x.contiguous()), f"strides {x.stride()}")


SHAPE_CHECKS: tuple[Check, ...] = (
    shape_and_dtype_are_those_of_the_input,
    an_empty_input_gives_an_empty_output,
    strides_do_not_matter,
)

"""Layouts of weights, there and back: no bit is lost, and meta tensors do the arithmetic."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mlpkit.convert.families import FAMILIES
from mlpkit.convert.layout import (
    Interleaved,
    Join,
    LayoutError,
    Rule,
    Split,
    Stack,
    Transposed,
    count_numbered,
)

DTYPES = st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64])
SIZES = st.integers(1, 5)


def bits(tensor: Tensor) -> bytes:
    """A tensor's bytes: NaN equals itself there, and -0 is not 0."""
    return (
        tensor.numpy().tobytes()
        if tensor.dtype != torch.bfloat16
        else bits(tensor.view(torch.int16))
    )


def random_bits(seed: int, dtype: torch.dtype, *shape: int) -> Tensor:
    """Any bit patterns, NaN and infinity among them."""
    size = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(256, (size,), generator=torch.Generator().manual_seed(seed))
    return raw.to(torch.uint8).view(dtype).view(shape)


# A layout, and the shapes of theirs for E experts of width I at H.
CHAINS = {
    "listed": (lambda e: Rule(theirs=("t{e}",), ours=("a",), steps=(Stack(),)), "e*(i,h)"),
    "split": (lambda e: Rule(theirs=("t",), ours=("a", "b"), steps=(Split(1),)), "(e,2i,h)"),
    "up first": (lambda e: Rule(theirs=("t",), ours=("b", "a"), steps=(Split(1),)), "(e,2i,h)"),
    "interleaved": (
        lambda e: Rule(theirs=("t",), ours=("a", "b"), steps=(Transposed(), Interleaved(1))),
        "(e,h,2i)",
    ),
    "transposed": (lambda e: Rule(theirs=("t",), ours=("a",), steps=(Transposed(),)), "(e,h,i)"),
    "joined": (lambda e: Rule(theirs=("t{s}",), ours=("a",), steps=(Join(1),)), "s*(i,h)"),
}


def shapes(form: str, e: int, i: int, h: int) -> list[tuple[int, ...]]:
    return {
        "e*(i,h)": [(i, h)] * e,
        "s*(i,h)": [(i, h)] * 3,
        "(e,2i,h)": [(e, 2 * i, h)],
        "(e,h,2i)": [(e, h, 2 * i)],
        "(e,h,i)": [(e, h, i)],
    }[form]


@pytest.mark.parametrize("chain", CHAINS)
@settings(max_examples=25, deadline=None)
@given(e=SIZES, i=SIZES, h=SIZES, dtype=DTYPES, seed=st.integers(0, 2**31))
def test_a_layout_is_lossless_both_ways(chain, e, i, h, dtype, seed):
    make, form = CHAINS[chain]
    move = make(e).move({"e": e, "s": 3})
    theirs = {
        name: random_bits(seed + n, dtype, *shape)
        for n, (name, shape) in enumerate(zip(move.theirs, shapes(form, e, i, h), strict=True))
    }
    ours = move.read(theirs.__getitem__)
    assert sum(t.numel() for t in ours.values()) == sum(t.numel() for t in theirs.values())
    back = move.write(ours.__getitem__)
    assert {n: bits(t) for n, t in back.items()} == {n: bits(t) for n, t in theirs.items()}
    there = move.read(back.__getitem__)
    assert {n: bits(t) for n, t in there.items()} == {n: bits(t) for n, t in ours.items()}
    meta = move.read(lambda name: theirs[name].to("meta"))
    assert {n: t.shape for n, t in meta.items()} == {n: t.shape for n, t in ours.items()}


def test_each_step_puts_numbers_where_they_belong():
    t = torch.arange(12.0).view(1, 4, 3)  # one expert, rows 0 to 3
    rows = [t[0, row].tolist() for row in range(4)]
    gate, up = Split(1).inward([t], 2)
    assert (gate[0].tolist(), up[0].tolist()) == (rows[:2], rows[2:])
    gate, up = Interleaved(1).inward([t], 2)
    assert (gate[0].tolist(), up[0].tolist()) == ([rows[0], rows[2]], [rows[1], rows[3]])
    (turned,) = Transposed().inward([t], 1)
    assert turned[0, :, 1].tolist() == rows[1]
    (stacked,) = Stack().inward([t[0], -t[0]], 1)
    assert stacked[1].equal(-t[0])
    (joined,) = Join(1).inward([t[0], -t[0]], 1)
    assert joined[0].tolist() == rows[0] + [-x for x in rows[0]]


@pytest.mark.parametrize(
    ("steps", "ours", "shape"),
    [
        ((Split(1),), ("a", "b"), (2, 3, 4)),
        ((Interleaved(1),), ("a", "b"), (2, 3, 4)),
        ((Split(1),), ("a", "b"), (4,)),
        ((Transposed(),), ("a",), (4,)),
        ((Transposed(),), ("a", "b"), (4, 4)),
    ],
)
def test_a_tensor_of_another_form_is_a_layout_error(steps, ours, shape):
    rule = Rule(theirs=("t",), ours=ours, steps=steps)
    with pytest.raises(LayoutError):
        rule.read(lambda name: torch.zeros(shape))


def test_experts_of_different_shapes_do_not_stack():
    rule = Rule(theirs=("t{e}",), ours=("a",), steps=(Stack(),)).move({"e": 2})
    with pytest.raises(LayoutError, match="t0, t1"):
        rule.read(lambda name: torch.zeros(2, 1 + int(name[1])))


def test_names_are_written_out_and_counted():
    rule = Rule(theirs=("x.{e}.w",), ours=("y.w",)).moved("3.", "l.").move({"e": 2})
    assert (rule.theirs, rule.ours) == (("3.x.0.w", "3.x.1.w"), ("l.y.w",))
    names = ["m.0.w", "m.1.w", "m.10.w", "m.10.v", "n.40.w", "m.1000000000.w"]
    assert count_numbered(names, "m.{e}.w") == 11
    assert count_numbered(names, "q.{e}.w") == 0


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_no_family_gives_two_meanings_to_one_name(family):
    """The same tensor of theirs twice in the rules must mean the same."""
    meaning: dict[tuple[str, ...], set] = {}
    for rule in family.rules:
        meaning.setdefault(rule.theirs, set()).add((rule.ours, rule.steps))
    assert all(len(found) == 1 for found in meaning.values())

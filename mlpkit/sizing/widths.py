"""Widths of FFNs: an explicit number, or a rule of the hidden size, with its steps in words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

LARGEST = 2**31 - 1  # of a size: torch has no words for products of larger ones
MULTIPLE = 64  # widths are rounded up to it: odd widths run slower on every matrix engine
LLAMA = re.compile(r"llama(:(?P<multiplier>\d+(\.\d+)?)(:(?P<multiple>\d+))?)?\Z")
LLAMA_FORM = "llama[:multiplier[:multiple]]"
LLAMA_MULTIPLE = 256  # Llama's own default of multiple_of


class WidthError(ValueError):
    """A width that is neither a positive number nor the name of a rule."""

    exit_code = 2


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below the value."""
    return -(-value // multiple) * multiple


def width_two_thirds(hidden_size: int) -> int:
    """8/3·H up to a multiple of 64: a gated FFN with the parameters of a naive 4·H one."""
    return round_up(8 * hidden_size // 3, MULTIPLE)


def width_four(hidden_size: int) -> int:
    """4·H, the naive FFN's width (Vaswani 2017, arXiv:1706.03762)."""
    return 4 * hidden_size


def width_pi(hidden_size: int) -> int:
    """π·H up to a multiple of 64, MiniMind's newer rule: 768 → 2432."""
    return round_up(math.ceil(hidden_size * math.pi), MULTIPLE)


def width_llama(
    hidden_size: int, *, multiplier: float | None = None, multiple: int = LLAMA_MULTIPLE
) -> int:
    """Llama's rule (Touvron 2023, arXiv:2302.13971): 4096 → 11008, and 14336 with 1.3 and 1024.

    Args:
        hidden_size: H.
        multiplier: ``ffn_dim_multiplier``, above 0, on the whole part of 8/3·H; None: none.
        multiple: ``multiple_of``, at least 1, that the result is rounded up to.
    """
    width = 8 * hidden_size // 3
    if multiplier is not None:
        width = int(multiplier * width)  # Llama cuts here, and so the width is Llama's
    return round_up(width, multiple)


WIDTH_RULES: dict[str, Callable[[int], int]] = {
    "8/3": width_two_thirds,
    "4x": width_four,
    "pi": width_pi,
}
# the product of a rule, in words and in numbers, and what it is rounded up to
PRODUCTS: dict[str, tuple[str, Fraction | float, int]] = {
    "8/3": ("8/3", Fraction(8, 3), MULTIPLE),
    "4x": ("4", 4, 1),
    "pi": ("π", math.pi, MULTIPLE),
}


def resolve_width(value: int | str | None, hidden_size: int, rule: str) -> int:
    """The intermediate size that an option means.

    Args:
        value: An explicit width, at most 2**31 - 1, always kept; the name of a rule ("8/3", "4x",
            "pi", "llama", "llama:1.3", "llama:1.3:1024"); or None.
        hidden_size: H, at least 1.
        rule: The rule that None stands for.

    Raises:
        WidthError: The value is not positive, too large, or names no rule.
    """
    if isinstance(value, bool) or not isinstance(value, int | str | None):
        raise WidthError(f"intermediate_size is {value!r}; give a whole number ≥ 1 or a rule")
    if isinstance(value, int) and value < 1:
        raise WidthError(
            f"intermediate_size is {value}; give a whole number ≥ 1, or null for {rule}"
        )
    if isinstance(value, int) and value > LARGEST:
        raise WidthError(f"intermediate_size is {value}; it must be at most {LARGEST}")
    if isinstance(value, int):
        return value
    name = rule if value is None else value
    if name in WIDTH_RULES:
        return WIDTH_RULES[name](hidden_size)
    multiplier, multiple = _llama_numbers(name, rule)
    return width_llama(hidden_size, multiplier=multiplier, multiple=multiple)


def explain_width(value: int | str | None, hidden_size: int, rule: str) -> str:
    """How the intermediate size comes about: ``8/3·512 = 1365.33 ↑64 → 1408``.

    Args:
        value: As in ``resolve_width``.
        hidden_size: H, at least 1.
        rule: The rule that None stands for.

    Raises:
        WidthError: The value is not positive, or names no rule.
    """
    width = resolve_width(value, hidden_size, rule)
    if isinstance(value, int):
        return f"{width}, as given"
    name = rule if value is None else value
    if name in PRODUCTS:
        words, factor, multiple = PRODUCTS[name]
        return round_steps(f"{words}·{hidden_size}", float(factor * hidden_size), multiple)
    multiplier, multiple = _llama_numbers(name, rule)
    base = 8 * hidden_size // 3
    steps = f"⌊8/3·{hidden_size}⌋"
    if multiplier is not None:
        steps, base = f"{steps} = {base}, ⌊{multiplier:g}·{base}⌋", int(multiplier * base)
    return round_steps(steps, base, multiple)


def round_steps(words: str, value: float, multiple: int) -> str:
    """A product, its value with up to two decimals, and its rounding up where there is any.

    Args:
        words: The product, e.g. ``"8/3·512"``.
        value: What it gives.
        multiple: What it is rounded up to; a value that is whole and a multiple stays.
    """
    shown = f"{value:.2f}".rstrip("0").rstrip(".")
    width = round_up(math.ceil(round(value, 6)), multiple)
    return f"{words} = {shown}" if width == value else f"{words} = {shown} ↑{multiple} → {width}"


def _llama_numbers(name: str, rule: str) -> tuple[float | None, int]:
    """The multiplier and multiple in a rule's name.

    Raises:
        WidthError: It is not Llama's, or a number is not above 0.
    """
    found = LLAMA.match(name)
    multiplier = float(found["multiplier"]) if found and found["multiplier"] else None
    multiple = int(found["multiple"]) if found and found["multiple"] else LLAMA_MULTIPLE
    if not found or multiplier == 0 or multiple == 0:
        raise WidthError(
            f"intermediate_size is {name!r}; give a whole number ≥ 1, or one of the rules "
            f"{', '.join(WIDTH_RULES)}, {LLAMA_FORM} (null means {rule})"
        )
    return multiplier, multiple

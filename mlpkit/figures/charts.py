"""Charts as SVG text, without matplotlib: scales, axes, marks that know their exact values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from mlpkit.figures.canvas import PictureError, Theme, theme
from mlpkit.figures.fonts import VIEWERS

Label = str | Mapping[str, str]  # one text for all languages, or one for each
EXACT = 12  # digits: ticks are round within as many, and zeros at their end are not written
SHAPES = 7  # colours of a theme; series beyond them repeat the colours with other dashes
UNWRITABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
DASHES = ("", "6 3", "2 3", "8 3 2 3")
WIDTH, HEIGHT = 620.0, 330.0  # of a chart, in pixels
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 12.0, 44.0  # its margins
# One sheet for pages and files. A page defines the variables for light and for dark; in a file,
# which other programs open too, they are replaced by their values.
SHEET = """\
.chart text{font:11px var(--font);fill:var(--ink)}
.chart .tick{font-size:10px;fill:var(--faint)}
.chart .grid{stroke:var(--line);stroke-width:.6;fill:none}
.chart .axis{stroke:var(--faint);stroke-width:.8;fill:none}
.chart .line{fill:none;stroke-width:1.6;stroke-linejoin:round}
.chart .band{stroke:none;fill-opacity:.14}
.chart .whisker{stroke-width:1.3;fill:none}
.chart .dot{stroke:var(--background);stroke-width:.8}
.chart .hit{fill:transparent;stroke:none}
.chart .front{stroke:var(--faint);stroke-width:1;stroke-dasharray:4 3;fill:none}
.chart .cell{fill:var(--s0);stroke:var(--background);stroke-width:2}
.chart .empty{fill:none;stroke:var(--line);stroke-width:1;stroke-dasharray:3 3}
.chart .best{fill:none;stroke:var(--s1);stroke-width:2}
.chart .strong{font-weight:600}
"""
for _number in range(SHAPES):
    SHEET += (
        f".chart .s{_number} .line,.chart .s{_number} .whisker{{stroke:var(--s{_number})}}"
        f".chart .s{_number} .dot,.chart .s{_number} .band{{fill:var(--s{_number})}}\n"
    )


def variables(colours: Theme) -> dict[str, str]:
    """The values of the sheet's variables in a theme."""
    fonts = ", ".join(name if name.islower() else f"'{name}'" for name in VIEWERS)
    plain = {name: getattr(colours, name) for name in ("background", "ink", "faint", "line")}
    series = {f"s{number}": colour for number, colour in enumerate(colours.series)}
    return {"font": fonts, "card": colours.card, **plain, **series}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From values to places on the picture.

    Args:
        low: The least value.
        high: The greatest value.
        start: The place of the least value, in pixels.
        end: The place of the greatest value.
        log: Whether equal ratios, not differences, are equally far apart; then ``low > 0``.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value, to a tenth of a pixel."""
        low, high, value = (
            (math.log(v) for v in (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int = 5) -> list[float]:
        """About so many round values within the scale."""
        if not self.high > self.low:
            return [self.low]
        if self.log and (ticks := self._log_ticks(count)):
            return ticks
        span = self.high - self.low
        power = 10.0 ** math.floor(math.log10(span / count))
        steps = (1 * power, 2 * power, 5 * power, 10 * power)
        step = min(steps, key=lambda step: abs(span / step - count))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [float(f"{index * step:.{EXACT}g}") for index in range(first, last + 1)]

    def _log_ticks(self, count: int) -> list[float]:
        """Powers of ten and, where these are few, 2 and 5 times them; none within a small range."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found: list[float] = []
        for factors in ((1,), (1, 3), (1, 2, 5)):
            values = [f * 10.0**d for d in decades for f in factors]
            found = [v for v in values if self.low * 0.999 <= v <= self.high * 1.001]
            if len(found) >= 3:
                break
        every = max(1, math.ceil(len(found) / (2 * count)))
        return found[::every] if len(found) >= 3 else []


def scale_over(
    values: Sequence[float], start: float, end: float, *, log: bool = False, margin: float = 0.04
) -> Scale:
    """A scale over values with a margin on both sides.

    Args:
        values: Finite values, at least one; with ``log`` above 0.
        start: The place of the least.
        end: The place of the greatest.
        log: Whether the scale is logarithmic.
        margin: Of the range, on either side.
    """
    low, high = min(values), max(values)
    if log:
        pad = (high / low) ** margin if high > low else 1.2
        return Scale(low=low / pad, high=high * pad, start=start, end=end, log=True)
    pad = (high - low) * margin or abs(high) * 0.05 or 1.0
    return Scale(low=low - pad, high=high + pad, start=start, end=end)


def short(value: float, *, digits: int = 3) -> str:
    """A number for an axis or a table: a few digits and k, M, G, T, P or E.

    Args:
        value: The number.
        digits: At most so many before the letter, and one more where there is no letter.
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}".replace("-", "−")
    sign, size = ("−" if value < 0 else ""), abs(value)
    for power, letter in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if float(f"{size:.{digits}g}") >= 10.0**power:
            scaled = float(f"{size / 10.0**power:.{digits}g}")
            return f"{sign}{scaled:.15g}{letter}"
    return f"{sign}{size:.{digits + 1}g}"


def tick(value: float) -> str:
    """A round number at an axis, with all its digits: between 115k and 115.5k they tell."""
    return short(value, digits=EXACT)


class Chart:
    """A chart that is being drawn, and shows itself in a notebook.

    Args:
        width: In pixels.
        height: In pixels.
        title: What it shows, for those who hear it.
        langs: The languages whose texts it holds; a page with a switch takes both.
        dark: Whether a file of it has a dark background.
    """

    def __init__(
        self,
        *,
        width: float,
        height: float,
        title: Label,
        langs: Sequence[str] = ("en",),
        dark: bool = False,
    ) -> None:
        self.width, self.height, self.title = width, height, title
        self.langs, self.dark = tuple(langs), dark
        self.parts: list[str] = []

    def add(self, markup: str) -> None:
        """Adds SVG elements; texts in them are escaped already."""
        self.parts.append(markup)

    def text(
        self,
        x: float,
        y: float,
        label: Label,
        *,
        kind: str = "",
        anchor: str = "start",
        turn: float = 0,
    ) -> None:
        """Writes a label, once for each language where they differ.

        Args:
            x: Where its anchor is.
            y: Its base line.
            label: What it says.
            kind: Further classes.
            anchor: "start", "middle" or "end".
            turn: Degrees, clockwise.
        """
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        place += f' transform="rotate({turn:g} {x:.1f} {y:.1f})"' if turn else ""
        for lang, words in self.spoken(label):
            mark = f' lang="{lang}"' if lang else ""
            self.add(f'<text class="{kind}"{mark} {place}>{written(words)}</text>')

    def spoken(self, label: Label) -> list[tuple[str, str]]:
        """A label as (language, text); the language is empty where one text is all there is."""
        if isinstance(label, str):
            return [("", label)]
        if len(self.langs) == 1:
            return [("", label[self.langs[0]])]
        return [(lang, label[lang]) for lang in self.langs]

    def axes(self, x: Scale, y: Scale, *, x_label: Label, y_label: Label) -> None:
        """Draws grid, ticks and the names of two axes."""
        for value in y.ticks():
            place = y(value)
            self.add(f'<path class="grid" d="M{x.start} {place}H{x.end}"/>')
            self.text(x.start - 6, place + 3.5, tick(value), kind="tick", anchor="end")
        for value in x.ticks():
            place = x(value)
            self.add(f'<path class="axis" d="M{place} {y.start}v4"/>')
            self.text(place, y.start + 15, tick(value), kind="tick", anchor="middle")
        self.add(f'<path class="axis" d="M{x.start} {y.start}H{x.end}"/>')
        self.text((x.start + x.end) / 2, y.start + 31, x_label, anchor="middle")
        self.text(13, (y.start + y.end) / 2, y_label, anchor="middle", turn=-90)

    def nothing(self) -> Chart:
        """The chart with a dash in its middle: there is nothing to draw."""
        self.text(self.width / 2, self.height / 2, "–", kind="tick", anchor="middle")
        return self

    def inline(self) -> str:
        """The element for a page that has the sheet."""
        heard = " / ".join(words for _, words in self.spoken(self.title))
        return (
            f'<svg class="chart" role="img" aria-label="{written(heard)}" '
            f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" '
            f'height="{self.height:g}">{"".join(self.parts)}</svg>'
        )

    def file(self) -> str:
        """The text of a file, with its own sheet and background."""
        colours = variables(theme(self.dark))
        sheet = re.sub(r"var\(--(\w+)\)", lambda found: colours[found[1]], SHEET)
        ground = f'<rect width="100%" height="100%" fill="{colours["background"]}"/>'
        opening, rest = self.inline().split(">", 1)
        named = opening.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        return f"{named}><style>{sheet}</style>{ground}{rest}\n"

    def _repr_svg_(self) -> str:
        return self.file()

    def save(self, path: str | Path) -> None:
        """Writes it.

        Args:
            path: Where to; it ends in .svg.

        Raises:
            PictureError: It ends otherwise, or cannot be written.
        """
        path = Path(path)
        if path.suffix.lower() != ".svg":
            raise PictureError(f"the chart {str(path)!r} is written as SVG; let its name end so")
        try:
            path.write_text(self.file(), encoding="utf-8")
        except OSError as error:
            raise PictureError(
                f"cannot write the chart {str(path)!r}: {error.strerror}; "
                "choose a folder that exists and that you may write to"
            ) from error


def clipped(words: str, length: int) -> str:
    """A text of at most so many characters; what is cut shows an ellipsis."""
    return words if len(words) <= length else f"{words[: length - 1]}…"


def tip(words: str) -> str:
    """What a mark says when it is pointed at."""
    return f"<title>{written(words)}</title>"


def written(words: str) -> str:
    """A text as XML has it: escaped, and without the control characters that it cannot hold."""
    return escape(UNWRITABLE.sub("\ufffd", words))

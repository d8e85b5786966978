"""The one style of all pictures: figure, light and dark colours, fonts, and saving."""

from __future__ import annotations

import functools
import io
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mlpkit.figures.fonts import VIEWERS, families

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL, NORMAL = 6.5, 7.5  # sizes of text in points
ENDINGS = {
    ".svg": {"Date": None, "Creator": "mlpkit"},
    ".png": {"Software": "mlpkit"},
    ".pdf": {"CreationDate": None, "Creator": "mlpkit", "Producer": None},
}


class MissingExtraError(ImportError):
    """Pictures need an extra that is not installed."""

    exit_code = 2


class PictureError(ValueError):
    """A picture that cannot be written: its ending is no format, or its place refuses it."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Theme:
    """The colours of a picture.

    Args:
        background: Behind everything.
        ink: Text and arrows.
        faint: Notes and tick labels.
        line: Grid, frames of cards.
        card: Behind an inner diagram.
        series: Colours of curves, told apart also by the colour-blind (after Okabe & Ito 2008).
        boxes: Fill and frame of each kind of box in a diagram.
    """

    background: str
    ink: str
    faint: str
    line: str
    card: str
    series: tuple[str, ...]
    boxes: Mapping[str, tuple[str, str]]


LIGHT = Theme(
    background="#ffffff",
    ink="#1f2328",
    faint="#59636e",
    line="#d1d9e0",
    card="#f6f8fa",
    series=("#0072b2", "#d55e00", "#009e73", "#b0509a", "#b8860b", "#56b4e9", "#4d4d4d"),
    boxes=MappingProxyType(
        {
            "linear": ("#dbeafe", "#3b76b8"),
            "activation": ("#fde3cf", "#c8641b"),
            "router": ("#ece2f8", "#7d53b3"),
            "circle": ("#d9f2e6", "#1a8a63"),
            "plain": ("#eef1f4", "#7d8590"),
        }
    ),
)
DARK = Theme(
    background="#0d1117",
    ink="#e6edf3",
    faint="#9198a1",
    line="#3d444d",
    card="#151b23",
    series=("#58b4f0", "#ff9d5c", "#3ed0a0", "#e58bd0", "#f0d64a", "#a5b4fc", "#c8ccd1"),
    boxes=MappingProxyType(
        {
            "linear": ("#15304f", "#58a0e6"),
            "activation": ("#4a2a12", "#f09b5a"),
            "router": ("#35244f", "#b48ce8"),
            "circle": ("#0f3d2e", "#3ed0a0"),
            "plain": ("#262c36", "#8b949e"),
        }
    ),
)


def theme(dark: bool) -> Theme:
    """The colours on a dark or a light background."""
    return DARK if dark else LIGHT


def new_figure(width: float, height: float, *, dark: bool) -> Figure:
    """An empty figure that shows itself in a notebook.

    Args:
        width: In inches.
        height: In inches.
        dark: Whether its background is dark.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:  # an extra, and importing it takes most of a second
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "pictures need matplotlib, which is not installed; pip install 'mlpkit[report]'"
        ) from error
    figure = Figure(figsize=(width, height), facecolor=theme(dark).background)
    FigureCanvasAgg(figure)  # without pyplot, which keeps every figure and wants a display
    # A notebook knows only the figures of pyplot; this is how it asks anything else for a picture.
    show = functools.partial(svg_text, figure)
    setattr(figure, "_repr_svg_", show)  # noqa: B010 (mypy knows no such attribute)
    return figure


def blank_axes(figure: Figure) -> Any:
    """Axes without a frame over the whole figure, whose unit is an inch."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return axes


def frame(axes: Any, colours: Theme) -> None:
    """Gives axes their background, a faint grid, and lines on the left and below alone."""
    axes.set_facecolor(colours.background)
    axes.grid(color=colours.line, linewidth=0.5, alpha=0.6)
    axes.tick_params(labelsize=SMALL, colors=colours.faint, length=2.5, width=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(colours.line)


def dress(figure: Figure, lang: str) -> None:
    """Gives every text the fonts of a language.

    Raises:
        FontError: No installed font has the language's characters.
    """
    from matplotlib.text import Text  # see new_figure

    names = families(lang)
    for text in figure.findobj(Text):
        text.set_fontfamily(names)


def check_picture(path: Path) -> None:
    """Refuses a path whose ending is no format, before anything is drawn.

    Raises:
        PictureError: Its ending is none of .svg, .png and .pdf.
    """
    if path.suffix.lower() not in ENDINGS:
        raise PictureError(
            f"the picture {str(path)!r} ends in {path.suffix or 'nothing'!r}; "
            f"its ending decides its format: {', '.join(ENDINGS)}"
        )


def save_figure(figure: Figure, path: str | Path) -> None:
    """Writes a picture; the same figure gives the same bytes.

    Args:
        figure: The figure.
        path: Where to; the ending .svg, .png (220 dots per inch) or .pdf is the format.

    Raises:
        PictureError: The ending is none of these, or the file cannot be written.
    """
    path = Path(path)
    check_picture(path)
    data = _render(figure, path.suffix.lower())
    try:
        path.write_bytes(data)
    except OSError as error:
        raise PictureError(
            f"cannot write the picture {str(path)!r}: {error.strerror}; "
            "choose a folder that exists and that you may write to"
        ) from error


def svg_text(figure: Figure) -> str:
    """A figure as SVG text."""
    return _render(figure, ".svg").decode()


def _render(figure: Figure, ending: str) -> bytes:
    from matplotlib import rc_context  # see new_figure

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text: searched, selected, read aloud
        "svg.hashsalt": "mlpkit",
        "pdf.fonttype": 42,  # whole outlines: publishers refuse type 3
        "font.sans-serif": VIEWERS,
    }
    buffer = io.BytesIO()
    # The writers read these from matplotlib's settings alone; afterwards they are as before.
    with quiet(), rc_context(settings):
        figure.savefig(buffer, format=ending[1:], dpi=220, metadata=ENDINGS[ending])
    return buffer.getvalue()


@contextmanager
def quiet() -> Iterator[None]:
    """A block in which matplotlib does not report that a font has no bold or regular weight.

    Chinese fonts often have one weight, which is then taken; nothing is wrong.
    """
    logger = logging.getLogger("matplotlib.font_manager")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)

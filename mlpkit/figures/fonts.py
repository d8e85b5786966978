"""Which fonts render a language, and what to install where none does."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path

BASE = "DejaVu Sans"  # comes with matplotlib, and has the mathematics: √ Φ σ ′ ⁻¹ ˣ ≤
# The first that is installed is taken. Of a collection matplotlib sees the first face, which
# for Noto is the Japanese one; it has the Chinese characters too.
CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Noto Sans CJK JP",
    "Droid Sans Fallback",
    "SimHei",
    "Heiti SC",
    "STHeiti",
    "Songti SC",
    "SimSun",
    "Arial Unicode MS",
)
# What an SVG offers a viewer who lacks the font it was laid out with.
VIEWERS = (BASE, "Verdana", "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", "sans-serif")
CHINESE_FILES = re.compile(
    r"noto.?sans.*(cjk|sc)|sourcehan|pingfang|hiragino sans gb|msyh|wqy|simhei|heiti|songti|simsun"
    r"|droidsansfallback|arial unicode",
    re.IGNORECASE,
)


class FontError(LookupError):
    """No installed font has the characters of a language."""

    exit_code = 2


def families(lang: str) -> list[str]:
    """The font families of a language, for matplotlib and for an SVG's viewer.

    Args:
        lang: "en" or "zh".

    Raises:
        FontError: No installed font has the language's characters.
    """
    if lang != "zh":
        return [BASE, "sans-serif"]
    return [BASE, chinese_font(), "sans-serif"]


def chinese_font() -> str:
    """The name of an installed font with Chinese characters.

    Raises:
        FontError: There is none.
    """
    from matplotlib.font_manager import fontManager  # an extra, as in canvas.new_figure

    name = _first({font.name for font in fontManager.ttflist})
    if name is None:
        # matplotlib remembers from an earlier day what is installed; a font that came since is
        # on the disk and not in its list.
        for path in _new_files():
            fontManager.addfont(path)
        name = _first({font.name for font in fontManager.ttflist})
    if name is None:
        raise FontError(
            "no installed font has Chinese characters; install one (Debian and Ubuntu: "
            "apt-get install fonts-noto-cjk or fonts-wqy-zenhei; Fedora: "
            "dnf install google-noto-sans-cjk-fonts) or choose English: lang='en', --lang en"
        )
    return name


def _first(installed: Iterable[str]) -> str | None:
    return next((name for name in CHINESE_FONTS if name in installed), None)


@functools.cache
def _new_files() -> tuple[str, ...]:
    from matplotlib.font_manager import findSystemFonts  # an extra, as in canvas.new_figure

    return tuple(path for path in findSystemFonts() if CHINESE_FILES.search(Path(path).name))

"""Where a line of the site may break: a name in a table between its words, Chinese anywhere."""

from __future__ import annotations

import re

ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
CROWDED = 5  # columns: from here on a name in one line would make the table wider than the page
CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
JOINT = re.compile(r"(?<=\w)([._/])(?=[A-Za-z])")
# A browser shows the end of a line as a space, which Chinese does not have between its words.
HAN = "一-鿿"
WRAPPED = re.compile(
    rf"(?<=[{HAN}])\n *(?=[{HAN}（“])|(?<=[，。：；、（）“”！？])\n *(?=[{HAN}A-Za-z（“`\[])"
)


def breakable(html: str) -> str:
    """A page whose crowded tables may break a name before one of its words.

    Args:
        html: Its content; style.css keeps the browser from breaking names anywhere else.
    """

    def row(match: re.Match[str]) -> str:
        if match[0].count("<td") < CROWDED:
            return match[0]
        return CODE.sub(lambda name: JOINT.sub(r"\1<wbr>", name[0]), match[0])

    return ROW.sub(row, html)


def joined(markdown: str) -> str:
    """Chinese prose with each paragraph on one line.

    Args:
        markdown: Without fenced blocks.
    """
    return WRAPPED.sub("", markdown)

"""Links of a page as GitHub shows them, told again for the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = "https://github.com/mlpkit/mlpkit/blob/main/"
# Pages of the repository that do not lie in docs/, and their names on the site.
OUTSIDE = {
    "README.md": "readme.md",
    "README.zh-CN.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
FENCES = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(#[^)\s]*)?\)")
LINK_TEXT = r"\[[^]]+\]\([^)]+\)"
# The row of links below a title, which the site's own navigation and language switch replace.
ROW = re.compile(rf"^{LINK_TEXT}(?: · {LINK_TEXT})+\n+", re.MULTILINE)


def prose(markdown: str) -> list[str]:
    """A page cut at its fenced blocks: prose at even places, blocks at odd ones."""
    return FENCES.split(markdown)


def slug(heading: str) -> str:
    """GitHub's anchor of a heading.

    Args:
        heading: Its text, in Markdown.
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def for_site(markdown: str, path: str, anchors: Mapping[str, Mapping[str, str]]) -> str:
    """A page with links that hold on the site, without the row of links below its title.

    Args:
        markdown: The page.
        path: Where it lies in the repository.
        anchors: Of translated pages: path → its own anchor → the original's, which the site
            uses in every language.
    """
    parts = prose(markdown)
    parts[0] = ROW.sub("", parts[0], count=1)

    def told(match: re.Match[str]) -> str:
        target, anchor = match[1], (match[2] or "").removeprefix("#")
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        linked = linked if target else path
        anchor = anchors.get(linked, {}).get(anchor, anchor)
        place = "" if not target else on_site(linked, path)
        return f"]({place}{'#' if anchor else ''}{anchor})"

    parts[::2] = [LINK.sub(told, part) for part in parts[::2]]
    return "".join(parts)


def on_site(linked: str, path: str) -> str:
    """Where the site has a file of the repository.

    Args:
        linked: The file, from the root of the repository.
        path: The page that links to it.

    Returns:
        A path relative to the page; for what the site does not hold, its address in the repository.
    """
    folder = posixpath.dirname(page_name(path)) or "."
    if linked in OUTSIDE or linked.startswith("docs/"):
        return posixpath.relpath(page_name(linked), folder)
    if (ROOT / linked).exists():
        return SOURCE + linked
    return linked  # mkdocs warns of it


def page_name(path: str) -> str:
    """The site's name of a file of the repository: without ``docs/`` and its language."""
    name = OUTSIDE.get(path, path.removeprefix("docs/"))
    return re.sub(r"\.zh\.md$", ".md", name)

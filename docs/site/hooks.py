"""What mkdocs does beyond Markdown: languages, links, line breaks, included code, the reference."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import reference
from breaks import breakable, joined
from included import included
from links import OUTSIDE, ROOT, for_site, page_name, prose, slug
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HEADING = re.compile(r"^(#+ )(.+?)$", re.MULTILINE)


def translated(name: str) -> str:
    """Where the Chinese version of a page of the repository lies, if it has one."""
    return "README.zh-CN.md" if name == "README.md" else name.replace(".md", ".zh.md")


def on_config(config: MkDocsConfig) -> None:
    """GitHub's anchors, and the navigation's titles in the language of the build."""
    config.mdx_configs["toc"]["slugify"] = lambda heading, separator: slug(heading)
    titles = config.extra.get("titles", {})

    def told(item: Any) -> Any:
        if isinstance(item, dict):
            return {titles.get(title, title): told(value) for title, value in item.items()}
        return [told(i) for i in item] if isinstance(item, list) else item

    config.nav = told(config.nav)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages of one language, those outside docs/, and those that the code writes."""
    chinese = config.theme["language"] == "zh"
    sources = {f"docs/{file.src_uri}": file for file in files if file.src_uri.endswith(".md")}
    for path, file in sources.items():
        if path.endswith(".zh.md"):
            files.remove(file)
    for path in [*OUTSIDE, *sources]:
        if path.endswith((".zh.md", ".zh-CN.md")):
            continue
        version = translated(path) if chinese and (ROOT / translated(path)).is_file() else path
        if version != path or path in OUTSIDE:
            add(files, config, page_name(path), (ROOT / version).read_text(encoding="utf-8"))
        files.src_uris[page_name(path)].repository_path = version  # type: ignore[attr-defined]
    for place, markdown in reference.pages().items():
        add(files, config, place, markdown)
    return files


def add(files: Files, config: MkDocsConfig, place: str, markdown: str) -> None:
    """Adds a page, in place of one with its name."""
    if old := files.src_uris.get(place):
        files.remove(old)
    files.append(File.generated(config, place, content=markdown))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page as the site has it."""
    path = getattr(page.file, "repository_path", "")
    if not path:  # written by the code, for the site
        return markdown
    if own := anchors().get(path):  # a translated page
        parts = prose(markdown)
        parts[::2] = [
            HEADING.sub(lambda m: f"{m[1]}{m[2]} {{ #{own[slug(m[2])]} }}", joined(part))
            for part in parts[::2]
        ]
        markdown = "".join(parts)
    return for_site(included(markdown), path, anchors())


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page's text as HTML, before the theme is put around it."""
    return breakable(html)


@cache
def anchors() -> dict[str, dict[str, str]]:
    """Of each translated page: its anchors → those of the original, heading by heading."""
    found = {}
    for original in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        path = original.relative_to(ROOT).as_posix()
        other = ROOT / translated(path)
        if other != original and other.is_file():
            pairs = zip(slugs(other.read_text()), slugs(original.read_text()), strict=True)
            found[other.relative_to(ROOT).as_posix()] = dict(pairs)
    return found


def slugs(markdown: str) -> list[str]:
    """The anchors of a page's headings, in order."""
    return [slug(m[2]) for part in prose(markdown)[::2] for m in HEADING.finditer(part)]


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The language switch leads to the same page in the other language."""
    return switched(output, page.url, config)


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The page for what is not found leads to the first pages."""
    if template_name != "404.html":
        return output_content
    return switched(output_content, "index.html", config)


def switched(html: str, url: str, config: MkDocsConfig) -> str:
    """Puts addresses where mkdocs.yml has ``switch:en`` and ``switch:zh``.

    Args:
        html: A page.
        url: Its place in its own build; zh/ is a build of its own.
        config: Of the build.
    """
    up = "../" * url.count("/")
    english, chinese = ("../", "") if config.theme["language"] == "zh" else ("", "zh/")
    html = html.replace('"switch:en"', f'"{up}{english}{url}"')
    return html.replace('"switch:zh"', f'"{up}{chinese}{url}"')

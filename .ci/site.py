"""Hooks of the documentation site: the order of its parts, and charts of the last measurements."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "build" / "bench" / "rates.svg"
ORDER = {
    "tutorial": "Tutorial",
    "how-to": "How-to",
    "reference": "Reference",
    "explanation": "Explanation",
    "adr": "Decisions",
}
"""Folders of pages in the order of the tabs."""
FIRST = ("first-message.md", "api.md", "promises.md", "cancel-and-reschedule.md")
"""Pages that begin their section; the others follow by title."""
DRAWN_ELSEWHERE = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)
PLACE = "<!-- chart: the rates of the last `make bench` -->"


def on_files(files: Files, config: Any) -> Files:
    """Add the chart of the last measurements, if there are any."""
    if CHART.exists():
        files.append(File.generated(config, "assets/rates.svg", content=CHART.read_text()))
    return files


def on_page_markdown(markdown: str, **_more: Any) -> str:
    """Show the chart where a page has a place for it; leave out what only other sites draw.

    The script that draws mermaid's pictures comes from another server. The table above the picture
    of the rooms has the same facts.
    """
    markdown = DRAWN_ELSEWHERE.sub("", markdown)
    shown = "![Rates of each case, ours and others](../assets/rates.svg)" if CHART.exists() else ""
    return markdown.replace(PLACE, shown)


def on_page_content(html: str, **_more: Any) -> str:
    """Leave out the double colon of reStructuredText before a block of a docstring."""
    return html.replace("<p>::</p>", "")


def on_nav(nav: Navigation, **_more: Any) -> Navigation:
    """Put the sections into their order, and the pages of each by title."""
    sections = {_folder(item): item for item in nav.items if isinstance(item, Section)}
    for name, title in ORDER.items():
        section = sections[name]
        section.title = title
        section.children.sort(key=_place)
        for page in section.children:
            page.title = _title(page)
    pages = [item for item in nav.items if not isinstance(item, Section)]
    pages[0].title = "Home"
    nav.items = [*pages, *(sections[name] for name in ORDER)]
    return nav


def _folder(section: Section) -> str:
    first: Any = section.children[0]  # a page, in each section of this site
    return str(first.file.src_uri).partition("/")[0]


def _title(page: Any) -> str:
    """Return the title of a page as lists show it: "How to upgrade" is "Upgrade" there."""
    first = Path(page.file.abs_src_path).read_text().partition("\n")[0]
    title = first.removeprefix("# ").removeprefix("How to ")
    return title[:1].upper() + title[1:]


def _place(page: Any) -> tuple[bool, str]:
    name = page.file.src_uri.rpartition("/")[2]
    return name not in FIRST, name if name[:4].isdigit() else _title(page).lower()

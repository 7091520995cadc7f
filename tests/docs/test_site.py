"""The site builds: links and anchors lead somewhere, and no page asks another server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

LOADS = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//"""
    r"""|<link\b[^>]*\bhref="(?:https?:)?//|@import|url\(["']?(?:https?:)?//"""
)
"""What a browser fetches by itself; a link waits for a click."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    subprocess.run([ROOT / ".ci" / "typings"], check=True)
    site = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    styles = {path: path.read_text() for path in site.rglob("*.css")}

    assert built.returncode == 0, built.stderr
    assert len(pages) > 60
    assert [str(path) for path, text in {**pages, **styles}.items() if LOADS.search(text)] == []
    api = (site / "reference" / "api.html").read_text()
    assert "send_local" in api
    assert "When this returns the message is durable" in api


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="https://other.example/shim"></script>',
        '<link rel="preconnect" href="https://other.example" crossorigin>',
        '<img alt="" src="//other.example/a.png">',
        "@font-face{src:url(https://other.example/a.woff2)}",
    ],
)
def test_what_a_browser_would_fetch_from_elsewhere_is_found(tag: str) -> None:
    assert LOADS.search(tag)
    assert not LOADS.search(tag.replace("https://other.example", "..").replace("//other", "../o"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_broken_link_or_anchor_fails_the_build(tmp_path: Path) -> None:
    settings = (ROOT / "mkdocs.yml").read_text().partition("hooks:")[0].partition("exclude_docs")[0]
    (tmp_path / "mkdocs.yml").write_text(settings)
    docs = tmp_path / "docs"
    docs.mkdir()
    for text, code in (("[a](#title)", 0), ("[a](gone.md)", 1), ("[a](#gone)", 1)):
        (docs / "index.md").write_text(f"# Title\n\n{text}\n")
        words = [sys.executable, "-m", "mkdocs", "build", "--strict"]
        assert subprocess.run(words, cwd=tmp_path, capture_output=True).returncode == code, text

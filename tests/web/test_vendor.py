"""Files of other projects: known versions, their licences, and their digests."""

from __future__ import annotations

import gzip
import re
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.web.site import Site
from timeoutmgr.web.page_texts import STATIC

VENDOR = STATIC / "vendor"
FILES: list[dict[str, str]] = tomllib.loads((VENDOR / "vendor.toml").read_text())["file"]
FIRST_PAINT = 120 * 1024


def test_each_vendored_file_is_in_the_list_with_its_licence() -> None:
    listed = {each["name"] for each in FILES} | {each["licence_file"] for each in FILES}

    assert listed | {"vendor.toml"} == {path.name for path in VENDOR.iterdir()}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file["name"]))
def test_each_vendored_file_has_its_digest(file: dict[str, Any]) -> None:
    assert sha256((VENDOR / file["name"]).read_bytes()).hexdigest() == file["sha256"]


def test_the_first_page_and_its_files_are_small(site: Site) -> None:
    answer = site.client.get("/")
    files = re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text)
    loaded = [site.client.get(path) for path in files]

    assert len(files) == 8, files
    assert {each.status_code for each in loaded} == {200}
    total = sum(len(gzip.compress(each.content)) for each in (answer, *loaded))
    assert total < FIRST_PAINT, total


def test_files_are_sent_compressed_and_kept_by_browsers(site: Site) -> None:
    (path,) = re.findall(r'src="(/static/vendor/htmx[^"]+)"', site.get("/"))

    answer = site.client.get(path)

    assert answer.headers["Content-Encoding"] == "gzip"
    assert "immutable" in answer.headers["Cache-Control"]


def test_no_file_of_ours_names_another_origin() -> None:
    ours = [path for path in STATIC.rglob("*") if path.is_file() and path.parent != VENDOR]
    templates = [*Path(STATIC.parent, "templates").rglob("*.html")]
    found = {
        path.name: addresses
        for path in (*ours, *templates)
        if (addresses := re.findall(r"https?://(?!www\.w3\.org/2000/svg)", path.read_text()))
    }

    assert found == {}

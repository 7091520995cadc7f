"""Endpoints with real stores, their dashboards, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.services import catalog
from tests.web.site import Site, configuration
from timeoutmgr import Endpoint

if TYPE_CHECKING:
    from playwright.sync_api import Browser

STORES = ("sqlite", "postgres", "mysql")
FLAGS = (
    *("--no-sandbox", "--disable-dev-shm-usage"),
    # A test looks at no pixels: without these flags a process of its own paints by software.
    *("--disable-gpu", "--disable-software-rasterizer", "--in-process-gpu"),
    "--renderer-process-limit=1",
)
"""Options of the browser."""


@pytest.fixture
def endpoint_of(request: pytest.FixtureRequest, unique: str) -> Iterator[Callable[[str], Endpoint]]:
    """Makes an installed endpoint, not started, on a kind of database."""
    made: list[Endpoint] = []

    def make(kind: str) -> Endpoint:
        made.append(Endpoint(configuration(unique, request.getfixturevalue(f"{kind}_url"))))
        made[-1].install()
        return made[-1]

    yield make

    for endpoint in made:
        endpoint.close()


@pytest.fixture
def endpoint(endpoint_of: Callable[[str], Endpoint]) -> Endpoint:
    """An installed endpoint on a file."""
    return endpoint_of("sqlite")


@pytest.fixture
def site(endpoint: Endpoint) -> Iterator[Site]:
    """The dashboard of *endpoint*, served."""
    with Site(endpoint) as made:
        yield made


# Not longer than its module: while Playwright is open, asyncio has a running loop in this thread.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, which Playwright drives."""
    program = shutil.which("chromium")
    if program is None:
        reason = "no Chromium: apt-get install chromium"
        if catalog.missing_is_an_error():
            pytest.fail(f"{reason} (with CI=true nothing may be missing)", pytrace=False)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=Path(program), args=FLAGS)
        yield launched
        launched.close()

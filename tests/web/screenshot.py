"""The picture of the dashboard on its page: ``python -m tests.web.screenshot`` makes it."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

from tests.web.site import HOUR, Site, configuration, fill, pending
from timeoutmgr import Endpoint
from timeoutmgr.message.instants import Micros

PICTURE: Final = Path(__file__).parent.parent.parent / "docs" / "assets" / "dashboard.png"
_DESTINATIONS: Final = ("billing", "mail", "shipping")


def main() -> None:
    """Fill a store, select a window of its histogram, and take the picture."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = Endpoint(configuration("sales", f"sqlite:///{folder}/sales.db"))
        endpoint.install()
        _fill(endpoint, endpoint.timeouts.now())
        with Site(endpoint) as site:
            _photograph(site.url)
        endpoint.close()


def _fill(endpoint: Endpoint, now: Micros) -> None:
    # A reminder after a day, and many at the full hour: the load of a shop.
    chance = random.Random(1)
    made = []
    for number in range(3_000):
        due = now + int(chance.triangular(0, 26, 11) * HOUR)
        if chance.random() < 0.3:
            due -= due % HOUR
        destination = chance.choice(_DESTINATIONS)
        made.append(pending(f"order-{number}", max(due, now + 60), destination=destination))
    fill(endpoint, made)


def _photograph(url: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1200, "height": 640})
        page.goto(f"{url}/load")
        box = page.locator(".u-over").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + 60, steps=5)
        page.mouse.up()
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()

"""Journeys of a person through the dashboard, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.support.waiting import eventually
from tests.web.site import HOUR, Site, configuration, fail, fill, pending, waiting
from tests.web.test_site import PAGES, SCRIPT
from timeoutmgr import Endpoint
from timeoutmgr.contracts.bulk_runs import BulkAction, BulkChange
from timeoutmgr.message.instants import to_micros
from timeoutmgr.web import Role

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

PATIENCE = 60_000.0
COUNTING = """
let open = 0;
const show = (change) => { document.documentElement.dataset.open = open += change; };
const Real = EventSource;
window.EventSource = class extends Real {
  constructor(...given) { super(...given); this.addEventListener("open", () => show(1)); }
  close() { super.close(); show(-1); }
};
window.EventSource.CLOSED = Real.CLOSED;
"""
"""Notes in the page how many event sources are open."""
SWAPPED = """() => document.body.addEventListener("htmx:afterSettle", (event) => {
  if (event.target.id === "region-load") document.documentElement.dataset.swapped = event.target.id;
})"""
HIDE = """(value) => {
  Object.defineProperty(document, "hidden", {value, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""

RULES: dict[Literal["light", "dark"], dict[str, Any]] = {
    "light": {"resultTypes": ["violations"]},
    "dark": {"resultTypes": ["violations"], "runOnly": ["color-contrast"]},
}
"""What Axe checks: of the same pages in other colours, only the colours."""


@contextmanager
def opened(browser: Browser, site: Site, **options: Any) -> Iterator[Page]:
    """A page of a new session; an error of a script or of the policy fails the test."""
    context = browser.new_context(base_url=site.url, **options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda said: errors.append(said.text) if "Content Security" in said.text else None,
    )
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    yield page
    context.close()
    assert errors == []
    assert [url for url in requested if not url.startswith((site.url, "data:"))] == []


def brush(page: Page, left: float, right: float) -> None:
    """Drag over a part of the histogram."""
    box = page.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * left, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * right, box["y"] + 60, steps=5)
    page.mouse.up()


@pytest.fixture
def filled(site: Site, endpoint: Endpoint) -> Site:
    """A dashboard with timeouts of the next hours and messages in the error queue."""
    now = endpoint.timeouts.now()
    start = now - now % HOUR
    fill(endpoint, [pending(f"t{n}", start + n * HOUR + HOUR // 2, saga="s") for n in range(1, 13)])
    fail(endpoint, 12, reason="broken")
    return site


def test_a_brush_over_the_histogram_selects_a_window_and_lists_it(
    browser: Browser, filled: Site
) -> None:
    with opened(browser, filled) as page:
        page.goto("/load?span=day")
        brush(page, 0.1, 0.35)
        said = page.locator("output.selected").inner_text()
        page.get_by_role("button", name="List the selection").click()
        page.wait_for_url("**/pending?**")
        listed = page.locator("tbody tr").count()

    number = int(said.split()[0])
    assert 4 <= number <= 8
    assert listed == number


def test_a_brushed_window_is_planned_shifted_and_undone(
    browser: Browser, filled: Site, endpoint: Endpoint
) -> None:
    before = [one.due for one in endpoint.timeouts.list()]
    with opened(browser, filled) as page:
        page.goto("/load?span=day")
        brush(page, 0.1, 0.35)
        page.get_by_role("button", name="Change the selection").click()
        page.get_by_label("shift by").fill("2d")
        page.get_by_label("Reason").fill("billing is down")
        page.get_by_role("button", name="Plan, without a change").click()
        planned = page.locator("dd.number").first.inner_text()
        page.get_by_label("Reason").fill("billing is down")
        page.get_by_role("button", name="Shift").click()
        page.locator(".state", has_text="Completed").wait_for()
        shifted = [one.due for one in endpoint.timeouts.list()]
        page.get_by_role("link", name="Undo this run").click()
        page.get_by_label("Reason").fill("billing is back")
        page.get_by_role("button", name="Undo").click()
        page.locator(".state", has_text="Undone").wait_for()

    number = int(planned.split(",")[0])
    assert 4 <= number <= 8
    assert len(set(shifted) - set(before)) == number
    assert [one.due for one in endpoint.timeouts.list()] == before


def test_a_timeout_is_found_moved_and_cancelled(
    browser: Browser, filled: Site, endpoint: Endpoint
) -> None:
    with opened(browser, filled) as page:
        page.goto("/pending")
        page.get_by_label("Id begins with").fill("t3")
        page.get_by_role("button", name="Filter").click()
        page.locator("tbody a.id").click()
        page.get_by_label("or delay from now").fill("30d")
        page.get_by_role("button", name="Reschedule").click()
        moved = page.get_by_role("alert").inner_text()
        page.get_by_role("button", name="Cancel").click()
        cancelled = page.get_by_role("alert").inner_text()

    assert moved == "Moved."
    assert cancelled.startswith("Cancelled")
    assert endpoint.timeouts.count() == 11


def test_a_group_of_errors_is_read_and_retried(
    browser: Browser, filled: Site, endpoint: Endpoint
) -> None:
    with opened(browser, filled) as page:
        page.goto("/errors")
        page.get_by_role("link", name="KeyError").click()
        page.locator("tbody a.id").first.click()
        traceback = page.locator("pre").first.inner_text()
        page.get_by_role("link", name="All groups").click()
        page.get_by_role("button", name="Retry 10 first").click()
        some = page.get_by_role("alert").inner_text()
        page.get_by_role("button", name="Retry all 2").click()
        rest = page.get_by_role("alert").inner_text()

    assert "KeyError: broken" in traceback
    assert (some, rest) == ("10 retried.", "2 retried.")
    assert waiting(endpoint, endpoint.parts.settings.error_queue) == 0


def test_the_overview_renews_itself(browser: Browser, filled: Site, endpoint: Endpoint) -> None:
    with opened(browser, filled) as page:
        page.goto("/")
        tile = page.locator(".tile", has_text="Pending").locator("strong")
        before = tile.inner_text()
        endpoint.timeouts.cancel("t1")
        tile.get_by_text("11", exact=True).wait_for(timeout=60_000)

    assert before == "12"


def test_a_hidden_tab_holds_no_connection_and_a_new_stream_leaves_a_table_open(
    browser: Browser, filled: Site
) -> None:
    with opened(browser, filled) as page:
        page.add_init_script(COUNTING)
        page.goto("/")
        page.locator("html[data-open='1']").wait_for(state="attached")
        page.evaluate(HIDE, True)
        page.locator("html[data-open='0']").wait_for(state="attached")
        page.get_by_text("As a table").click()
        page.evaluate(SWAPPED)
        page.evaluate(HIDE, False)
        page.locator("html[data-open='1'][data-swapped='region-load']").wait_for(state="attached")
        assert page.locator("#load details[open]").count() == 1


def test_numbers_stay_while_the_store_is_away_and_come_back(
    browser: Browser, private_server: Callable[[str], Any], tmp_path: Path, unique: str
) -> None:
    server = private_server("postgres")
    server.start()
    queues = f"sqlite:///{tmp_path / 'queues.db'}"
    endpoint = Endpoint(configuration(unique, server.url, queues))
    endpoint.install()
    fill(endpoint, [pending("t1", endpoint.timeouts.now() + HOUR)])
    with Site(endpoint) as site, opened(browser, site) as page:
        page.goto("/")
        server.stop()
        page.locator(".banner", has_text="The store does not answer.").wait_for(timeout=90_000)
        tile = page.locator(".tile", has_text="Pending").locator("strong").inner_text()
        age = page.locator(".banner").inner_text()
        server.start()
        page.locator(".banner").wait_for(state="hidden", timeout=90_000)
    endpoint.close()

    assert tile == "1"
    assert "The numbers below are from" in age


def test_scripts_in_texts_of_strangers_do_not_run(
    browser: Browser, site: Site, endpoint: Endpoint
) -> None:
    now = endpoint.timeouts.now()
    image = "<img src=x onerror=\"document.title='run'\">"
    given = {"evil": SCRIPT, "worse": image, "x\" autofocus onfocus=\"document.title='run'": "1"}
    made = pending("t1", now - HOUR, saga=SCRIPT, destination=image, given=given)
    fill(endpoint, [made, pending("t2", now + HOUR, saga="javascript:document.title='run'")])
    fail(endpoint, 2, reason=f"{SCRIPT}{image}", exception="Key<b>Error")
    titles, images = [], 0
    with opened(browser, site) as page:
        for path in (*PAGES, "/timeouts/t1", "/errors?exception=Key<b>Error"):
            page.goto(path)
            page.wait_for_load_state("load")
            titles.append(page.title())
            images += page.locator("main img, main script, main b").count()

    assert "run" not in titles
    assert images == 0


def _visit_until(page: Page, path: str, shown: Locator) -> None:
    """Visit *path* again until something is *shown*."""

    def is_shown() -> bool:
        page.goto(path)
        return shown.count() > 0

    eventually(is_shown, f"{path} is read in time")


def test_the_pages_are_read_without_javascript(browser: Browser, filled: Site) -> None:
    with opened(browser, filled, java_script_enabled=False) as page:
        # A page that a busy machine has not read in time says so, and shows it at the next visit.
        _visit_until(page, "/", page.locator(".tile", has_text="12"))
        pending_tile = page.locator(".tile", has_text="Pending").inner_text()
        _visit_until(page, "/load", page.locator("summary"))
        chart = page.locator(".chart").is_visible()
        page.locator("summary").click()
        page.locator("details a").first.click()
        listed = page.locator("tbody a.id").count()
        page.locator("tbody a.id").first.click()
        page.get_by_role("button", name="Cancel").click()
        said = page.locator(".note").inner_text()

    assert "12" in pending_tile
    assert not chart
    assert listed == 1
    assert said.startswith("Cancelled")


def test_no_page_is_wider_than_a_telephone(browser: Browser, filled: Site) -> None:
    widths = {}
    with opened(browser, filled, viewport={"width": 360, "height": 740}) as page:
        for path in (*PAGES, "/timeouts/t1", "/errors?exception=KeyError"):
            page.goto(path)
            widths[path] = page.evaluate("document.documentElement.scrollWidth")

    assert set(widths.values()) == {360}, widths


def test_a_timeout_is_cancelled_by_the_keyboard_alone(
    browser: Browser, filled: Site, endpoint: Endpoint
) -> None:
    def tab_to(page: Page, text: str) -> None:
        for _key in range(60):
            page.keyboard.press("Tab")
            found = page.evaluate("document.activeElement.textContent.trim()")
            if found == text:
                ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert ring != "none"
                return
        raise AssertionError(f"{text!r} is not reached by the keyboard")

    with opened(browser, filled) as page:
        page.goto("/")
        tab_to(page, "Skip to the content")
        tab_to(page, "Pending")
        page.keyboard.press("Enter")
        page.wait_for_url("**/pending")
        tab_to(page, "t1")
        page.keyboard.press("Enter")
        page.wait_for_url("**/timeouts/t1")
        tab_to(page, "Cancel")
        page.keyboard.press("Enter")
        said = page.get_by_role("alert").inner_text()

    assert said.startswith("Cancelled")
    assert endpoint.timeouts.count() == 11


def test_a_viewer_is_offered_no_action(browser: Browser, filled: Site) -> None:
    filled.role = Role.VIEWER
    with opened(browser, filled) as page:
        page.goto("/timeouts/t1")
        buttons = page.get_by_role("button").count()
        page.goto("/errors")
        buttons += page.get_by_role("button").count()

    assert buttons == 0


def test_a_time_is_typed_in_utc_and_kept(
    browser: Browser, filled: Site, endpoint: Endpoint
) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=400)
    with opened(browser, filled, timezone_id="Asia/Tokyo") as page:
        page.goto("/timeouts/t1")
        page.get_by_label("New due time").fill(at.strftime("%Y-%m-%dT%H:%M:%S"))
        page.get_by_role("button", name="Reschedule").click()
        page.get_by_role("alert").wait_for()
    found = endpoint.timeouts.show("t1")

    assert found is not None
    assert found[1] is not None
    assert found[1].due == to_micros(at)


def test_no_page_bars_people_with_other_senses(
    browser: Browser, filled: Site, endpoint: Endpoint
) -> None:
    fill(endpoint, [pending("late", endpoint.timeouts.now() - HOUR)])
    run = endpoint.timeouts.bulk.plan(BulkChange(action=BulkAction.CANCEL), ids=["t1"]).run
    paths = [*PAGES, "/timeouts/t1", "/errors?exception=KeyError", "/changes", f"/runs/{run.id}"]
    found = {}
    # A transition would show Axe a colour between both schemes.
    with opened(browser, filled, reduced_motion="reduce") as page:
        for path in (*paths, "/errors/message?id=KeyError-0", "/pauses", "/audit", "/nothing"):
            page.goto(path)
            for scheme, rules in RULES.items():
                page.emulate_media(color_scheme=scheme)
                violations = Axe().run(page, options=rules).response["violations"]
                serious = [one for one in violations if one["impact"] in ("serious", "critical")]
                if serious:
                    found[path, scheme] = [(one["id"], one["nodes"][0]["html"]) for one in serious]

    assert found == {}

"""Runs, pauses and the audit: planned, applied with progress, undone, and kept."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.programs import wait_until
from tests.web.conftest import STORES
from tests.web.site import HOUR, Site, fill, pending
from tests.web.test_site import ids
from timeoutmgr import Endpoint
from timeoutmgr.contracts.bulk_runs import BulkRun
from timeoutmgr.endpoint.bulk_runs import BY_API, BulkRuns
from timeoutmgr.errors import InvalidMessage, TimeoutManagerError
from timeoutmgr.message.headers import ENCLOSED_MESSAGE_TYPES
from timeoutmgr.web import Role
from timeoutmgr.web.bulk_actions import change_of
from timeoutmgr.web.operations import Operations
from timeoutmgr.web.source import EndpointSource

PLAN = {"action": "shift", "by": "2h", "destination": "billing", "reason": "billing is down"}


def dues(endpoint: Endpoint) -> list[int]:
    """The due times of all pending timeouts."""
    return [int(one.due.timestamp() * 1_000_000) for one in endpoint.timeouts.list()]


def planned(site: Site, **more: str) -> str:
    """Plan a run; return its page."""
    answer = site.post("/changes", "/changes", **{**PLAN, **more})
    assert "Planned; nothing is changed yet." in answer.text, answer.text
    return answer.url.path


def wait_for(site: Site, page: str, state: str) -> str:
    """Wait until the run has a state; return its page then."""
    wait_until(lambda: f'<p class="state">{state}' in site.get(page), f"the run is {state}")
    return site.get(page)


@pytest.mark.parametrize("kind", STORES)
def test_a_shift_is_planned_applied_and_undone(
    endpoint_of: Callable[[str], Endpoint], kind: str
) -> None:
    endpoint = endpoint_of(kind)
    now = endpoint.timeouts.now()
    fill(endpoint, [pending(f"t{n}", now + HOUR + n) for n in range(5)])
    fill(endpoint, [pending("other", now + HOUR, destination="mail")])
    before = dues(endpoint)
    with Site(endpoint) as site:
        page = planned(site)
        plan, after_plan = site.get(page), dues(endpoint)
        site.post(page, f"{page}/apply", reason="billing is down")
        applied, after_apply = wait_for(site, page, "Completed"), dues(endpoint)
        site.post(page, f"{page}/undo", reason="billing is back")
        undone, after_undo = wait_for(site, page, "Undone"), dues(endpoint)
        audit = site.get("/audit")

    assert ids(plan) == [f"t{n}" for n in range(5)]
    assert after_plan == after_undo == before
    assert sorted(after_apply) == sorted([before[0], *(due + 2 * HOUR for due in before[1:])])
    assert "Undo" in applied
    assert "/undo" not in undone
    assert "billing is down" in audit
    assert "ann (admin)" in audit


def test_a_run_takes_in_only_what_was_planned(site: Site, endpoint: Endpoint) -> None:
    now = endpoint.timeouts.now()
    fill(endpoint, [pending("t1", now + HOUR)])
    page = planned(site)
    fill(endpoint, [pending("t2", now + HOUR)])

    site.post(page, f"{page}/apply", reason="billing is down")
    wait_for(site, page, "Completed")

    assert dues(endpoint) == [now + HOUR, now + 3 * HOUR]


def test_a_plan_selects_by_the_beginning_of_ids_and_by_type(site: Site, endpoint: Endpoint) -> None:
    due = endpoint.timeouts.now() + HOUR
    refund = {ENCLOSED_MESSAGE_TYPES: "Refund"}
    fill(endpoint, [pending("a1", due), pending("a2", due, given=refund), pending("b1", due)])

    by_id = site.get(planned(site, id="a"))
    by_both = site.get(planned(site, id="a", type="Refund"))

    assert (ids(by_id), ids(by_both)) == (["a1", "a2"], ["a2"])


@pytest.mark.parametrize("field", ["id", "saga", "destination"])
def test_a_plan_selects_by_texts_with_their_outer_spaces(
    site: Site, endpoint: Endpoint, field: str
) -> None:
    due = endpoint.timeouts.now() + HOUR
    fill(endpoint, [pending(name, due, saga=name, destination=name) for name in ("q", " q")])

    plan = site.get(planned(site, **{"destination": "", field: " q"}))

    assert ids(plan) == ["%20q"]


def test_a_pause_and_a_reroute_keep_the_outer_spaces_of_their_queue(
    site: Site, endpoint: Endpoint
) -> None:
    fill(endpoint, [pending("t", endpoint.timeouts.now() + HOUR, destination="q ")])
    site.post("/pauses", "/pauses/pause", destination="q ", reason="r")
    paused = [one.destination for one in endpoint.timeouts.pauses()]
    site.post("/pauses", "/pauses/resume", destination="q ", reason="r")

    assert paused == ["q "]
    assert endpoint.timeouts.pauses() == []
    assert change_of({"action": "reroute", "queue": "q "}).destination == "q "


@pytest.mark.parametrize("typed", ["billing ", " "])
def test_a_pause_of_a_destination_with_a_space_by_mistake_is_refused(
    site: Site, endpoint: Endpoint, typed: str
) -> None:
    answer = site.post("/pauses", "/pauses/pause", destination=typed, reason="r")

    assert "remove the space" in answer.text
    assert endpoint.timeouts.pauses() == []


def test_more_than_a_hundred_timeouts_need_their_number(site: Site, endpoint: Endpoint) -> None:
    now = endpoint.timeouts.now()
    fill(endpoint, [pending(f"t{n}", now + HOUR) for n in range(101)])
    page = planned(site)

    refused = site.post(page, f"{page}/apply", reason="billing is down", typed="100")
    state = site.get(page)
    site.post(page, f"{page}/apply", reason="billing is down", typed="101")

    assert "type the number 101" in refused.text
    assert "Planned" in state
    wait_for(site, page, "Completed")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"reason": ""}, "give a reason"),
        ({"by": ""}, "shift needs by"),
        ({"by": "soon"}, "is not a duration"),
        ({"by": "--5"}, "is negative twice"),
        ({"action": "explode"}, "choose an action"),
        ({"action": "move", "at": "soon"}, "is not a time"),
        ({"action": "spread", "at": "9999-12-31", "over": "9d", "by": ""}, "the years 1 to 9999"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_the_reason(
    site: Site, endpoint: Endpoint, given: dict[str, str], complaint: str
) -> None:
    fill(endpoint, [pending("t1", endpoint.timeouts.now() + HOUR)])

    answer = site.post("/changes", "/changes", **{**PLAN, **given})

    assert complaint in answer.text
    assert endpoint.timeouts.bulk.list() == []


def test_a_long_reason_in_any_script_fits_into_the_cookie_of_a_browser(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object) -> None:
        raise InvalidMessage("\N{SNOWMAN}" * 900)

    monkeypatch.setattr(Operations, "plan", refuse)

    answer = site.post("/changes", "/changes", **PLAN)

    assert "\N{SNOWMAN}" * 200 in answer.text
    assert all(len(one.headers.get("set-cookie", "")) < 4_096 for one in answer.history)


def test_a_run_that_fails_says_why_and_can_go_on(site: Site, endpoint: Endpoint) -> None:
    fill(endpoint, [pending("t1", endpoint.timeouts.now() + HOUR)])
    page = planned(site)
    site.post(page, f"{page}/apply", reason="first")
    wait_for(site, page, "Completed")
    site.post(page, f"{page}/undo", reason="too early")
    wait_for(site, page, "Undone")

    site.post("/changes", f"{page}/apply", reason="again")

    wait_until(lambda: "note bad" in site.get(page), "the reason is shown")


def test_a_second_click_begins_no_second_run_and_a_run_holds_no_process(
    site: Site, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end, apply = threading.Event(), threading.Event(), BulkRuns.apply

    def held(bulk: BulkRuns, run_id: str, **more: Any) -> BulkRun:
        began.set()
        may_end.wait(30)
        return apply(bulk, run_id, **more)

    fill(endpoint, [pending("t1", endpoint.timeouts.now() + HOUR)])
    page = planned(site)
    monkeypatch.setattr(BulkRuns, "apply", held)
    site.post(page, f"{page}/apply", reason="first")
    assert began.wait(30)

    second = site.post("/changes", f"{page}/apply", reason="first")
    held_by = [each for each in threading.enumerate() if each.name == "timeoutmgr-web-run"]
    may_end.set()

    assert "the run is in progress already" in second.text
    assert [each.daemon for each in held_by] == [True]  # the end of a process awaits no run
    assert "note bad" not in wait_for(site, page, "Completed")
    site.app.state.operations.close()
    assert "note bad" not in site.get(page)


def test_an_unexpected_error_of_a_run_is_logged_and_shown(
    site: Site,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def apply(*_given: object, **_by: object) -> None:
        raise RuntimeError("a bug")

    fill(endpoint, [pending("t1", endpoint.timeouts.now() + HOUR)])
    page = planned(site)
    monkeypatch.setattr(BulkRuns, "apply", apply)

    site.post(page, f"{page}/apply", reason="billing is down")

    wait_until(lambda: "RuntimeError: a bug" in site.get(page), "the reason is shown")
    assert f"dashboard could not apply run {page.rpartition('/')[2]} for ann" in caplog.text


def test_a_dashboard_that_closes_begins_no_run_and_interrupts_the_run_that_goes_on(
    site: Site, endpoint: Endpoint
) -> None:
    fill(endpoint, [pending(f"t{n}", endpoint.timeouts.now() + HOUR) for n in range(2)])
    pages = [planned(site), planned(site)]
    operations = Operations(EndpointSource(endpoint))
    operations.close()

    with pytest.raises(TimeoutManagerError, match="was closed"):
        operations.begin(pages[0].rpartition("/")[2], BY_API, undo=False)
    with pytest.raises(TimeoutManagerError, match="was closed"):
        endpoint.timeouts.bulk.apply(pages[1].rpartition("/")[2], progress=operations._go_on)

    runs = {run.id: run.state for run in endpoint.timeouts.bulk.list()}
    assert [runs[page.rpartition("/")[2]] for page in pages] == ["planned", "running"]


def test_a_run_for_which_the_system_had_no_thread_goes_on_later(
    site: Site, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object) -> None:
        raise RuntimeError("can't start new thread")

    fill(endpoint, [pending("t1", endpoint.timeouts.now() + HOUR)])
    page = planned(site)
    with monkeypatch.context() as system:
        system.setattr("timeoutmgr.web.operations.begin_thread", refuse)
        refused = site.post(page, f"{page}/apply", reason="billing is down")
    site.post(page, f"{page}/apply", reason="billing is down")

    assert "can&#39;t start new thread; try again later" in refused.text
    assert "1 changed" in wait_for(site, page, "Completed")


def test_a_destination_is_paused_shown_and_resumed(site: Site, endpoint: Endpoint) -> None:
    paused = site.post("/pauses", "/pauses/pause", destination="billing", reason="down", delay="2h")
    shown = site.get("/")
    endless = site.post("/pauses", "/pauses/pause", destination="mail", reason="down", delay="-2h")
    resumed = site.post("/pauses", "/pauses/resume", destination="billing", reason="back")
    again = site.post("/pauses", "/pauses/resume", destination="billing", reason="back")

    assert "Paused." in paused.text
    assert re.search(r"Paused: billing", shown)
    assert "has passed" in endless.text
    assert "Resumed" in resumed.text
    assert "no such pause" in again.text
    assert endpoint.timeouts.pauses() == []


def test_what_a_role_does_not_permit_is_in_the_audit(site: Site, endpoint: Endpoint) -> None:
    fill(endpoint, [pending("t1", endpoint.timeouts.now() + HOUR)])
    site.role = Role.VIEWER

    answer = site.client.post("/timeouts/t1/cancel")
    (row,) = endpoint.timeouts.audit()

    assert answer.status_code == 403
    assert (row.action, row.outcome, row.actor, row.role) == ("cancel", "denied", "ann", "viewer")
    assert (row.channel, "t1" in row.selection) == ("web", True)


def test_a_viewer_sees_runs_and_no_audit(site: Site, endpoint: Endpoint) -> None:
    fill(endpoint, [pending("t1", endpoint.timeouts.now() + HOUR)])
    page = planned(site)
    site.role = Role.VIEWER

    assert "/apply" not in site.get(page)
    assert "role operator" in site.get("/audit", 403)


def test_an_unknown_run_is_named(site: Site) -> None:
    assert "no such run" in site.get("/runs/none", 404)

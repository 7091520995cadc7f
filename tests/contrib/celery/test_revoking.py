"""A revoked task is removed from the store for good, and its result says so."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chord, group
from celery.canvas import StampingVisitor

from tests.contrib.celery.conftest import MakeSite, Site
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.message.labels import MOST_LABELS

HOUR = 3600


def test_a_revoked_task_never_runs_and_its_state_is_revoked(site: Site) -> None:
    delayed = site.add.apply_async((1, 2), countdown=HOUR)

    delayed.revoke()

    assert site.stored() == []
    assert delayed.state == "REVOKED"


def test_the_parts_of_a_group_are_revoked_together(embedded: Site) -> None:
    result = group(embedded.add.s(n, n).set(countdown=HOUR) for n in range(3)).apply_async()
    kept = embedded.add.apply_async((1, 2), countdown=HOUR)

    result.revoke()

    assert embedded.stored() == [kept.id]
    assert [part.state for part in result] == ["REVOKED"] * 3


def test_every_copy_of_a_task_is_revoked(embedded: Site) -> None:
    for hours in (1, 2):
        embedded.add.apply_async((1, 2), countdown=hours * HOUR, task_id="sum")

    embedded.app.control.revoke("sum")

    assert embedded.stored() == []


def test_only_tasks_that_a_worker_may_have_are_broadcast(embedded: Site, monkeypatch: Any) -> None:
    broadcasts: list[Any] = []
    monkeypatch.setattr(
        embedded.app.control,
        "broadcast",
        lambda _what, arguments, **_: broadcasts.append(arguments),
    )
    stored = embedded.add.apply_async((1, 2), countdown=HOUR)

    embedded.app.control.revoke([stored.id, "elsewhere"])
    embedded.app.control.revoke("elsewhere", terminate=True)

    assert [each["task_id"] for each in broadcasts] == [["elsewhere"], "elsewhere"]


def test_a_chord_hears_of_a_revoked_part(embedded: Site) -> None:
    whole = chord([embedded.add.s(1, 1).set(countdown=HOUR)])(embedded.add.s(1))
    [part] = embedded.stored()

    embedded.app.control.revoke(part)

    assert embedded.app.AsyncResult(part).state == "REVOKED"
    assert whole.id


class ByCustomer(StampingVisitor):  # type: ignore[misc]  # celery is untyped
    """Stamps the signatures of one customer."""

    def __init__(self, *customers: Any) -> None:
        self._customers = customers

    def on_signature(self, _signature: Any, **_headers: Any) -> dict[str, Any]:
        return {"customer": list(self._customers)}


def stamped(site: Site, *customers: Any) -> str:
    """Send a task of *customers*; return its id."""
    signature = site.add.s(1, 2).set(countdown=HOUR)
    signature.stamp(ByCustomer(*customers))
    return str(signature.apply_async().id)


@pytest.mark.parametrize("asked", [{"customer": "c1"}, {"customer": ["c1", "c3"]}, ["customer=c1"]])
def test_stored_tasks_are_revoked_by_their_stamps(
    embedded: Site, monkeypatch: pytest.MonkeyPatch, asked: Any
) -> None:
    broadcasts: list[Any] = []

    def broadcast(what: str, arguments: Any, **_: Any) -> None:
        broadcasts.append((what, arguments["headers"]))

    monkeypatch.setattr(embedded.app.control, "broadcast", broadcast)
    ids = {customer: stamped(embedded, customer) for customer in ("c1", "c2")}
    plain = embedded.add.apply_async((1, 2), countdown=HOUR)

    embedded.app.control.revoke_by_stamped_headers(asked)

    assert sorted(embedded.stored()) == sorted([ids["c2"], plain.id])
    assert embedded.app.AsyncResult(ids["c1"]).state == "REVOKED"
    assert broadcasts == [("revoke_by_stamped_headers", asked)]


@pytest.mark.parametrize("customer", [7, "a=b", "ä" * 300, "two\nlines", {"id": 1}, "", None])
def test_any_value_of_a_stamp_finds_its_tasks(embedded: Site, customer: Any) -> None:
    found = stamped(embedded, "other", customer)
    kept = stamped(embedded, "7 ")

    assert embedded.delays.revoke_stamped({"customer": [customer]}) == (found,)
    assert embedded.stored() == [kept]


def test_a_task_with_more_stamps_than_a_store_keeps_is_stored(embedded: Site) -> None:
    found = stamped(embedded, *range(MOST_LABELS + 1))

    assert embedded.delays.revoke_stamped({"customer": MOST_LABELS - 1}) == (found,)


def test_tasks_without_the_stamp_are_not_read(
    embedded: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for customer in ("c1", "c2"):
        stamped(embedded, customer)
    timeouts = embedded.delays.endpoint.timeouts
    listed = list(timeouts.list(labels={"stamp": "customer=c1"}))

    monkeypatch.setattr(Timeouts, "stored", lambda *_: pytest.fail("reads stored tasks"))

    assert embedded.delays.revoke_stamped({"customer": "c1"}) == (listed[0].saga_id,)


def test_a_replacement_has_the_stamps_of_the_new_task(make_site: MakeSite) -> None:
    site = make_site("sqlite", on_duplicate="replace")
    for customer in ("c1", "c2"):
        signature = site.add.s(1, 2).set(countdown=HOUR, task_id="sum")
        signature.stamp(ByCustomer(customer))
        signature.apply_async()

    assert site.delays.revoke_stamped({"customer": "c1"}) == ()
    assert site.delays.revoke_stamped({"customer": "c2"}) == ("sum",)

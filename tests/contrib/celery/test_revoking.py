"""A revoked task is removed from the store for good, and its result says so."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kombu as kombu_package
import pytest
from celery import chord, group
from celery.canvas import StampingVisitor
from celery.worker import state as worker_state
from celery.worker.control import Panel
from kombu.exceptions import OperationalError

from tests.contrib.celery.conftest import MakeSite, Site
from timeoutmgr.contrib.celery import DurableDelays, takeover
from timeoutmgr.contrib.celery.delays import DELAYS
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.labels import MOST_LABELS

kombu: Any = kombu_package  # its annotations are too few to check against
HOUR = 3600
assert takeover.Takeover is not None, "the import has Celery's commands act on the store"


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


def test_a_revocation_that_no_worker_needs_to_know_has_no_replies(embedded: Site) -> None:
    stored = embedded.add.apply_async((1, 2), countdown=HOUR)

    assert embedded.app.control.revoke(stored.id, reply=True) == []


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}])
def test_a_chord_hears_of_its_revoked_parts(
    site: Site, protocol: int, options: dict[str, str]
) -> None:
    site.app.conf.task_protocol = protocol
    parts = [site.add.s(n, n).set(countdown=HOUR, **options) for n in range(2)]
    whole = chord(parts)(site.add.s(1))

    for part in site.stored():
        site.app.control.revoke(part)

    assert whole.state == "FAILURE"
    assert "revoked" in str(whole.result)


def test_a_task_that_was_rerouted_is_revoked_by_its_stamps_and_its_chord_hears_of_it(
    embedded: Site,
) -> None:
    parts = [embedded.add.s(n, n).set(countdown=HOUR) for n in range(2)]
    whole = chord(parts)(embedded.add.s(1))
    stored = stamped(embedded, "c1")
    before = list(embedded.delays.list())
    with embedded.connection() as connection:
        kombu.Queue(f"{embedded.queue}-other")(connection.channel()).declare()
    embedded.delays.endpoint.timeouts.reroute(f"{embedded.queue}-other")

    assert [each.args for each in embedded.delays.list()] == [each.args for each in before]
    assert [*embedded.delays.revoke_stamped({"customer": "c1"})] == [stored]
    for part in embedded.stored():
        embedded.app.control.revoke(part)
    assert whole.state == "FAILURE"


def test_a_task_whose_body_must_not_be_decoded_is_revoked(
    embedded: Site, caplog: pytest.LogCaptureFixture
) -> None:
    delayed = embedded.add.apply_async((1, 2), countdown=HOUR, serializer="pickle")

    delayed.revoke()

    assert embedded.stored() == []
    assert delayed.state == "REVOKED"
    assert any("cannot read whether the revoked task" in line for line in caplog.messages)


@pytest.fixture
def commands(embedded: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Have a worker of the app obey a control command."""
    monkeypatch.setattr(worker_state, "revoked", set())
    monkeypatch.setattr(worker_state, "revoked_stamps", {})
    state = SimpleNamespace(app=embedded.app, consumer=None)
    return lambda name, **given: Panel.data[name](state, **given)


@pytest.mark.parametrize(("command", "given"), [("revoke", {}), ("terminate", {"signal": "TERM"})])
@pytest.mark.parametrize("is_list", [False, True])
def test_a_command_of_any_program_revokes_a_stored_task(
    embedded: Site, commands: Any, command: str, given: dict[str, str], is_list: bool
) -> None:
    delayed = embedded.add.apply_async((1, 2), countdown=HOUR)

    answer = commands(command, task_id=[delayed.id] if is_list else delayed.id, **given)

    assert "ok" in answer
    assert embedded.stored() == []
    assert delayed.state == "REVOKED"


@pytest.mark.parametrize("headers", [{"customer": "c1"}, ["customer=c1"]])
def test_a_command_of_any_program_revokes_by_stamps(
    embedded: Site, commands: Any, headers: Any
) -> None:
    stamped(embedded, "c1")
    kept = stamped(embedded, "c2")

    assert "ok" in commands("revoke_by_stamped_headers", headers=headers)
    assert embedded.stored() == [kept]


def test_a_command_is_obeyed_without_delays_and_without_a_store(
    embedded: Site, commands: Any, away: Any
) -> None:
    assert "ok" in commands("revoke", task_id="t")
    assert "t" in worker_state.revoked
    vars(embedded.app).pop(DELAYS)
    assert "ok" in commands("revoke", task_id="u")


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the store be away; return the ids and stamps that it was asked for."""
    asked: list[str] = []

    def fail(_delays: Any, what: Any) -> Any:
        asked.append(what)
        raise StorageUnavailable("the database is away")

    monkeypatch.setattr(DurableDelays, "revoke", fail)
    monkeypatch.setattr(DurableDelays, "revoke_stamped", fail)
    return asked


def test_workers_hear_of_a_revocation_while_the_store_is_away(
    embedded: Site, away: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broadcasts: list[Any] = []
    note = lambda what, **given: broadcasts.append(given["arguments"])  # noqa: E731  # one line
    monkeypatch.setattr(embedded.app.control, "broadcast", note)

    with pytest.raises(OperationalError, match="away"):
        embedded.app.control.revoke(["t", "u"])
    with pytest.raises(OperationalError, match="away"):
        embedded.app.control.revoke_by_stamped_headers({"customer": "c1"})

    assert away == ["t", {"customer": "c1"}]
    assert broadcasts[0]["task_id"] == ["t", "u"]
    assert broadcasts[1]["headers"] == {"customer": "c1"}


def test_tasks_are_revoked_while_the_result_backend_fails(
    embedded: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_given: Any, **_options: Any) -> None:
        raise ConnectionError("Redis is away")

    sent = [embedded.add.apply_async((n, n), countdown=HOUR).id for n in range(2)]
    monkeypatch.setattr(embedded.app.backend, "mark_as_revoked", fail)

    embedded.app.control.revoke(sent)

    assert embedded.stored() == []
    assert [f"task {one} is revoked: Redis is away" in caplog.text for one in sent] == [True] * 2


def test_a_signal_is_the_fourth_argument(embedded: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[Any] = []
    note = lambda what, **given: signals.append(given["arguments"]["signal"])  # noqa: E731  # one line
    monkeypatch.setattr(embedded.app.control, "broadcast", note)

    embedded.app.control.revoke("t", None, True, "SIGKILL")
    embedded.app.control.revoke("t", terminate=True)

    assert signals == ["SIGKILL", "SIGTERM"]


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


def test_a_chord_hears_of_parts_that_are_revoked_by_stamps(
    embedded: Site, caplog: pytest.LogCaptureFixture
) -> None:
    stamped(embedded, "c1")
    parts = [embedded.add.s(n, n).set(countdown=HOUR) for n in range(2)]
    for part in parts:
        part.stamp(ByCustomer("c1"))
    whole = chord(parts)(embedded.add.s(1))

    assert len(embedded.delays.revoke_stamped({"customer": "c1"})) == 3

    assert whole.state == "FAILURE"
    assert "revoked" in str(whole.result)
    assert not [line for line in caplog.messages if "cannot read" in line]


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
    read: list[str | None] = []
    stored = Timeouts.stored

    def noted(timeouts: Timeouts, which: Any) -> Any:
        for one in stored(timeouts, which):
            read.append(one.saga_id)
            yield one

    monkeypatch.setattr(Timeouts, "stored", noted)

    assert [*embedded.delays.revoke_stamped({"customer": "c1"})] == read
    assert len(read) == 1


def test_a_replacement_has_the_stamps_of_the_new_task(make_site: MakeSite) -> None:
    site = make_site("sqlite", on_duplicate="replace")
    for customer in ("c1", "c2"):
        signature = site.add.s(1, 2).set(countdown=HOUR, task_id="sum")
        signature.stamp(ByCustomer(customer))
        signature.apply_async()

    assert site.delays.revoke_stamped({"customer": "c1"}) == ()
    assert site.delays.revoke_stamped({"customer": "c2"}) == ("sum",)

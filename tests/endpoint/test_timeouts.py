from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_timeout
from tests.support.store import ScriptedStore
from timeoutmgr import CancelResult, ChangeResult, TimeoutState
from timeoutmgr.contracts import Count, GroupBy, TimeoutStore
from timeoutmgr.contracts.bulk_runs import BulkAction, BulkChange
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.errors import DestinationNotAllowed, InvalidMessage, Unsupported
from timeoutmgr.message.instants import from_micros
from timeoutmgr.message.labels import NO_LABELS, Labels, label_headers
from timeoutmgr.message.message import with_headers
from timeoutmgr.message.validation import Limits, check_destination


class Book:
    """The timeouts of one endpoint, and the wakes that changing them caused."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = ScriptedStore(self.clock)
        self.woken: list[int] = []
        self.timeouts = Timeouts(self.store, self.woken.append)

    def put(
        self,
        message_id: str = "m1",
        due: int = START + 60 * SECOND,
        labels: Labels = NO_LABELS,
        **more: Any,
    ) -> str:
        timeout = a_timeout(message_id, due, **more)
        given = {**timeout.message.headers, **label_headers(labels)}
        timeout = replace(timeout, message=with_headers(timeout.message, given))
        self.store.store_many([timeout])
        return timeout.id


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.mark.behaviour(138)
def test_a_cancelled_timeout_is_removed_and_remembered(book: Book) -> None:
    one = book.put()

    assert book.timeouts.cancel(one) is CancelResult.CANCELLED
    assert book.timeouts.show(one) == (TimeoutState.CANCELLED, None)


@pytest.mark.behaviour(138)
def test_a_cancel_during_the_dispatch_is_too_late(book: Book) -> None:
    one = book.put(due=START)
    key = book.store.key_of(one)
    assert key is not None

    with book.store.lock_for_dispatch("", [key]):
        assert book.timeouts.cancel(one) is CancelResult.TOO_LATE


@pytest.mark.behaviour(138)
def test_cancelling_after_a_claim_that_was_never_closed_says_maybe_sent(book: Book) -> None:
    one = book.put(due=START)
    key = book.store.key_of(one)
    assert key is not None
    with book.store.lock_for_dispatch("", [key]):
        pass

    assert book.timeouts.cancel(one) is CancelResult.MAYBE_SENT


def test_a_cancel_of_a_timeout_never_stored_is_unknown(book: Book) -> None:
    assert book.timeouts.cancel("nobody") is CancelResult.WILL_BE_CANCELLED


@pytest.mark.parametrize(
    "message_id", ["m1", "6b0a3d3c-55d8-5d4f-9a0e-2f6f3f1b9f1c"], ids=["text", "like a timeout's"]
)
def test_a_timeout_is_also_named_by_the_id_of_its_message(book: Book, message_id: str) -> None:
    one = book.put(message_id)

    later = from_micros(START + 90 * SECOND)
    assert book.timeouts.reschedule(message_id, deliver_at=later) is ChangeResult.CHANGED
    found = book.timeouts.show(message_id)
    assert found is not None
    assert found[1] is not None
    assert (found[1].id, found[1].due) == (one, START + 90 * SECOND)
    assert book.timeouts.cancel(message_id) is CancelResult.CANCELLED
    assert book.timeouts.show(one) == (TimeoutState.CANCELLED, None)
    assert book.timeouts.history(message_id) == book.timeouts.history(one)


@pytest.mark.parametrize(
    "message_id", ["m1", "6b0a3d3c-55d8-5d4f-9a0e-2f6f3f1b9f1c"], ids=["text", "like a timeout's"]
)
def test_a_message_is_cancelled_by_its_own_id_before_it_is_stored(
    book: Book, message_id: str
) -> None:
    assert book.timeouts.cancel(message_id) is CancelResult.WILL_BE_CANCELLED

    book.put(message_id)

    assert book.timeouts.count() == 0


@pytest.mark.parametrize("given", ["", "x" * 201, "two\nlines", None, 5, ["m1"]])
def test_what_cannot_be_an_id_is_refused(book: Book, given: Any) -> None:
    for change in (book.timeouts.cancel, book.timeouts.send_now, book.timeouts.show):
        with pytest.raises(InvalidMessage, match="id"):
            change(given)


@pytest.mark.behaviour(31)
def test_a_timeout_that_was_cancelled_before_it_arrived_is_not_stored(book: Book) -> None:
    late = a_timeout("late")
    book.timeouts.cancel(late.id)

    book.store.store_many([late])

    assert book.timeouts.count() == 0


@pytest.mark.behaviour(30)
def test_cancelling_a_saga_leaves_other_sagas(book: Book) -> None:
    book.put("a", saga_id="s1")
    book.put("b", saga_id="s1")
    book.put("c", saga_id="s2")

    assert len(book.timeouts.cancel_saga("s1")) == 2
    assert [one.saga_id for one in book.timeouts.list()] == ["s2"]


@pytest.mark.behaviour(30)
def test_an_empty_saga_id_is_refused_with_the_documented_sentence(book: Book) -> None:
    with pytest.raises(ValueError, match="saga") as refused:
        book.timeouts.cancel_saga("")

    assert isinstance(refused.value, InvalidMessage)
    assert "clear timeouts is only supported for saga instances" in str(refused.value)


@pytest.mark.behaviour(138)
def test_a_rescheduled_timeout_has_its_new_due_time_and_wakes_the_poller(book: Book) -> None:
    one = book.put()

    result = book.timeouts.reschedule(one, deliver_at=from_micros(START + 5 * SECOND))

    assert result is ChangeResult.CHANGED
    assert [view.due for view in book.timeouts.list()] == [from_micros(START + 5 * SECOND)]
    assert book.woken == [START + 5 * SECOND]


def test_a_delay_of_a_reschedule_counts_from_the_stores_clock() -> None:
    book = Book()
    book.store._offset = 7 * SECOND
    one = book.put()

    book.timeouts.reschedule(one, delay=timedelta(seconds=1))

    assert book.woken == [START + 8 * SECOND]


def test_a_reschedule_needs_a_time(book: Book) -> None:
    with pytest.raises(InvalidMessage, match="deliver_at or delay"):
        book.timeouts.reschedule(book.put())


def test_a_reschedule_of_an_unknown_timeout_wakes_no_poller(book: Book) -> None:
    assert book.timeouts.reschedule("nobody", delay=1) is ChangeResult.UNKNOWN
    assert book.woken == []


def test_send_now_makes_it_due_now(book: Book) -> None:
    assert book.timeouts.send_now(book.put()) is ChangeResult.CHANGED
    assert book.woken == [START]


def test_the_list_is_read_page_by_page_in_order_of_due_times(book: Book) -> None:
    dues = [START + (number * 7919 % 1201) * SECOND for number in range(1201)]
    for number, due in enumerate(dues):
        book.put(f"m{number}", due)

    assert [view.due for view in book.timeouts.list()] == [from_micros(due) for due in sorted(dues)]


@pytest.mark.behaviour(45)
def test_pages_do_not_skip_timeouts_of_one_instant(book: Book) -> None:
    ids = {book.put(f"m{number}", START) for number in range(1001)}

    assert {view.id for view in book.timeouts.list()} == ids


@pytest.mark.parametrize(("limit", "found"), [(0, 0), (1, 1), (600, 600), (700, 601)])
def test_the_list_ends_at_its_limit(book: Book, limit: int, found: int) -> None:
    for number in range(601):
        book.put(f"m{number}")

    assert len(list(book.timeouts.list(limit=limit))) == found


@pytest.mark.parametrize("limit", [-1, "x", 1.5])
def test_a_limit_that_is_no_number_of_timeouts_is_refused(book: Book, limit: Any) -> None:
    with pytest.raises(InvalidMessage, match="whole number"):
        list(book.timeouts.list(limit=limit))
    with pytest.raises(InvalidMessage, match="whole number"):
        book.timeouts.list_in_bounds(limit=limit)
    with pytest.raises(InvalidMessage, match="whole number"):
        book.timeouts.reroute("billing", limit=limit)


@pytest.mark.behaviour(138)
@pytest.mark.parametrize(
    ("which", "found"),
    [
        ({}, 3),
        ({"saga_id": "s1"}, 2),
        ({"destination": "shipping"}, 1),
        ({"due_from": datetime(2030, 6, 1, 12, 0, 2, tzinfo=UTC)}, 2),
        ({"due_before": datetime(2030, 6, 1, 12, 0, 2, tzinfo=UTC)}, 1),
        ({"saga_id": "s1", "destination": "shipping"}, 0),
    ],
)
def test_counts_and_lists_agree_about_a_filter(book: Book, which: Any, found: int) -> None:
    book.put("a", START + 1 * SECOND, saga_id="s1")
    book.put("b", START + 2 * SECOND, saga_id="s1")
    book.put("c", START + 3 * SECOND, destination="shipping")

    assert book.timeouts.count(**which) == len(list(book.timeouts.list(**which))) == found


def test_a_bound_or_text_of_another_type_is_refused(book: Book) -> None:
    with pytest.raises(InvalidMessage, match="no time zone"):
        book.timeouts.count(due_from=datetime(2030, 1, 1))
    for ask in (book.timeouts.count, book.timeouts.cancel_saga, book.timeouts.cancel_where):
        with pytest.raises(InvalidMessage, match="saga_id is a text, got 42"):
            ask(saga_id=42)  # type: ignore[arg-type]  # the mistake


def test_groups_are_by_a_name_that_they_know(book: Book) -> None:
    book.put("a")
    by_type: Any = "type"

    assert book.timeouts.groups(by_type) == book.timeouts.groups(GroupBy.TYPE)
    assert book.timeouts.groups(by_type) != book.timeouts.groups(GroupBy.DESTINATION)
    refused: tuple[Any, ...] = (None, "nope", [])
    for wrong in refused:
        with pytest.raises(InvalidMessage, match="groups are by destination or type, got"):
            book.timeouts.groups(wrong)


@pytest.mark.parametrize("wrong", [-1, "5", None])
def test_groups_of_a_wrong_limit_are_refused(book: Book, wrong: Any) -> None:
    with pytest.raises(InvalidMessage, match="a limit is a whole number from 0"):
        book.timeouts.groups(GroupBy.DESTINATION, limit=wrong)


@pytest.mark.behaviour(138)
def test_a_reroute_changes_the_destination_of_the_timeouts_that_match(book: Book) -> None:
    moved = [book.put(f"m{n}", saga_id="s") for n in range(3)]
    book.put("other", destination="stock")

    seen = book.timeouts.reroute("billing-eu", destination="billing", dry_run=True)
    before = [one.destination for one in book.timeouts.list()]
    done = book.timeouts.reroute("billing-eu", destination="billing")

    assert sorted(seen.rerouted) == sorted(done.rerouted) == sorted(moved)
    assert (done.left, done.maybe_sent, done.searched_to) == ([], [], None)
    assert sorted(before) == ["billing"] * 3 + ["stock"]
    after = sorted(one.destination for one in book.timeouts.list())
    assert after == ["billing-eu"] * 3 + ["stock"]


@pytest.mark.parametrize(
    "given",
    [{"saga_id": None}, {"destination": ""}, {"labels": {}}, {"labels": {"a": []}}, {"saga_id": 5}],
)
def test_a_reroute_by_a_keyword_without_a_value_is_refused(book: Book, given: Any) -> None:
    book.put()

    with pytest.raises(InvalidMessage, match=r"saga_id|destination|label"):
        book.timeouts.reroute("elsewhere", **given)

    assert book.timeouts.count(destination="elsewhere") == 0


@pytest.mark.behaviour(138)
def test_a_reroute_goes_on_at_its_cursor(book: Book) -> None:
    ids = [book.put(f"m{n}", START + n * SECOND) for n in range(7)]

    first = book.timeouts.reroute("elsewhere", limit=5)
    second = book.timeouts.reroute("elsewhere", limit=5, after=first.searched_to)

    assert (list(first.rerouted), list(second.rerouted)) == (ids[:5], ids[5:])
    assert second.searched_to is None
    assert book.timeouts.reroute("elsewhere").rerouted == []


@pytest.mark.behaviour(138)
def test_a_reroute_leaves_a_timeout_that_is_being_dispatched(book: Book) -> None:
    one = book.put(due=START)
    key = book.store.key_of(one)
    assert key is not None

    with book.store.lock_for_dispatch("", [key]):
        done = book.timeouts.reroute("elsewhere")

    assert (done.rerouted, done.left) == ([], [one])


@pytest.mark.behaviour(138)
def test_a_reroute_to_a_queue_that_no_message_may_go_to_changes_nothing() -> None:
    def refuse(queue: str) -> None:
        check_destination(queue, Limits(refused_destinations=("secret.*",)))

    book = Book()
    book.put()
    timeouts = Timeouts(book.store, book.woken.append, require_destination=refuse)

    with pytest.raises(DestinationNotAllowed):
        timeouts.reroute("secret.vault")
    with pytest.raises(DestinationNotAllowed):
        timeouts.reroute("sales.Timeouts")

    assert [one.destination for one in book.timeouts.list()] == ["billing"]


def test_a_store_without_reroute_says_what_to_do() -> None:
    timeouts = Timeouts(cast(TimeoutStore, object()), lambda _due: None)

    with pytest.raises(Unsupported, match="Cancel the timeouts, and send the messages again"):
        timeouts.reroute("elsewhere")


@pytest.mark.behaviour(138)
def test_timeouts_are_cancelled_and_moved_by_label(book: Book) -> None:
    for name, tenant in (("a", "x"), ("b", "x"), ("c", "y")):
        book.put(name, labels={"tenant": tenant, "task": "t"})

    [one] = book.timeouts.list(labels={"tenant": "y"})
    moved = book.timeouts.reschedule_where(labels={"tenant": "y"}, delay=3600)
    met = book.timeouts.cancel_where(labels={"tenant": "x"})

    assert one.labels == ("task=t", "tenant=y")
    assert moved == {one.id: ChangeResult.CHANGED}
    assert [each.result for each in met] == [CancelResult.CANCELLED] * 2
    assert [each.id for each in book.timeouts.list(labels={"task": "t"})] == [one.id]
    assert book.timeouts.count_in_bounds(labels={"task": "t"}) == Count(1)


def test_a_cancel_of_many_names_one_label_or_one_saga(book: Book) -> None:
    for given in ({}, {"labels": {"a": "b", "c": "d"}}, {"labels": {"a": "b"}, "saga_id": "s"}):
        with pytest.raises(InvalidMessage, match="one label or one saga"):
            book.timeouts.cancel_where(**given)


CANCEL = BulkChange(action=BulkAction.CANCEL)


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize(
    "attempt",
    [
        lambda timeouts, bad: timeouts.count(saga_id=bad),
        lambda timeouts, bad: [*timeouts.list(destination=bad)],
        lambda timeouts, bad: timeouts.list_in_bounds(id_prefix=bad),
        lambda timeouts, bad: timeouts.list_in_bounds(after=f"1/{bad}"),
        lambda timeouts, bad: timeouts.cancel_saga(bad),
        lambda timeouts, bad: timeouts.cancel_where(labels={"customer": bad}),
        lambda timeouts, bad: timeouts.bulk.plan(CANCEL, ids=["a", bad]),
    ],
    ids=["count", "list", "page", "cursor", "saga", "label", "ids"],
)
def test_a_text_that_databases_refuse_is_refused_by_name(
    book: Book, attempt: Callable[[Timeouts, str], object], bad: str
) -> None:
    with pytest.raises(InvalidMessage, match=re.escape(repr(bad)[1:-1])):
        attempt(book.timeouts, bad)


def test_a_keyword_that_selects_nothing_is_refused(book: Book) -> None:
    with pytest.raises(TypeError, match="saga"):
        book.timeouts.count(saga="42")  # type: ignore[call-arg]  # a mistake

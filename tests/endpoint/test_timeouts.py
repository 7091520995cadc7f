from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_timeout
from tests.support.store import ScriptedStore
from timeoutmgr import CancelResult, ChangeResult, TimeoutState
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.instants import from_micros


class Book:
    """The timeouts of one endpoint, and the wakes that changing them caused."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = ScriptedStore(self.clock)
        self.woken: list[int] = []
        self.timeouts = Timeouts(self.store, self.woken.append)

    def put(self, message_id: str = "m1", due: int = START + 60 * SECOND, **more: Any) -> str:
        timeout = a_timeout(message_id, due, **more)
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

    assert book.timeouts.cancel_saga("s1") == 2
    assert [one.saga_id for one in book.timeouts.list()] == ["s2"]


@pytest.mark.behaviour(30)
def test_an_empty_saga_id_is_refused_with_the_documented_sentence(book: Book) -> None:
    with pytest.raises(InvalidMessage, match="clear timeouts is only supported for saga instances"):
        book.timeouts.cancel_saga("")


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


def test_a_naive_bound_of_a_filter_is_refused(book: Book) -> None:
    with pytest.raises(InvalidMessage, match="no time zone"):
        book.timeouts.count(due_from=datetime(2030, 1, 1))

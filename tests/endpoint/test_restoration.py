"""A restored store: old claims send nothing more, and the window is what may be sent again."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_timeout
from tests.support.store import ScriptedStore
from timeoutmgr.contracts import (
    CancelResult,
    GroupBy,
    Groups,
    Key,
    Outcome,
    OutcomeKind,
    TimeoutFilter,
)
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.reports import LIVE
from timeoutmgr.endpoint.restoration import Restoration, RestoreReport
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.instants import EARLIEST, duration_micros, from_micros

BY = ChangedBy(channel="cli", actor="ann", reason="disk lost")
HOUR = 3_600 * SECOND
LATE = 60 * SECOND


def restored(at: int = START) -> ScriptedStore:
    """Return a store as of *at* in which timeouts were pending, an hour later."""
    clock = FakeClock(at)
    store = ScriptedStore(clock)
    for name, due in {
        "stuck": at - HOUR,
        "late": at - LATE + SECOND,
        "in the window": at + SECOND,
        "to come": at + 2 * HOUR,
    }.items():
        store.store_many([a_timeout(name, due)])
    clock.advance(3_600)
    return store


def report_of(store: ScriptedStore, at: int = START) -> RestoreReport:
    return Restoration(store, at, LATE).release(BY)


def test_the_window_is_what_was_due_since_the_restore_and_what_may_have_been_late_then() -> None:
    report = report_of(restored())

    assert (report.window.number, report.before.number) == (2, 1)
    assert (report.start, report.end) == (START - LATE, START + HOUR)
    assert report.by_destination == {"billing": 2}


def test_a_timeout_that_waited_for_a_retry_at_the_restore_is_of_the_window() -> None:
    store = restored()
    token, [stuck, *_] = (chunk := store.claim(START, 10, "lost")).token, chunk.keys
    retry = Outcome(key=stuck, kind=OutcomeKind.RETRY, at=START, next_try=START + SECOND)
    with store.lock_for_dispatch(token, [stuck]) as locked:
        locked.close([retry])

    report = report_of(store)

    assert (report.window.number, report.before.number) == (3, 0)


def test_the_destinations_are_counted_on_behind_the_end_of_a_search() -> None:
    clock = FakeClock(START)
    store = HastyStore(clock)
    store.store_many([a_timeout(f"{n}", START + SECOND + n) for n in range(3)])
    store.store_many([a_timeout("mail", START + 2 * SECOND, destination="mail")])
    clock.advance(3_600)

    report = report_of(store)

    assert report.by_destination == {"billing": 3, "mail": 1}


class HastyStore(ScriptedStore):
    """A store whose searches for groups end behind two timeouts."""

    def groups(
        self, which: TimeoutFilter, by: GroupBy, *, limit: int, after: Key | None = None
    ) -> Groups:
        page = self.list(which, limit=min(2, limit), after=after)
        found = super().groups(which, by, limit=len(page), after=after)
        return Groups(found.counts, page[-1].key if len(page) == 2 else None)


def test_a_claim_from_before_is_released_and_its_timeouts_may_have_been_sent() -> None:
    store = restored()
    store.claim(START + HOUR, 10, "lost")

    report = report_of(store)

    assert report.released == 1
    assert store.in_flight().number == 0
    assert store.cancel(a_timeout("stuck").id) is CancelResult.MAYBE_SENT


def test_a_store_on_which_a_process_works_is_left_alone() -> None:
    store = restored()
    store.claim(START + HOUR, 10, "lost")
    store.heartbeat("mine", {})

    with pytest.raises(InvalidMessage, match="1 processes have worked on the store"):
        report_of(store)

    assert store.in_flight().number == 3


def test_heartbeats_that_the_recovery_brought_back_are_no_processes() -> None:
    clock = FakeClock(START)
    store = ScriptedStore(clock)
    store.heartbeat("lost", {})
    clock.advance(1)

    assert report_of(store).released == 0


def test_an_instant_to_come_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="cannot have been restored"):
        report_of(restored(), START + HOUR + SECOND)


def test_a_window_that_begins_after_the_restore_is_refused() -> None:
    timeouts = Timeouts(restored(), lambda _due: None)

    with pytest.raises(InvalidMessage, match=r"overdue is how late .* got -1 day"):
        timeouts.restored(from_micros(START), overdue=timedelta(hours=-1))


def test_a_time_before_the_year_1_in_utc_is_refused() -> None:
    at = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))

    with pytest.raises(InvalidMessage, match="outside the years 1 to 9999"):
        Timeouts(restored(), lambda _due: None).restored(at)


def test_a_process_that_stopped_long_ago_does_not_count() -> None:
    clock = FakeClock(START + SECOND)
    store = ScriptedStore(clock)
    store.heartbeat("stopped", {})
    clock.advance(LIVE / SECOND + 1)

    assert report_of(store).window.number == 0


def test_a_window_may_begin_before_all_calendars() -> None:
    report = Restoration(restored(), START, duration_micros(timedelta.max)).release(BY)

    assert report.start == EARLIEST

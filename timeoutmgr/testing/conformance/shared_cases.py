"""Cases that a timeout store and a delayed message store must pass alike."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock, Timeout, Transaction
from timeoutmgr.errors import MessageRejected, StorageUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import (
    HOUR,
    INSTANTS,
    MESSAGES,
    NAMES,
    SECOND,
    UNSTORABLE,
    SetClock,
    Track,
    race,
    timeout,
    undone,
)


class Subject(ABC):
    """A store of either kind, under the names that the shared cases use."""

    lists_later: ClassVar[bool]
    """Whether `kept` shows timeouts that are not due."""

    @abstractmethod
    def put(self, *timeouts: Timeout, transaction: Any = None) -> None:
        """Store *timeouts* in one batch, or each by itself if the store has no batch form."""

    @abstractmethod
    def next_due(self) -> Micros | None:
        """Return the due time of the first timeout; None if the store is empty."""

    @abstractmethod
    def kept(self) -> list[Timeout]:
        """Return the stored timeouts by due time; due timeouts alone unless `lists_later`."""

    @abstractmethod
    def comparable(self, one: Timeout) -> Timeout:
        """Return *one* without the fields that this kind of store may forget."""

    @abstractmethod
    def held(self, limit: int = 1) -> AbstractContextManager[list[Timeout]]:
        """Lock the oldest due timeouts, at most *limit*; unlock them at the end."""

    @abstractmethod
    def drain(self, limit: int = 50) -> list[str]:
        """Dispatch all due, unlocked timeouts in batches of *limit*; return the ids in order."""

    @abstractmethod
    def drop(self, one: Timeout) -> bool:
        """Cancel or remove *one*; return whether the store had it."""

    @abstractmethod
    def dispatch_in(self, transaction: Transaction) -> str:
        """Dispatch the oldest due timeout in *transaction*; return its id."""

    @abstractmethod
    def is_closed(self, one: Timeout) -> bool:
        """Return whether the dispatch of *one* was committed."""

    @abstractmethod
    def committed(self) -> AbstractContextManager[Transaction]:
        """Open a transaction of the store's database."""

    def rolled_back(self) -> AbstractContextManager[Transaction]:
        """Open a transaction of the store's database that ends with a rollback."""
        return undone(self.committed())


class SharedSuite:
    """Facts and fixtures of both kinds of store; every case is a method of a subclass."""

    durable: ClassVar[bool]
    """As in the capabilities: the store survives the process."""
    row_locks: ClassVar[bool]
    """As in the capabilities: a lock lasts until the send is done; an error undoes a removal."""
    transactions: ClassVar[bool]
    """The store has a ``database``, and its methods take part in transactions of it."""
    settable_clock: ClassVar[bool]
    """The store uses the suite's clock. False deselects cases that move the clock."""
    stores_in_batches: ClassVar[bool]
    """The store has ``store_many``."""
    limits_text: ClassVar[bool] = True
    """The store has columns, and refuses texts that the columns do not accept."""
    can_be_cut_off: ClassVar[bool] = False
    """The fixture ``cut_off`` returns a function that makes the storage unreachable."""
    races: ClassVar[int]
    """Repetitions of a race; ``--timeoutmgr-races`` overrides it."""

    @pytest.fixture
    def clock(self) -> Clock:
        """Return the clock of the stores."""
        return SetClock() if self.settable_clock else SystemClock()

    @pytest.fixture
    def make_subject(self) -> Callable[..., Subject]:
        """Override this: return a factory of stores on one storage, like those of processes.

        With ``joined=True`` the store takes part in transactions of the queue.
        """
        raise NotImplementedError("a subclass overrides the fixture make_subject")

    @pytest.fixture
    def cut_off(self) -> Callable[[], object]:
        """Override it if ``can_be_cut_off``."""
        raise NotImplementedError("a subclass that can_be_cut_off overrides the fixture cut_off")

    @pytest.fixture
    def subject(self, make_subject: Callable[..., Subject]) -> Subject:
        """Return a store."""
        return make_subject()

    @pytest.fixture
    def rounds(self, request: pytest.FixtureRequest) -> int:
        """Return how many times to run a race."""
        asked: int | None = request.config.getoption("--timeoutmgr-races", None)
        return asked or self.races

    @pytest.fixture
    def track(self) -> Iterator[Track]:
        """Return two threads that start simultaneously."""
        with Track(2) as track:
            yield track


class StoredContents(SharedSuite):
    """A store returns a message unchanged, and stores an id once."""

    @pytest.mark.parametrize("kind", MESSAGES)
    def test_a_stored_message_comes_back_unchanged(
        self, subject: Subject, now: Micros, kind: str
    ) -> None:
        made = timeout("a", now - 1, saga="S", destination="Billing ")
        stored = replace(made, message=MESSAGES[kind])

        subject.put(stored)

        assert [subject.comparable(one) for one in subject.kept()] == [subject.comparable(stored)]

    @pytest.mark.parametrize("due", INSTANTS, ids=str)
    def test_a_due_time_keeps_every_microsecond(
        self, subject: Subject, now: Micros, due: int
    ) -> None:
        subject.put(timeout("a", due))

        assert subject.next_due() == due
        shown = due <= now or subject.lists_later
        assert [one.due for one in subject.kept()] == ([due] if shown else [])

    def test_the_first_message_of_an_id_stays(self, subject: Subject, now: Micros) -> None:
        first = timeout("a", now - 2 * SECOND)
        subject.put(first)

        subject.put(timeout("a", now - 3 * SECOND, body=b"other"))
        for again in (now, now + HOUR):
            subject.put(timeout("b", now - SECOND), timeout("a", again, body=b"other"))

        assert subject.comparable(subject.kept()[0]) == subject.comparable(first)
        assert subject.drain() == ["a", "b"]
        assert subject.next_due() is None

    @needs(stores_in_batches=True)
    def test_the_first_message_of_an_id_in_a_batch_counts(
        self, subject: Subject, now: Micros
    ) -> None:
        subject.put()

        subject.put(timeout("a", now - 2), timeout("b", now - 1), timeout("a", now - 3))

        assert [(one.id, one.due) for one in subject.kept()] == [("a", now - 2), ("b", now - 1)]

    @needs(stores_in_batches=True)
    def test_a_batch_may_have_a_thousand_messages(self, subject: Subject, now: Micros) -> None:
        names = [f"{n:04}" for n in range(1_000)]

        subject.put(*(timeout(name, now - 1_000 + at) for at, name in enumerate(names)))

        assert subject.drain(300) == names

    @pytest.mark.parametrize(("one", "other"), NAMES)
    def test_ids_that_differ_by_a_byte_are_distinct(
        self, subject: Subject, now: Micros, one: str, other: str
    ) -> None:
        subject.put(timeout(one, now - 2), timeout(other, now - 1))

        assert not subject.drop(timeout(one + "  ", now))
        assert subject.drop(timeout(one, now - 2))
        assert [each.id for each in subject.kept()] == [other]

    def test_the_longest_names_are_kept(self, subject: Subject, now: Micros) -> None:
        longest = timeout("ä" * 255, now - 1, saga="ö" * 255, destination="ü" * 255)

        subject.put(longest)

        assert [subject.comparable(one) for one in subject.kept()] == [subject.comparable(longest)]

    @needs(limits_text=True)
    @pytest.mark.parametrize("bad", UNSTORABLE.values(), ids=UNSTORABLE)
    def test_text_that_fits_no_column_is_rejected(self, subject: Subject, bad: Timeout) -> None:
        with pytest.raises(MessageRejected):
            subject.put(bad)

        assert subject.next_due() is None

    @needs(stores_in_batches=True, limits_text=True)
    @pytest.mark.parametrize("bad", UNSTORABLE.values(), ids=UNSTORABLE)
    def test_a_batch_is_stored_whole_or_not_at_all(
        self, subject: Subject, now: Micros, bad: Timeout
    ) -> None:
        with pytest.raises(MessageRejected):
            subject.put(timeout("good", now), bad)

        assert subject.next_due() is None

    @needs(durable=True)
    def test_another_process_finds_a_stored_message(
        self, make_subject: Callable[..., Subject], subject: Subject, now: Micros
    ) -> None:
        subject.put(timeout("a", now - 1))

        assert make_subject().drain() == ["a"]
        assert subject.drain() == []

    @needs(can_be_cut_off=True)
    def test_a_storage_out_of_reach_is_reported_as_an_outage(
        self, subject: Subject, now: Micros, cut_off: Callable[[], object]
    ) -> None:
        one = timeout("a", now - 1)
        subject.put(one)

        cut_off()

        for call in (partial(subject.put, one), subject.next_due, subject.kept, subject.drain):
            with pytest.raises(StorageUnavailable):
                call()


class DueOrder(SharedSuite):
    """Due messages are dispatched oldest first, each by a single owner, and never early."""

    @needs(settable_clock=True)
    def test_a_message_is_due_from_its_microsecond_on(
        self, subject: Subject, clock: SetClock
    ) -> None:
        subject.put(timeout("a", clock.at + 1))

        early = _free(subject)
        clock.at += 1

        assert (early, _free(subject)) == ([], ["a"])

    def test_a_later_message_stays_in_the_store(self, subject: Subject, now: Micros) -> None:
        subject.put(timeout("later", now + 2 * HOUR), timeout("sooner", now + HOUR))

        assert _free(subject) == []
        assert subject.next_due() == now + HOUR

    def test_messages_leave_in_the_order_of_their_due_times(
        self, subject: Subject, now: Micros
    ) -> None:
        for at in (3, 1, 4, 2, 5):
            subject.put(timeout(f"t{9 - at}", now - 10 * SECOND + at))
        subject.put(timeout("later", now + HOUR), timeout("the oldest", -SECOND))

        assert subject.drain(2) == ["the oldest", "t8", "t7", "t6", "t5", "t4"]

    def test_next_due_time_is_that_of_the_first_message(
        self, subject: Subject, now: Micros
    ) -> None:
        found = [subject.next_due()]
        for due in (now + HOUR, now + 2 * HOUR, now - SECOND):
            subject.put(timeout(f"{due}", due))
            found.append(subject.next_due())
        subject.drain()
        found.append(subject.next_due())

        assert found == [None, now + HOUR, now + HOUR, now - SECOND, now + HOUR]

    def test_four_processes_drain_each_message_once(
        self, make_subject: Callable[..., Subject], subject: Subject, now: Micros
    ) -> None:
        expected = [f"t{n:03}" for n in range(60)]
        subject.put(*(timeout(name, now - HOUR + n) for n, name in enumerate(expected)))
        processes = [subject, *(make_subject() for _ in range(3))]

        got = race(*(partial(one.drain, 7) for one in processes))

        # A drain may end early: other processes have locked the rest, and unlock some later.
        got.append(subject.drain())
        assert Counter(name for each in got for name in each) == Counter(expected)
        assert subject.next_due() is None

    def test_messages_written_into_a_drained_instant_are_found(
        self, make_subject: Callable[..., Subject], subject: Subject, now: Micros
    ) -> None:
        """Ten writers fill the instant that two dispatchers drain."""
        written = threading.Semaphore(0)
        done = threading.Event()

        def write(writer: int) -> list[str]:
            mine = make_subject()
            for n in range(20):
                mine.put(timeout(f"{writer} {n:02}", now - 1))
                written.release()
            return []

        def wait_for_writers() -> list[str]:
            for _ in range(200):
                assert written.acquire(timeout=60)
            done.set()
            return []

        def send() -> list[str]:
            mine, sent = make_subject(), []
            while True:
                was_done = done.is_set()
                sent += mine.drain(13)
                if was_done:
                    return sent

        got = race(*(partial(write, n) for n in range(10)), wait_for_writers, send, send)

        got.append(subject.drain())
        sent = sorted(name for each in got for name in each)
        assert sent == sorted(f"{writer} {n:02}" for writer in range(10) for n in range(20))


@needs(transactions=True)
class SharedTransactions(SharedSuite):
    """Inserts and dispatches take part in the caller's transaction."""

    @pytest.fixture
    def joined(self, make_subject: Callable[..., Subject]) -> Subject:
        """Return a store that takes part in transactions of the queue."""
        return make_subject(joined=True)

    def test_an_insert_is_visible_after_the_commit(self, joined: Subject, now: Micros) -> None:
        with joined.committed() as transaction:
            joined.put(timeout("a", now - 1), transaction=transaction)
            before = joined.next_due()

        assert (before, ids(joined.kept())) == (None, ["a"])

    def test_a_rollback_undoes_an_insert(self, joined: Subject, now: Micros) -> None:
        joined.put(timeout("old", now - 9))

        with joined.rolled_back() as transaction:
            joined.put(timeout("a", now - 2), timeout("old", now - 8), transaction=transaction)
        joined.put(timeout("a", now - 1))  # the rolled-back insert did not use up the id

        assert [(one.id, one.due) for one in joined.kept()] == [("old", now - 9), ("a", now - 1)]

    def test_a_dispatch_ends_with_its_transaction(self, joined: Subject, now: Micros) -> None:
        stored = timeout("a", now - 1)
        joined.put(stored)

        with joined.rolled_back() as transaction:
            undone = joined.dispatch_in(transaction)
        between = [joined.comparable(one) for one in joined.kept()]
        with joined.committed() as transaction:
            done = joined.dispatch_in(transaction)

        assert (undone, between, done) == ("a", [joined.comparable(stored)], "a")
        assert joined.is_closed(stored)

    def test_a_rollback_undoes_insert_and_dispatch_together(
        self, joined: Subject, now: Micros
    ) -> None:
        joined.put(timeout("a", now - 1))

        with joined.rolled_back() as transaction:
            joined.dispatch_in(transaction)
            joined.put(timeout("b", now - 1), transaction=transaction)

        assert joined.drain() == ["a"]


class SharedCases(StoredContents, DueOrder, SharedTransactions):
    """All shared cases."""


def ids(timeouts: Sequence[Timeout]) -> list[str]:
    """Return the ids, in order."""
    return [one.id for one in timeouts]


def _free(subject: Subject) -> list[str]:
    """Return the ids of all due, unlocked timeouts."""
    with subject.held(1_000) as found:
        return ids(found)

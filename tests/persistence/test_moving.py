"""A message that the database moves arrives as if it had been sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeAlias

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, make_url, text

from tests.persistence.making import NOW, SECOND, SetClock, rolled_back, timeout
from tests.services.private import PrivateServer
from timeoutmgr.contracts import Key, Outcome, OutcomeKind, Timeout, TimeoutState
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.database import Database
from timeoutmgr.database.notifications import channel_of
from timeoutmgr.database.row_moves import Move
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.persistence.sql.store import SqlTimeoutStore
from timeoutmgr.satellites.delivery.forwarder import delivered
from timeoutmgr.transport.sql import SqlTransport
from timeoutmgr.transport.sql.options import QueueOptions

AT = NOW + SECOND


@dataclass(frozen=True)
class Place:
    """Timeouts of one endpoint, and queues, in one PostgreSQL."""

    store: SqlTimeoutStore
    transport: SqlTransport
    move: Move
    queue: str

    @property
    def database(self) -> Database:
        return self.transport.database

    def timeout(self, name: str, due: int = NOW, *, message: Message | None = None) -> Timeout:
        made = timeout(name, due, destination=self.queue)
        return made if message is None else replace(made, message=message)

    def stored(self, *timeouts: Timeout) -> list[Key]:
        self.store.store_many(timeouts)
        return [one.key for one in timeouts]

    def moved(self, keys: Sequence[Key], token: str = "") -> Sequence[Key]:
        with self.database.begin() as transaction:
            return list(self.move(token, keys, AT, transaction)[1])

    def received(self) -> list[Message]:
        with closing(self.transport.session().receiver(self.queue, prefetch=1000)) as receiver:
            found = receiver.receive(500, 0.0)
            receiver.ack(found)
        return [one.message for one in found]

    def history(self) -> list[tuple[object, ...]]:
        """Return the history of dispatches without process and row number."""
        table = self.store.context.tables.history.c
        wanted = [table.id, table.event, table.at, table.due, table.destination, table.attempt]
        query = table.id.table.select().with_only_columns(*wanted).order_by(table.sequence)
        mine = query.where(table.endpoint == self.store.endpoint, table.event == "dispatched")
        return [tuple(row) for row in self.database.run(lambda one: one.execute(mine).all())]


Tables: TypeAlias = tuple[SqlPersistence, SqlTransport]


@pytest.fixture(scope="module")
def tables(postgres_url: str) -> Iterator[Tables]:
    """The tables of timeouts and of queues; every test has its own endpoint and queue in them."""
    with _tables_in(postgres_url) as made:
        yield made


@contextmanager
def _tables_in(url: str) -> Iterator[Tables]:
    database = Database.shared(url)
    persistence = SqlPersistence(
        database, prefix="moving_", settings=SqlSettings(clock="host", history="full")
    )
    with closing(SqlTransport(database, prefix="moving_", clock=SetClock(AT))) as transport:
        persistence.install()
        transport.install()
        yield persistence, transport
    persistence.close()


@pytest.fixture
def place(tables: Tables, unique: str) -> Place:
    return _place_in(tables, unique)


def _place_in(tables: Tables, name: str) -> Place:
    persistence, transport = tables
    transport.session().create_queues([name])
    store = persistence.timeouts(name, SetClock(AT), atomic_dispatch=True)
    assert isinstance(store, SqlTimeoutStore)
    rows = transport.message_rows()
    assert rows is not None
    move = store.mover(rows, lambda name: True)
    assert move is not None
    return Place(store, transport, move, name)


# Quotes, backslashes, signs that JSON must escape, other scripts; not the NUL, which is refused.
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
messages = st.builds(
    Message,
    id=words,
    headers=st.dictionaries(
        words.filter(lambda word: word.lower() not in headers.BROKER_HEADERS), words, max_size=4
    ),
    body=st.binary(max_size=40),
    content_type=words,
    content_encoding=words,
)
_examples = count()


# The ids that an example leaves behind do not matter to the next example.
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(several=st.lists(st.tuples(words, messages), min_size=1, max_size=4))
def test_a_moved_message_is_received_as_if_it_had_been_sent(
    place: Place, several: list[tuple[str, Message]]
) -> None:
    timeouts = [
        place.timeout(f"{word}-{next(_examples)}", NOW + number, message=message)
        for number, (word, message) in enumerate(several)
    ]
    keys = place.stored(*timeouts)

    assert place.moved(keys) == keys

    moved = place.received()
    place.transport.session().send(
        [Outgoing(one.destination, delivered(one, to_wire(AT))) for one in timeouts]
    )
    assert moved == place.received()


def test_a_moved_message_is_recorded_as_if_sent_and_closed(place: Place) -> None:
    moved, closed = place.stored(place.timeout("moved"), place.timeout("closed"))
    place.moved([moved])
    with place.store.lock_for_dispatch("", [closed]) as locked:
        locked.close([Outcome(key=closed, kind=OutcomeKind.DISPATCHED, at=AT)])

    first, second = place.history()
    assert (first[0], second[0]) == ("moved", "closed")
    assert first[1:] == second[1:]
    assert place.store.find("moved") == place.store.find("closed")
    assert place.store.find("moved") == (TimeoutState.DISPATCHED, None)
    place.store.store_many([place.timeout("moved")])  # a copy that comes late
    assert place.store.next_due() is None


def test_messages_are_queued_in_the_order_in_which_they_are_due(place: Place) -> None:
    due = {"c": NOW - 3, "a": NOW - 2, "b": NOW - 2, "d": NOW - 1}
    keys = place.stored(*(place.timeout(name, due[name]) for name in "dbca"))

    place.moved(keys)

    assert [one.headers["name"] for one in place.received()] == ["c", "a", "b", "d"]


LEFT: dict[str, dict[str, Any]] = {
    "a queue that there is not": {"destination": "nowhere"},
    "due later": {"due": AT + 1},
    "an encoding that the queue does not keep": {"content_encoding": "x" * 65},
    "an id that no queue takes": {"id": ""},
    "a header that steers a broker": {"headers": {"CC": "everybody"}},
    "a header of an earlier dispatch": {"headers": {headers.DISPATCHED_AT: "yesterday"}},
    "the id of an earlier timeout": {"headers": {headers.RELATED_TO_TIMEOUT: "another"}},
}


@pytest.mark.parametrize("what", LEFT)
def test_a_message_that_needs_more_than_a_move_is_left_and_its_neighbours_are_not(
    place: Place, what: str
) -> None:
    change = dict(LEFT[what])
    whole = {name: change.pop(name) for name in ("destination", "due") if name in change}
    one = place.timeout("left")
    left = replace(one, message=replace(one.message, **change), **whole)
    keys = place.stored(place.timeout("a"), left, place.timeout("z"))

    assert place.moved(keys) == [keys[0], keys[2]]

    assert place.store.find("left") == (TimeoutState.PENDING, left)


def test_a_message_for_a_queue_with_options_is_left_to_be_sent(place: Place) -> None:
    ranked = f"{place.queue}.ranked"
    place.transport.queues.create([ranked], options=QueueOptions(max_priority=9))
    [key] = place.stored(replace(place.timeout("a"), destination=ranked))

    assert place.moved([key]) == []


def test_a_header_that_only_speaks_of_such_a_header_is_no_reason_to_stay(place: Place) -> None:
    message = replace(timeout("a").message, headers={"note": '{"cc":"x"}', "my-cc": "y"})

    assert place.moved(place.stored(place.timeout("a", message=message)))


def test_a_row_that_another_dispatcher_has_locked_is_left_and_not_waited_for(place: Place) -> None:
    free, held = place.stored(place.timeout("free"), place.timeout("held"))

    with place.store.lock_for_dispatch("", [held]):
        assert place.moved([free, held]) == [free]

    assert place.store.find("held") == (TimeoutState.PENDING, place.timeout("held"))


def test_a_rescheduled_timeout_is_left_at_its_new_due_time(place: Place) -> None:
    first, old, last = place.stored(
        place.timeout("a", NOW - 3), place.timeout("b", NOW - 2), place.timeout("c")
    )
    place.store.reschedule("b", NOW - 1)

    assert place.moved([first, old, last]) == [first, last]

    assert place.store.key_of("b") == Key(NOW - 1, "b")


def test_a_claim_ends_with_the_last_of_its_timeouts_and_not_before(place: Place) -> None:
    good, bad = place.timeout("good"), replace(place.timeout("bad"), destination="nowhere")
    place.stored(good, bad)
    chunk = place.store.claim(AT, 10, "o")

    assert place.moved(chunk.keys, chunk.token) == [good.key]
    assert place.store.statistics().claimed == 2

    place.stored(place.timeout("next"))
    whole = place.store.claim(AT, 10, "o")
    place.moved(whole.keys, whole.token)
    assert place.store.statistics().claimed == 2
    with place.store.lock_for_dispatch(chunk.token, [bad.key]) as locked:
        locked.close([Outcome(key=bad.key, kind=OutcomeKind.FAILED, at=AT)])
    assert place.store.statistics().claimed == 0


def test_a_transaction_that_comes_to_nothing_has_moved_nothing(place: Place) -> None:
    keys = place.stored(place.timeout("a"))

    with rolled_back(place.database) as transaction:
        assert list(place.move("", keys, AT, transaction)[1]) == keys

    assert place.received() == []
    assert place.store.find("a") == (TimeoutState.PENDING, place.timeout("a"))


def test_a_moved_message_wakes_a_receiver_that_waits(place: Place) -> None:
    keys = place.stored(place.timeout("a"))
    wakeup = place.transport.wakeups.wakeup(place.queue)
    with closing(place.transport.session().receiver(place.queue, prefetch=10)) as receiver:
        assert receiver.receive(1, 0.0) == []
        before = wakeup.count

        place.moved(keys)

        assert wakeup.count > before


def test_other_processes_are_woken_by_the_commit_of_a_move_and_not_before(
    place: Place, postgres_url: str
) -> None:
    keys = place.stored(place.timeout("a"), place.timeout("b"))
    where = make_url(postgres_url).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(where, autocommit=True) as listening:
        listening.execute(f"LISTEN {channel_of(place.transport.tables.messages.fullname)}")

        with rolled_back(place.database) as transaction:
            place.move("", keys, AT, transaction)
        undone = [notice.payload for notice in listening.notifies(timeout=0.2)]
        place.moved(keys)
        heard = [notice.payload for notice in listening.notifies(timeout=10, stop_after=1)]

    assert undone == []
    assert [place.queue in json.loads(payload) for payload in heard] == [True]


def test_a_claim_and_a_move_wait_for_no_disk_and_what_others_count_on_does(place: Place) -> None:
    keys = place.stored(place.timeout("a"))
    with place.database.begin() as transaction:
        assert place.store.claim(AT, 10, "o", transaction=transaction).keys
        assert not _waits_for_disk(transaction)
    with place.database.begin() as transaction:
        assert list(place.move("", keys, AT, transaction)[1]) == keys
        assert not _waits_for_disk(transaction)

    with (
        closing(place.transport.session().receiver(place.queue, prefetch=10)) as receiver,
        place.database.begin() as transaction,
    ):
        place.store.store_many([place.timeout("b")], transaction=transaction)
        receiver.ack(receiver.receive(10, 0.0), transaction=transaction)
        assert _waits_for_disk(transaction)


def test_a_claim_whose_messages_leave_the_database_waits_for_the_disk(
    tables: Tables, unique: str
) -> None:
    """After a crash of the server it tells that its timeouts may have been sent."""
    persistence, _transport = tables
    store = persistence.timeouts(unique, SetClock(AT))
    store.store_many([timeout("a")])

    with persistence.database.begin() as transaction:
        assert store.claim(AT, 10, "o", transaction=transaction).keys
        assert _waits_for_disk(transaction)


def _waits_for_disk(transaction: Connection) -> bool:
    return bool(transaction.execute(text("SHOW synchronous_commit")).scalar_one() == "on")


def test_what_a_crash_of_the_server_undoes_is_as_before_and_what_was_settled_stays_settled(
    private_server: Callable[[str], PrivateServer], unique: str
) -> None:
    server = private_server("postgres")
    server.start()
    with _tables_in(server.url) as tables:
        place = _place_in(tables, unique)
        settled: set[str] = set()
        for crash in range(3):
            names = [f"{crash}-{number}" for number in range(20)]
            keys = place.stored(*map(place.timeout, names))
            place.moved(keys[:10])
            settled |= _names(place.received())  # with a commit that waits
            place.moved(keys[10:])
            server.kill()
            server.start()
            with suppress(StorageUnavailable):  # the pool has a connection to the old server
                place.database.ping()

            pending = {name for name in names if _is_pending(place, name)}
            queued = _names(place.received())
            assert not queued & settled
            assert not pending & (queued | settled)
            assert pending | queued | settled >= set(names)
            settled |= queued


def _names(messages: Sequence[Message]) -> set[str]:
    return {one.headers["name"] for one in messages}


def _is_pending(place: Place, name: str) -> bool:
    found = place.store.find(name)
    return found is not None and found[0] is TimeoutState.PENDING


def test_only_postgresql_moves_rows(sqlite_url: str) -> None:
    with closing(SqlTransport(sqlite_url)) as transport:
        assert transport.message_rows() is None


def test_a_timeout_that_may_not_go_where_it_says_is_not_moved(place: Place) -> None:
    rows = place.transport.message_rows()
    assert rows is not None
    asked: list[str] = []

    def allows(name: str) -> bool:
        asked.append(name)
        return False

    move = place.store.mover(rows, allows)
    assert move is not None
    refused = replace(place, move=move)
    keys = refused.stored(refused.timeout("m1"))

    assert refused.moved(keys) == []
    assert asked == [place.queue]
    assert place.moved(keys) == keys


def test_rows_with_labels_are_left_to_be_sent(place: Place) -> None:
    labelled = Message(id="labelled", headers={headers.LABELS: '["a=b"]'})
    keys = place.stored(place.timeout("a", message=labelled), place.timeout("b"))

    assert [key.id for key in place.moved(keys)] == ["b"]


def test_a_timeout_that_a_pause_holds_is_not_moved(place: Place) -> None:
    keys = place.stored(place.timeout("a"))
    by = ChangedBy(channel="api")
    assert place.store.pause(place.queue, None, by)

    assert place.moved(keys) == []
    assert place.received() == []

    place.store.resume(place.queue, by)
    assert place.moved(keys) == keys

"""Unsettled messages are bounded by their bytes, on every transport."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from tests.support.forks import ended_in_a_child
from timeoutmgr.contracts import Receiver
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.settings import KombuSettings
from timeoutmgr.transport.sql import SqlTransport
from timeoutmgr.transport.sql.settings import SqlQueueSettings
from timeoutmgr.transport.unsettled_messages import ByteBudget, PrefetchWindow, UnsettledBytes

KIB = 1024
LARGE = 256 * KIB
BOUND = 4 * LARGE
"""Bytes for four large bodies."""
MIB = 1024 * KIB
STANDS = ["rabbitmq", "redis", "memory", "sqlite", "postgres", "mysql"]

AnyTransport = KombuTransport | SqlTransport


@pytest.fixture(params=STANDS)
def transport(request: pytest.FixtureRequest, unique: str) -> Iterator[AnyTransport]:
    """Each transport, with room for four large bodies."""
    name = request.param
    url = "memory://" if name == "memory" else request.getfixturevalue(f"{name}_url")
    made: AnyTransport
    if name in ("rabbitmq", "redis", "memory"):
        made = KombuTransport(url, accept_loss=True, buffer_bytes=BOUND, queue_type="classic")
    else:
        settings = SqlQueueSettings(buffer_bytes=BOUND)
        made = SqlTransport(url, prefix=f"{unique}_", settings=settings)
        made.install()
    with closing(made):
        yield made


@pytest.fixture
def queue(transport: AnyTransport, unique: str) -> Iterator[str]:
    """A queue of that transport."""
    with closing(transport.session()) as session:
        session.create_queues([unique])
        yield unique
        session.delete_queues([unique])


def fill(transport: AnyTransport, queue: str, sizes: list[int]) -> list[str]:
    """Send a message of each size; return their ids."""
    messages = [Message(id=f"m{n}", body=b"x" * size) for n, size in enumerate(sizes)]
    with closing(transport.session()) as session:
        session.send([Outgoing(queue, message) for message in messages])
    return [message.id for message in messages]


def noted(budget: ByteBudget, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that gets the bytes held after each change of *budget*."""
    found: list[int] = []
    add = budget.add

    def add_and_note(size: int) -> None:
        add(size)
        found.append(budget.held)

    monkeypatch.setattr(budget, "add", add_and_note)
    return found


def settle_all(receiver: Receiver, count: int) -> list[str]:
    """Receive and acknowledge batch by batch, as a pump does, until *count* came."""
    found: list[str] = []
    while len(found) < count:
        batch = receiver.receive(100, 10)
        assert batch, f"only {len(found)} of {count} came"
        found += [received.message.id for received in batch]
        receiver.ack(batch)
    return found


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([LARGE] * 40, id="large"),
        pytest.param([100] * 120 + [LARGE] * 40, id="small-then-large"),
        pytest.param([LARGE] * 8 + [100] * 60 + [LARGE] * 8, id="mixed"),
        pytest.param([2 * BOUND] * 3, id="larger-than-the-bound"),
    ],
)
def test_unsettled_bytes_stay_within_the_bound_and_one_body(
    transport: AnyTransport, queue: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = noted(transport.budget, monkeypatch)
    sent = fill(transport, queue, sizes)

    with (
        closing(transport.session()) as session,
        closing(session.receiver(queue, prefetch=200)) as receiver,
    ):
        found = settle_all(receiver, len(sent))

    assert found == sent
    assert max(held) <= BOUND + max(sizes)
    assert transport.budget.held == 0


def test_a_receiver_that_settles_nothing_gets_no_more_than_the_bound(
    transport: AnyTransport, queue: str
) -> None:
    fill(transport, queue, [LARGE] * 40)

    with (
        closing(transport.session()) as session,
        closing(session.receiver(queue, prefetch=200)) as receiver,
    ):
        held = 0
        while batch := receiver.receive(100, 0.3):
            held += sum(len(received.message.body) for received in batch)

        assert LARGE <= held <= BOUND + LARGE
        assert receiver.receive(100, 0) == []


@pytest.mark.parametrize("transport", [one for one in STANDS if one != "memory"], indirect=True)
def test_a_large_body_is_kept_once_and_in_few_copies_while_it_is_received(
    transport: AnyTransport, queue: str
) -> None:
    body = 6 * MIB
    fill(transport, queue, [body] * 3)
    with (
        closing(transport.session()) as session,
        closing(session.receiver(queue, prefetch=1)) as receiver,
        traced() as memory,
    ):
        start = memory()[0]
        for _ in range(3):
            tracemalloc.reset_peak()
            before = memory()[0]
            batch = receiver.receive(1, 10)
            kept, peak = (bytes_now - before for bytes_now in memory())
            size = sum(len(received.message.body) for received in batch)
            receiver.ack(batch)
            del batch

            assert size == body
            assert kept <= 1.2 * body
            assert peak <= 6 * body

        assert receiver.receive(1, 0) == []
        assert memory()[0] - start <= 0.5 * body


@contextmanager
def traced() -> Iterator[Callable[[], tuple[int, int]]]:
    """Trace the memory of Python's objects; yield a reader of its bytes now and at the peak."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


def test_postgresql_sends_a_large_body_in_slices(postgres_url: str, unique: str) -> None:
    largest = 0

    def measure(_connection: Any, cursor: Any, *_statement: Any) -> None:
        nonlocal largest
        result = cursor.pgresult
        values = (
            result.get_value(row, column) or b""
            for row in range(result.ntuples)
            for column in range(result.nfields)
        )
        largest = max(largest, *map(len, values), 0)

    with closing(SqlTransport(postgres_url, prefix=f"{unique}_")) as transport:
        transport.install()
        with closing(transport.session()) as session:
            session.create_queues([unique])
            body = random.Random(0).randbytes(5 * MIB + 1)
            session.send([Outgoing(unique, Message(id="large", body=body))])
            event.listen(transport.database.engine, "after_cursor_execute", measure)
            with closing(session.receiver(unique, prefetch=1)) as receiver:
                [received] = receiver.receive(1, 10)
                event.remove(transport.database.engine, "after_cursor_execute", measure)

                assert received.message.body == body
                assert 2 * MIB < largest <= 5 * MIB


def test_released_messages_make_room_in_the_byte_budget(
    transport: AnyTransport, queue: str
) -> None:
    sent = fill(transport, queue, [LARGE] * 12)
    with (
        closing(transport.session()) as session,
        closing(session.receiver(queue, prefetch=200)) as receiver,
    ):
        first = receiver.receive(100, 10)
        receiver.release(first)

        found = settle_all(receiver, len(sent))

    assert sorted(found) == sorted(sent)
    assert transport.budget.held == 0


def test_closing_a_receiver_gives_its_bytes_back(transport: AnyTransport, queue: str) -> None:
    fill(transport, queue, [LARGE] * 6)
    with closing(transport.session()) as session:
        receiver = session.receiver(queue, prefetch=200)
        assert receiver.receive(100, 10)

        receiver.close()

    assert transport.budget.held == 0


def test_two_receivers_share_the_bound_and_both_move_on(
    transport: AnyTransport, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = noted(transport.budget, monkeypatch)
    sent = fill(transport, queue, [LARGE] * 24)
    with (
        closing(transport.session()) as session,
        closing(session.receiver(queue, prefetch=200)) as one,
        closing(session.receiver(queue, prefetch=200)) as other,
    ):
        mine, theirs = one.receive(100, 10), other.receive(100, 10)
        assert mine
        assert theirs, "a receiver that holds nothing gets a message all the same"
        one.ack(mine)
        other.ack(theirs)
        other.close()

        rest = settle_all(one, len(sent) - len(mine) - len(theirs))

    found = [received.message.id for received in [*mine, *theirs]] + rest
    assert sorted(found) == sorted(sent)
    assert max(held) <= BOUND + 2 * LARGE


def test_a_connection_that_is_held_back_outlives_missed_heartbeats(
    rabbitmq_url: str, unique: str
) -> None:
    settings = KombuSettings(
        heartbeat=timedelta(seconds=1), buffer_bytes=BOUND, queue_type="classic"
    )
    with (
        closing(KombuTransport(rabbitmq_url, settings=settings)) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])
        sent = fill(transport, unique, [10] * 300 + [LARGE] * 200)
        with closing(session.receiver(unique, prefetch=200)) as receiver:
            found = settle_all(receiver, 300)
            held = receiver.receive(100, 10)
            # Two heartbeats missed end a connection; the broker's stand behind unread bodies.
            while more := receiver.receive(100, 4):
                held += more

            receiver.ack(held)
            found += [received.message.id for received in held]
            rest = settle_all(receiver, len(sent) - len(found))
        session.delete_queues([unique])

    assert found + rest == sent


def test_a_child_has_the_whole_budget() -> None:
    budget = ByteBudget(100)
    budget.add(70)

    assert ended_in_a_child(lambda: budget.room or 0) == 100


def test_a_receiver_that_holds_nothing_is_never_full() -> None:
    budget = ByteBudget(10)
    one, other = UnsettledBytes(budget), UnsettledBytes(budget)

    one.add("a", 50)

    assert one.is_full
    assert not other.is_full
    assert budget.held == 50
    one.settle("a")
    one.settle("a")
    assert budget.held == 0
    assert not one.is_full


def test_small_messages_reach_the_budget_together_and_are_all_counted() -> None:
    budget = ByteBudget(64 * KIB)
    one, other = UnsettledBytes(budget), UnsettledBytes(budget)

    for number in range(100):
        one.add(number, 100)

    assert 0 < budget.held <= 10_000
    assert one.room == 64 * KIB - 10_000
    assert budget.held == 10_000
    for number in range(100):
        one.settle(number)
    one.clear()
    assert budget.held == 0
    assert other.room == 64 * KIB


def test_a_window_opens_with_one_message_and_follows_the_sizes() -> None:
    held = UnsettledBytes(ByteBudget(64 * KIB))
    window = PrefetchWindow(200, 64 * KIB, held)
    assert window.size == 1

    held.add(1, 100)
    assert window.fitting == 200
    assert window.beside(1) == 199
    assert not window.misfits(199), "with what an earlier consumer has it is wide enough"
    window.size = window.fitting
    held.add(2, 32 * KIB)
    assert window.misfits(0)
    assert window.fitting == 1
    for _ in range(2000):
        held.add(3, 100)
    assert window.fitting == 200


def test_a_window_without_a_bound_is_open_at_once() -> None:
    window = PrefetchWindow(200, None, UnsettledBytes(ByteBudget(None)))

    assert (window.size, window.misfits(0)) == (200, False)


@pytest.mark.parametrize("settings", [KombuSettings, SqlQueueSettings])
def test_a_byte_bound_of_zero_is_refused(settings: Any) -> None:
    with pytest.raises(ConfigurationError, match="buffer_bytes"):
        settings(buffer_bytes=0)

"""The SQL queue delivers in kombu's event loop, which a Celery worker runs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

import kombu as kombu_package
import pytest
from kombu import asynchronous as kombu_asynchronous

from timeoutmgr.transport.sql import kombu_transport, register
from timeoutmgr.transport.sql.event_loop import LoopDelivery
from timeoutmgr.transport.sql.wakeups import Wakeup

kombu: Any = kombu_package  # its annotations are too few to check against
asynchronous: Any = kombu_asynchronous
register()
_FAR = 3600.0


@pytest.fixture
def hub() -> Iterator[Any]:
    """An event loop; each ``next(hub.loop)`` is one pass."""
    hub = asynchronous.Hub()
    yield hub
    hub.close()


@pytest.fixture
def connect(url: str, prefix: str) -> Iterator[Callable[[], Any]]:
    """Open connections to one set of tables."""
    with contextlib.ExitStack() as opened:

        def open_one() -> Any:
            options = {"prefix": prefix}
            made = kombu.Connection(f"timeoutmgr+{url}", transport_options=options)
            return opened.enter_context(made)

        yield open_one


def consume(connection: Any, hub: Any, *, prefetch: int = 0) -> list[Any]:
    """Consume from queue "q" in *hub*; return the list into which messages come."""
    connection.register_with_event_loop(hub)
    channel = connection.default_channel
    queue = kombu.Queue("q", channel=channel)
    queue.declare()
    channel.basic_qos(0, prefetch, False)
    found: list[Any] = []
    kombu.Consumer(channel, [queue], on_message=found.append).consume()
    return found


def publish(connection: Any, *bodies: str) -> None:
    for body in bodies:
        kombu.Producer(connection.default_channel).publish(body, routing_key="q")


def loop_until(hub: Any, is_true: Callable[[], bool]) -> None:
    while not is_true():
        next(hub.loop)


def test_a_message_of_another_connection_comes_in_the_loop(
    connect: Callable[[], Any], hub: Any
) -> None:
    found = consume(connect(), hub)
    publish(connect(), "one", "two")

    loop_until(hub, lambda: len(found) == 2)

    assert [message.payload for message in found] == ["one", "two"]


def test_an_acknowledgement_lets_the_next_message_come_before_the_timer(
    connect: Callable[[], Any], hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kombu_transport, "_LONGEST_PAUSE", _FAR)
    found = consume(connect(), hub, prefetch=1)
    publish(connect(), "one", "two")
    loop_until(hub, lambda: len(found) == 1)

    found[0].ack()
    loop_until(hub, lambda: len(found) == 2)

    assert found[1].payload == "two"


def test_a_closed_connection_leaves_nothing_in_the_loop(
    connect: Callable[[], Any], hub: Any
) -> None:
    connection = connect()
    found = consume(connection, hub)
    publish(connect(), "one")
    connection.release()

    assert not hub.readers
    assert [entry for entry in hub.timer.queue if not entry.entry.canceled] == []
    assert found == []


def test_a_connection_that_its_consumer_closes_stays_closed(
    connect: Callable[[], Any], hub: Any
) -> None:
    connection = connect()
    connection.register_with_event_loop(hub)
    transport, channel = connection.transport, connection.default_channel
    queue = kombu.Queue("q", channel=channel)
    queue.declare()
    closed: list[Any] = []

    def close(message: Any) -> None:
        connection.release()
        closed.append(message)

    kombu.Consumer(channel, [queue], on_message=close).consume()
    publish(connect(), "one", "two")

    loop_until(hub, lambda: bool(closed))

    assert (len(closed), transport._sql) == (1, None)


def test_a_connection_that_is_made_again_delivers_in_a_loop_that_was_reset(
    connect: Callable[[], Any], hub: Any
) -> None:
    first = connect()
    consume(first, hub)
    hub.reset()
    first.collect()
    found = consume(connect(), hub)
    publish(connect(), "one")
    hub._loop = None  # Celery makes a new generator too

    loop_until(hub, lambda: len(found) == 1)

    assert len(hub.readers) == 1


class Deliveries:
    """A stand-in for the transport's delivery, with a number of messages."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.threads: set[int] = set()

    def __call__(self) -> None:
        self.threads.add(threading.get_ident())
        if not self.left:
            raise Empty
        self.left -= 1


def test_a_notification_by_another_thread_has_the_loops_own_thread_deliver(hub: Any) -> None:
    deliver, wakeup = Deliveries(0), Wakeup()
    delivery = LoopDelivery(hub, deliver, wakeup)
    delivery.start(_FAR)
    next(hub.loop)
    deliver.left = 1

    other = threading.Thread(target=wakeup.notify)
    other.start()
    loop_until(hub, lambda: not deliver.left)
    other.join()
    delivery.stop()

    assert deliver.threads == {threading.get_ident()}


def test_other_sockets_of_the_loop_are_looked_at_between_many_messages(hub: Any) -> None:
    deliver = Deliveries(100)
    delivery = LoopDelivery(hub, deliver, Wakeup())
    delivery.start(_FAR)

    next(hub.loop)
    after_one_pass = deliver.left
    loop_until(hub, lambda: not deliver.left)
    delivery.stop()

    assert 0 < after_one_pass < 100


def test_a_message_that_nobody_announces_comes_by_the_timer(hub: Any) -> None:
    deliver = Deliveries(0)
    delivery = LoopDelivery(hub, deliver, Wakeup())
    delivery.start(0.01)
    next(hub.loop)
    deliver.left = 1

    loop_until(hub, lambda: not deliver.left)
    delivery.stop()


def test_a_ring_after_the_stop_writes_to_no_file(hub: Any) -> None:
    wakeup = Wakeup()
    delivery = LoopDelivery(hub, Deliveries(0), wakeup)
    delivery.start(_FAR)
    next(hub.loop)
    delivery.stop()
    reading, writing = os.pipe()  # has the numbers of the closed ones
    os.set_blocking(reading, False)

    delivery.ring()
    wakeup.notify()
    delivery.stop()

    with pytest.raises(BlockingIOError):
        os.read(reading, 1)
    os.close(reading)
    os.close(writing)


def test_a_forked_child_rings_for_nobody(hub: Any) -> None:
    delivery = LoopDelivery(hub, Deliveries(0), Wakeup())
    delivery.start(_FAR)
    next(hub.loop)

    child = os.fork()
    if child == 0:
        delivery.ring()
        os._exit(int(delivery._is_rung))
    _, status = os.waitpid(child, 0)
    delivery.stop()

    assert os.waitstatus_to_exitcode(status) == 0

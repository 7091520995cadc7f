"""The 28 claims of kombu's functional suite, each with the test of ours that makes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import Empty
from typing import Any, Final

import kombu as kombu_package
import pytest

from timeoutmgr.transport.sql import register

kombu: Any = kombu_package  # its annotations are too few to check against
register()

CLAIMS: Final = {
    "basic: connect": "test_a_closed_connection_opens_again",
    "basic: failed connect": "test_a_database_that_is_away_is_an_error",
    "basic: failed connection": "test_a_database_that_is_away_is_an_error",
    "basic: failed channel": "test_a_database_that_is_away_is_an_error",
    "basic: failed default channel": "test_a_database_that_is_away_is_an_error",
    "basic: default channel connects": "test_a_closed_connection_opens_again",
    "basic: channel": "test_a_channel_opens_the_connection",
    "basic: default channel": "test_a_channel_opens_the_connection",
    "basic: publish and consume": "test_a_consumer_receives_the_message_of_a_producer",
    "basic: an empty queue": "test_an_empty_queue_delivers_nothing",
    "basic: simple queue": "test_a_simple_queue_returns_what_was_put",
    "basic: simple buffer": "test_a_simple_queue_returns_what_was_put",
    "exchange: direct": "test_a_producer_sees_bindings_that_another_process_made",
    "exchange: direct, routing keys": "test_a_key_without_a_queue_is_dropped",
    "exchange: fanout": "test_a_producer_sees_bindings_that_another_process_made",
    "exchange: topic": "test_a_producer_sees_bindings_that_another_process_made",
    "exchange: without queues": "test_a_key_without_a_queue_is_dropped",
    "time to live: consume": "test_a_time_to_live_of_zero_is_over_on_the_servers_clock",
    "time to live: simple queue": "test_a_simple_queue_returns_no_message_whose_time_is_over",
    "time to live: simple buffer": "test_a_simple_queue_returns_no_message_whose_time_is_over",
    "priority: consume": "test_higher_priorities_arrive_first_and_equal_priorities_in_order",
    "priority: requeue": "test_requeued_messages_keep_their_priority",
    "priority: simple queue": "test_a_simple_queue_returns_higher_priorities_first",
    "priority: simple buffer": "test_a_simple_queue_returns_higher_priorities_first",
    "message: ack": "test_a_settled_message_does_not_come_back",
    "message: reject": "test_requeued_messages_come_back_and_rejected_messages_do_not",
    "message: reject and requeue": "test_a_message_rejected_for_requeue_comes_back",
    "message: requeue": "test_requeued_messages_come_back_and_rejected_messages_do_not",
}
SIMPLE: Final = pytest.mark.parametrize("kind", ["SimpleQueue", "SimpleBuffer"])


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a database, of each kind in turn."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def connection(url: str, prefix: str) -> Iterator[Any]:
    options = {"prefix": prefix}
    with kombu.Connection(f"timeoutmgr+{url}", transport_options=options) as connection:
        yield connection


def declare(connection: Any, name: str = "q", **options: Any) -> Any:
    queue = kombu.Queue(name, **options)(connection.default_channel)
    queue.declare()
    return queue


def test_each_of_the_28_claims_has_a_test() -> None:
    found: set[str] = set()
    for name in ("test_kombu", "test_queue_options", "test_kombu_claims"):
        module = ast.parse((Path(__file__).parent / f"{name}.py").read_text())
        found |= {node.name for node in module.body if isinstance(node, ast.FunctionDef)}

    assert set(CLAIMS.values()) - found == set()
    assert len(CLAIMS) == 28


def test_a_closed_connection_opens_again(connection: Any) -> None:
    for _ in range(2):
        assert connection.connect()
        connection.close()
        assert connection.connection is None

    assert connection.default_channel
    assert connection.connection


@pytest.mark.parametrize("use", ["connect", "connection", "channel", "default_channel"])
def test_a_database_that_is_away_is_an_error(use: str) -> None:
    url = "timeoutmgr+postgresql+psycopg://nobody@127.0.0.1:1/none"
    connection = kombu.Connection(url, transport_options={"max_retries": 1, "interval_start": 0})

    # A default channel is opened with retries, which have an error of their own.
    errors = (*connection.connection_errors, kombu.exceptions.OperationalError)
    with pytest.raises(errors, match="cannot be used now"):
        getattr(connection, use)()


@pytest.mark.parametrize("use", ["channel", "default_channel"])
def test_a_channel_opens_the_connection(connection: Any, use: str) -> None:
    channel = getattr(connection, use)

    assert channel() if use == "channel" else channel
    assert connection.connected


def test_an_empty_queue_delivers_nothing(connection: Any) -> None:
    got: list[Any] = []

    with (
        connection.Consumer([kombu.Queue("q")], on_message=got.append),
        pytest.raises(TimeoutError),
    ):
        connection.drain_events(timeout=0)

    assert got == []


@SIMPLE
def test_a_simple_queue_returns_what_was_put(connection: Any, kind: str) -> None:
    with closing(getattr(connection, kind)("q")) as queue:
        queue.put({"Hello": "World"}, headers={"k1": "v1"})
        message = queue.get(timeout=10)
        message.ack()

    assert message.payload == {"Hello": "World"}
    assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
    assert message.headers == {"k1": "v1"}


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_a_key_without_a_queue_is_dropped(connection: Any, kind: str) -> None:
    exchange = kombu.Exchange("x", kind)
    producer = connection.Producer(exchange=exchange)
    producer.publish("to no queue at all", routing_key="k1")
    one = declare(connection, "q1", exchange=exchange, routing_key="k1")
    two = declare(connection, "q2", exchange=exchange, routing_key="k2")

    producer.publish("to one queue", routing_key="k1")
    producer.publish("to no queue", routing_key="k3")

    assert one.get(no_ack=True).payload == "to one queue"
    assert one.get() is None
    assert two.get() is None


@SIMPLE
def test_a_simple_queue_returns_no_message_whose_time_is_over(connection: Any, kind: str) -> None:
    with closing(getattr(connection, kind)("q")) as queue:
        queue.put("gone", expiration=0)

        with pytest.raises(Empty):
            queue.get_nowait()


def test_requeued_messages_keep_their_priority(connection: Any) -> None:
    queue = declare(connection, max_priority=10)
    producer = connection.Producer()
    for body, priority in (("first", 3), ("second", 6), ("third", 3)):
        producer.publish(body, routing_key="q", priority=priority)
    got = [queue.get() for _ in range(3)]
    assert [message.payload for message in got] == ["second", "first", "third"]

    for message in got:
        message.requeue()
    producer.publish("fourth", routing_key="q", priority=9)

    again = [queue.get(no_ack=True).payload for _ in range(4)]
    assert again == ["fourth", "second", "first", "third"]


@SIMPLE
def test_a_simple_queue_returns_higher_priorities_first(connection: Any, kind: str) -> None:
    with closing(getattr(connection, kind)("q", queue_opts={"max_priority": 10})) as queue:
        for body, priority in (("first", 1), ("second", 7), ("third", 1)):
            queue.put(body, priority=priority)
        got = [queue.get(timeout=10) for _ in range(3)]

    assert [message.payload for message in got] == ["second", "first", "third"]


def test_a_settled_message_does_not_come_back(connection: Any) -> None:
    with closing(connection.SimpleQueue("q")) as queue:
        queue.put("once")
        queue.get_nowait().ack()

        with pytest.raises(Empty):
            queue.get_nowait()


def test_a_message_rejected_for_requeue_comes_back(connection: Any) -> None:
    with closing(connection.SimpleQueue("q")) as queue:
        queue.put("twice")
        queue.get_nowait().reject(requeue=True)

        assert queue.get_nowait().payload == "twice"

"""The SQL queue under kombu's own producers and consumers."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any, Final

import kombu as kombu_package
import pytest
from amqp.exceptions import ChannelError
from kombu import pools as kombu_pools

from chaos.forkserver_client import ForkServer
from tests.transport.sql.conftest import Maker
from tests.transport.sql.killing import kill_holding
from timeoutmgr.contracts import SendResult
from timeoutmgr.database import Database
from timeoutmgr.errors import (
    ConfigurationError,
    InvalidMessage,
    StorageUnavailable,
    TransportUnavailable,
)
from timeoutmgr.message import headers as names
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql import register

kombu: Any = kombu_package  # its annotations are too few to check against
pools: Any = kombu_pools
_ROOT: Final = Path(__file__).parents[3]
register()


@pytest.fixture
def connection(url: str, prefix: str) -> Iterator[Any]:
    """A kombu connection, which made its own tables."""
    with connect(url, prefix) as connection:
        yield connection


def connect(url: str, prefix: str) -> Any:
    return kombu.Connection(f"timeoutmgr+{url}", transport_options={"prefix": prefix})


def _be_away(*_given: object, **_more: object) -> None:
    raise StorageUnavailable("the database is away")


def get(connection: Any, name: str = "q") -> Any:
    return connection.default_channel.basic_get(name)


def declare(connection: Any, name: str = "q", **options: Any) -> Any:
    queue = kombu.Queue(name, **options)(connection.default_channel)
    queue.declare()
    return queue


@pytest.mark.parametrize(
    "url_form",
    ["timeoutmgr+sqlite:///{path}", "timeoutmgr+sqlite:////{path}"],
)
def test_each_form_of_a_sqlite_url_opens_its_file(
    tmp_path: Path, url_form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = "x.db" if "////" not in url_form else str(tmp_path / "y.db").lstrip("/")

    with kombu.Connection(url_form.format(path=path)) as connection:
        connection.ensure_connection(max_retries=1)
        assert connection.transport.sql.database.path is not None
        assert connection.transport.sql.database.path.exists()


def test_the_password_is_masked(postgres_url: str) -> None:
    connection = kombu.Connection("timeoutmgr+postgresql+psycopg://me:secret@127.0.0.1/db")

    assert "secret" not in connection.as_uri()
    assert "secret" not in repr(connection)


def test_registering_imports_no_transport() -> None:
    code = (
        "import sys, timeoutmgr.transport.sql as r\n"
        "assert r.register() and r.register()\n"
        "import kombu.transport\n"
        "assert 'timeoutmgr' in kombu.transport.TRANSPORT_ALIASES\n"
        "assert 'timeoutmgr.transport.sql.kombu_transport' not in sys.modules\n"
        "assert 'timeoutmgr.transport.sql.statements' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=_ROOT, check=True)


def test_a_consumer_receives_the_message_of_a_producer(connection: Any) -> None:
    got: list[Any] = []
    queue = kombu.Queue("q", kombu.Exchange("tasks"), routing_key="k")
    producer = connection.Producer()
    for number in range(30):
        producer.publish({"n": number}, exchange="tasks", routing_key="k", declare=[queue])

    def on_task(body: Any, message: Any) -> None:
        got.append(body["n"])
        message.ack()

    with connection.Consumer([queue], callbacks=[on_task], prefetch_count=7):
        while len(got) < 30:
            connection.drain_events(timeout=5)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.2)

    assert got == list(range(30))
    assert connection.transport.sql.database is not None
    assert declare(connection).queue_declare(passive=True).message_count == 0


def test_kombu_receives_a_message_that_kombu_sent(connection: Any) -> None:
    declare(connection)
    headers = {
        "id": "task-1",
        "retries": 0,
        "expires": None,
        "timelimit": [None, 30],
        "nested": {"a": [1, {"b": "ü"}]},
    }

    connection.Producer().publish(
        [["arg"], {"k": "w"}, {"callbacks": None}],
        routing_key="q",
        headers=headers,
        reply_to="answers",
        correlation_id="c-1",
        priority=4,
        message_id="m-1",
        serializer="json",
        compression="zlib",
    )
    message = get(connection)

    assert message.payload == [["arg"], {"k": "w"}, {"callbacks": None}]
    assert {name: message.headers[name] for name in headers} == headers
    assert message.content_type == "application/json"
    assert message.properties["reply_to"] == "answers"
    assert message.properties["correlation_id"] == "c-1"
    assert message.properties["priority"] == 4
    assert message.properties["message_id"] == "m-1"
    assert message.delivery_info["routing_key"] == "q"
    assert message.delivery_info["redelivered"] is False
    message.ack()


def test_our_receiver_receives_a_message_that_kombu_sent(
    connection: Any, make_transport: Maker
) -> None:
    declare(connection)
    headers = {"text": "ü", "number": 5, "flag": True, "none": None, "list": [1, None], "cc": "x"}

    connection.Producer().publish(
        b"\x00\xffraw",
        routing_key="q",
        headers=headers,
        message_id="m-1",
        type="Sales.OrderPlaced",
        reply_to="answers",
        correlation_id="c-1",
        content_type="application/x-mine",
        content_encoding="binary",
    )
    (received,) = make_transport().session().receiver("q", prefetch=1).receive(1, 0)

    assert received.defect is None
    assert received.message == Message(
        id="m-1",
        headers={
            "text": "ü",
            "number": "5",
            "flag": "True",
            "none": "null",
            "list": "[1, null]",
            names.MESSAGE_ID: "m-1",
            names.CORRELATION_ID: "c-1",
            names.REPLY_TO: "answers",
            names.ENCLOSED_MESSAGE_TYPES: "Sales.OrderPlaced",
            names.CONTENT_TYPE: "application/x-mine",
        },
        body=b"\x00\xffraw",
        content_type="application/x-mine",
        content_encoding="binary",
    )


def test_kombu_receives_a_message_that_our_session_sent(
    connection: Any, make_transport: Maker
) -> None:
    declare(connection)
    headers = {
        "mine": "ü",
        names.CORRELATION_ID: "c-1",
        names.REPLY_TO: "answers",
        names.ENCLOSED_MESSAGE_TYPES: "Sales.OrderPlaced, Sales;Sales.Event",
    }
    message = Message(id="m-1", headers=headers, body='{"n": "ü"}'.encode())

    assert make_transport().session().send([Outgoing("q", message)]) == [SendResult.CONFIRMED]
    got = get(connection)

    assert got.payload == {"n": "ü"}
    assert got.headers == headers
    assert got.properties["message_id"] == "m-1"
    assert got.properties["correlation_id"] == "c-1"
    assert got.properties["reply_to"] == "answers"
    assert got.properties["type"] == "Sales.OrderPlaced"
    got.ack()


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
def test_a_producer_sees_bindings_that_another_process_made(
    connection: Any, url: str, prefix: str, kind: str
) -> None:
    key = {"direct": "a.b", "topic": "a.*", "fanout": ""}[kind]
    exchange = kombu.Exchange("x", kind)
    for name in ("q1", "q2"):
        declare(connection, name, exchange=exchange, routing_key=key)
    declare(connection, "elsewhere", exchange=exchange, routing_key="z") if key else None

    with connect(url, prefix) as other:
        # The producer declares nothing: it knows the exchange from its bindings alone.
        other.Producer().publish("hello", exchange="x", routing_key="a.b")

    assert [get(connection, name).payload for name in ("q1", "q2")] == ["hello", "hello"]
    if key:
        assert get(connection, "elsewhere") is None


def test_an_unbound_queue_gets_no_message_and_a_deleted_queue_is_missing(connection: Any) -> None:
    exchange = kombu.Exchange("x")
    one = declare(connection, "q1", exchange=exchange, routing_key="k")
    two = declare(connection, "q2", exchange=exchange, routing_key="k")

    one.unbind_from(exchange, routing_key="k")
    two.delete()
    connection.Producer().publish("gone", exchange="x", routing_key="k")

    assert get(connection, "q1") is None
    with pytest.raises(ChannelError):
        two.queue_declare(passive=True)


@pytest.mark.parametrize("name", ["x" * 251, "\U0001f600" * 64, "nul\0", "half \ud800"])
def test_a_binding_that_the_tables_cannot_keep_is_refused_with_a_sentence(
    connection: Any, name: str
) -> None:
    channel = connection.default_channel
    declare(connection)
    channel.exchange_declare("x", "direct")

    with pytest.raises(ConfigurationError, match=r"binding key .* characters"):
        channel.queue_bind("q", "x", name)
    with pytest.raises(ConfigurationError, match=r"exchange .* characters"):
        channel.queue_bind("q", name, "k")
    channel.queue_unbind("q", name, name)


@pytest.mark.parametrize("name", ["x" * 251, "nul\0", "half \ud800"])
def test_a_binding_of_a_queue_that_cannot_be_is_refused(connection: Any, name: str) -> None:
    channel = connection.default_channel
    channel.exchange_declare("x", "direct")

    with pytest.raises(ConfigurationError, match="cannot be a queue"):
        channel.queue_bind(name, "x", "k")
    channel.exchange_delete(name)
    connection.Producer().publish("to nobody", exchange=name, routing_key="k")
    assert get(connection) is None


def test_a_time_to_live_beyond_any_calendar_never_ends(connection: Any) -> None:
    declare(connection)

    connection.Producer().publish("kept", routing_key="q", expiration=1e17)

    assert get(connection).payload == "kept"


def test_an_infinite_priority_is_refused_with_a_sentence(connection: Any) -> None:
    declare(connection)

    with pytest.raises(InvalidMessage, match="whole numbers"):
        connection.Producer().publish("first?", routing_key="q", priority=float("inf"))


def test_publishing_to_a_missing_queue_is_not_silent(connection: Any) -> None:
    with pytest.raises(ChannelError, match="declare it"):
        connection.Producer().publish("lost?", routing_key="nowhere")


def test_requeued_messages_come_back_and_rejected_messages_do_not(connection: Any) -> None:
    declare(connection)
    for number in range(2):
        connection.Producer().publish(number, routing_key="q")

    get(connection).reject()
    get(connection).requeue()
    again = get(connection)

    assert again.payload == 1
    assert again.delivery_info["redelivered"] is True
    again.ack()
    assert get(connection) is None


def test_a_requeue_that_an_outage_interrupted_can_be_repeated(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(connection)
    connection.Producer().publish("again", routing_key="q")
    message = get(connection)
    with monkeypatch.context() as outage:
        outage.setattr(Database, "run", _be_away)
        with pytest.raises(TransportUnavailable):
            message.requeue()

    message.requeue()

    assert get(connection).payload == "again"


def test_a_connection_keeps_nothing_of_a_closed_channel(connection: Any) -> None:
    declare(connection)
    connection.Producer().publish("unsettled", routing_key="q")
    channel = connection.channel()
    assert channel.basic_get("q") is not None
    receiver = weakref.ref(channel._receivers["q"])

    channel.close()
    del channel
    gc.collect()

    assert receiver() is None


def test_without_acknowledgement_a_message_is_deleted_on_delivery(
    connection: Any, url: str, prefix: str
) -> None:
    queue = declare(connection)
    connection.Producer().publish("once", routing_key="q")
    got: list[Any] = []

    with connection.Consumer([queue], on_message=got.append, no_ack=True):
        connection.drain_events(timeout=5)
    connection.close()

    with connect(url, prefix) as other:
        assert len(got) == 1
        assert get(other) is None


def test_a_consumer_that_acknowledges_keeps_its_messages_behind_a_consumer_that_does_not(
    connection: Any,
) -> None:
    queue = declare(connection)
    queue.consume("first", callback=ignored, no_ack=True)
    got: list[Any] = []
    queue.consume("second", callback=got.append)
    connection.Producer().publish("once", routing_key="q")

    connection.drain_events(timeout=5)
    [message] = got
    message.requeue()

    assert get(connection).payload == "once"


def test_a_message_for_a_cancelled_consumer_without_acknowledgement_stays(
    connection: Any,
) -> None:
    queue = declare(connection)
    queue.consume("first", callback=ignored)
    queue.consume("second", callback=ignored, no_ack=True)
    queue.cancel("second")
    connection.Producer().publish("once", routing_key="q")

    connection.drain_events(timeout=5)

    assert get(connection).payload == "once"


def ignored(_message: Any) -> None:
    """Do nothing with a message."""


def test_a_consumer_has_no_more_unacknowledged_messages_than_its_prefetch_count(
    connection: Any,
) -> None:
    queue = declare(connection)
    for number in range(5):
        connection.Producer().publish(number, routing_key="q")
    got: list[Any] = []

    with connection.Consumer([queue], callbacks=[lambda _, m: got.append(m)], prefetch_count=2):
        for _ in range(2):
            connection.drain_events(timeout=5)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0)
        got[0].ack()
        connection.drain_events(timeout=5)

        assert [message.payload for message in got] == [0, 1, 2]
        assert queue.queue_declare(passive=True).message_count == 2


def test_closing_gives_back_in_order_and_publishes_no_copy(
    connection: Any, url: str, prefix: str
) -> None:
    queue = declare(connection)
    for number in range(5):
        connection.Producer().publish(number, routing_key="q")
    got: list[Any] = []
    with connect(url, prefix) as consumer_connection:
        consumer = kombu.Consumer(
            consumer_connection.channel(), [queue], on_message=got.append, prefetch_count=4
        )
        consumer.consume()
        consumer_connection.drain_events(timeout=5)
        consumer_connection.drain_events(timeout=5)

    assert len(got) == 2
    left = []
    while (message := get(connection)) is not None:
        left.append(message.payload)
        message.ack()
    assert left == [0, 1, 2, 3, 4]


def test_a_cancelled_consumer_releases_the_prefetched_messages(
    connection: Any, url: str, prefix: str
) -> None:
    queue = declare(connection)
    for number in range(5):
        connection.Producer().publish(number, routing_key="q")
    got: list[Any] = []

    with connection.Consumer([queue], on_message=got.append, prefetch_count=4):
        connection.drain_events(timeout=5)

    with connect(url, prefix) as other:
        assert [get(other).payload for _ in range(4)] == [1, 2, 3, 4]
    got[0].ack()


def test_killing_a_kombu_consumer_loses_nothing(
    connection: Any, url: str, prefix: str, fork_server: ForkServer
) -> None:
    declare(connection)
    for number in range(10):
        connection.Producer().publish(number, routing_key="q")

    kill_holding(fork_server, url, prefix, "q", 5, how="kombu")
    queue = connection.SimpleQueue("q")
    left = []
    for _ in range(10):
        message = queue.get(timeout=5)
        left.append(message.payload)
        message.ack()
    with pytest.raises(Empty):
        queue.get(block=False)
    queue.close()

    assert left == list(range(10))


def test_a_publish_wakes_a_waiting_consumer(connection: Any, url: str, prefix: str) -> None:
    queue = declare(connection)
    got: list[float] = []
    sent: list[float] = []

    def publish() -> None:
        with connect(url, prefix) as other:
            other.Producer().publish("wake", routing_key="q")
            sent.append(time.monotonic())

    timer = threading.Timer(0.6, publish)
    timer.start()
    with connection.Consumer([queue], on_message=lambda _: got.append(time.monotonic())):
        connection.drain_events(timeout=10)
    timer.join()

    assert got[0] - sent[0] < 0.3


def test_a_lost_database_is_a_connection_error(connection: Any) -> None:
    assert TransportUnavailable in connection.connection_errors


def test_a_pooled_connection_of_kombu_sends_and_receives(url: str, prefix: str) -> None:
    with pools.connections[connect(url, prefix)].acquire(block=True) as pooled:
        declare(pooled)
        pooled.Producer().publish("pooled", routing_key="q")
        message = get(pooled)
        message.ack()
    pools.reset()

    assert message.payload == "pooled"

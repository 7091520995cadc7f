"""Delayed messages of dramatiq rest in the store, and come to a worker when they are due."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest

from tests.support.waiting import eventually
from timeoutmgr.contrib.dramatiq import _RUN as RUN
from timeoutmgr.contrib.dramatiq import DurableRabbitmqBroker
from timeoutmgr.contrib.worker_dispatch import LateStart
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.errors import (
    ConfigurationError,
    InvalidMessage,
    StorageUnavailable,
    TransportUnavailable,
)

HOUR = 3_600_000


class Shop:
    """A broker, an actor that notes its calls, and workers of it."""

    def __init__(self, broker: DurableRabbitmqBroker, queue: str) -> None:
        self.broker = broker
        self.ran: list[str] = []
        self.workers: list[dramatiq.Worker] = []

        def note(what: str) -> None:
            self.ran.append(what)
            if what == "fails" and len(self.ran) < 3:
                raise ValueError("again")

        options: Any = {"queue_name": queue, "min_backoff": 50, "max_backoff": 60}
        self.note: Any = dramatiq.actor(broker=broker, actor_name="note", **options)(note)

    def work(self) -> None:
        worker = dramatiq.Worker(self.broker, worker_threads=1, worker_timeout=100)
        self.workers.append(worker)
        worker.start()

    def stored(self) -> list[Any]:
        return list(self.broker.endpoint.timeouts.list())

    def rest(self) -> None:
        while self.workers:
            self.workers.pop().stop()

    def close(self) -> None:
        self.rest()
        self.broker.endpoint.close()
        for queue in self.broker.get_declared_queues():
            for name in (queue, f"{queue}.DQ", f"{queue}.XQ"):
                self.broker.channel.queue_delete(name)
        self.broker.close()


@pytest.fixture
def shop(rabbitmq_url: str, tmp_path: Path, unique: str) -> Iterator[Shop]:
    """A shop with a store in a file."""
    store = f"sqlite:///{tmp_path / 'store.db'}"
    made = Shop(DurableRabbitmqBroker(url=rabbitmq_url, store=store, name=unique), unique)
    yield made
    made.close()


def test_a_delayed_message_rests_in_the_store_until_it_is_due(shop: Shop) -> None:
    shop.note.send_with_options(args=("later",), delay=HOUR)
    shop.note.send("now")
    [stored] = shop.stored()
    shop.work()
    eventually(lambda: shop.ran == ["now"], "the message without a delay is handled")

    shop.broker.endpoint.timeouts.send_now(stored.id)

    eventually(lambda: shop.ran == ["now", "later"], "the delayed message is handled")


def test_a_retry_is_delayed_by_the_store(shop: Shop) -> None:
    shop.note.send("fails")
    shop.work()

    eventually(lambda: shop.ran == ["fails"] * 3, "the third try succeeds")


def retried(shop: Shop, message: Any, trace: str = "one") -> None:
    """Retry *message* as a worker that handled it does."""
    shop.broker.emit_before("process_message", message)
    retries = message.options.get("retries", 0) + 1
    shop.broker.enqueue(message.copy(options={"retries": retries, "traceback": trace}), delay=HOUR)


def test_a_retry_of_a_redelivered_message_is_stored_once(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = shop.broker.enqueue(shop.note.message("a"))
    for trace in ("one", "two"):
        retried(shop, first, trace)

    assert len(shop.stored()) == 1
    assert any("the store has timeout" in line for line in caplog.messages)


def test_a_message_that_is_sent_again_keeps_its_retries(shop: Shop) -> None:
    message = shop.note.message("a")
    for _ in range(2):
        retried(shop, shop.broker.enqueue(message))

    assert len(shop.stored()) == 2


def test_a_retried_message_that_its_actor_sends_again_is_another_message(shop: Shop) -> None:
    run = shop.note.message("a").copy(options={"retries": 1, RUN: "r"})
    retried(shop, run.copy(options={"retries": 0}))
    shop.broker.emit_before("process_message", run)

    for _ in range(2):
        retried(shop, shop.broker.enqueue(run, delay=HOUR))
        shop.broker.emit_before("process_message", run)

    assert len(shop.stored()) == 5


def test_a_dead_message_that_an_operator_sends_again_is_stored(shop: Shop) -> None:
    dead = shop.note.message("a").copy(options={"retries": 1, RUN: "r"})
    retried(shop, dead.copy(options={"retries": 0}))
    context = contextvars.Context()

    context.run(shop.broker.enqueue, dead, delay=HOUR)

    assert len(shop.stored()) == 2


@pytest.fixture
def away(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of the shop is away."""

    def store_many(*_: Any, **__: Any) -> None:
        raise StorageUnavailable("the database is away")

    monkeypatch.setattr(shop.broker.endpoint, "store_many", store_many)


@pytest.mark.usefixtures("away")
def test_a_message_that_fails_while_the_store_is_away_is_retried(shop: Shop) -> None:
    shop.note.send("fails")
    shop.work()

    eventually(lambda: shop.ran == ["fails"] * 3, "the third try succeeds")


@pytest.mark.usefixtures("away")
def test_a_pipeline_goes_on_while_the_store_is_away(shop: Shop) -> None:
    then = shop.note.message_with_options(args=("then",), delay=50, pipe_ignore=True)
    dramatiq.pipeline([shop.note.message("first"), then], broker=shop.broker).run()  # type: ignore[no-untyped-call]  # dramatiq has few types
    shop.work()

    eventually(lambda: shop.ran == ["first", "then"], "the next message is handled")


@pytest.mark.usefixtures("away")
def test_a_send_of_a_program_raises_while_the_store_is_away(shop: Shop) -> None:
    with pytest.raises(StorageUnavailable):
        shop.note.send_with_options(args=("later",), delay=HOUR)


@pytest.mark.parametrize("delay", [10**18, 10**400], ids=["long", "no float"])
def test_a_send_that_is_refused_raises_its_own_error(shop: Shop, delay: int) -> None:
    with pytest.raises(InvalidMessage, match="9999"):
        shop.note.send_with_options(args=("later",), delay=delay)


def test_a_delay_that_is_no_number_is_refused(shop: Shop) -> None:
    delay: Any = "5"

    with pytest.raises(InvalidMessage, match="in milliseconds, got '5'"):
        shop.broker.enqueue(shop.note.message("later"), delay=delay)


def test_a_message_with_a_negative_delay_is_handled_at_once(shop: Shop) -> None:
    shop.note.send_with_options(args=("late",), delay=-2000)
    shop.work()

    eventually(lambda: shop.ran == ["late"], "the message is handled")


@pytest.mark.parametrize("error", [StorageUnavailable, TransportUnavailable])
def test_a_worker_starts_while_a_server_is_away_and_dispatches_later(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    shop.note.send_with_options(args=("due",), delay=1)
    start, failures = Endpoint.start, [error("away"), error("away"), error("away")]

    def start_later(endpoint: Endpoint) -> None:
        if failures:
            raise failures.pop()
        start(endpoint)

    monkeypatch.setattr(Endpoint, "start", start_later)
    monkeypatch.setattr(LateStart.__init__, "__defaults__", (0.01,))
    shop.work()

    eventually(lambda: shop.ran == ["due"], "the delayed message is handled")


def test_a_worker_ends_while_a_server_is_away(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_endpoint: Endpoint) -> None:
        raise StorageUnavailable("away")

    monkeypatch.setattr(Endpoint, "start", away)
    shop.work()

    shop.rest()

    assert LateStart.thread_name not in [thread.name for thread in threading.enumerate()]


def test_a_worker_that_can_never_dispatch_says_so(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_endpoint: Endpoint) -> None:
        raise ConfigurationError("another broker")

    monkeypatch.setattr(Endpoint, "start", refused)
    shop.work()

    [line] = [one for one in caplog.records if one.__dict__.get("event") == "dispatch_not_started"]
    assert "dispatches nothing" in line.getMessage()


def test_a_stored_message_can_be_cancelled_by_its_id(shop: Shop) -> None:
    message = shop.note.send_with_options(args=("a",), delay=HOUR)

    assert len(shop.broker.endpoint.timeouts.cancel_saga(message.message_id)) == 1
    assert shop.stored() == []


@pytest.mark.parametrize(
    "url",
    [
        "amqp://u:p@rabbit/v;amqp://u:p@hare/v",
        ["amqp://u:p@rabbit/v", "amqp://u:p@hare/v"],
        "amqp://u:p@rabbit/v?heartbeat=30&connection_attempts=3;amqp://u:p@hare/v?locale=de_DE",
    ],
)
def test_due_messages_go_to_the_brokers_of_each_url_that_dramatiq_reads(
    url: str | list[str], tmp_path: Path
) -> None:
    broker = DurableRabbitmqBroker(url=url, store=f"sqlite:///{tmp_path / 'store.db'}")

    described = broker.configuration().settings().transport.describe()

    assert described.endswith("at amqp://u:***@rabbit/v;amqp://u:***@hare/v")

"""An outage of the dead-letter store, while queues and timeouts work."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.deadletter.making import ids
from tests.support.waiting import eventually
from timeoutmgr import CriticalErrorContext, Endpoint, EndpointConfiguration
from timeoutmgr.contracts import TransactionMode, answers
from timeoutmgr.contracts.dead_letters import DeliveryOptions, JournalLevel
from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.deadletter import (
    DeadLetterQueues,
    DeadLetterStore,
    NodeQueue,
    StoredCopyQueue,
    feature,
)
from timeoutmgr.deadletter.feature import SENTENCE
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.errors import MessageRejected
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import Inbox
from timeoutmgr.testing.faultproxy import FaultProxy

SHORT = timedelta(milliseconds=200)


class Alarm:
    """The first critical error of an endpoint."""

    def __init__(self) -> None:
        self._sentence = ""
        self._rang = threading.Event()

    def __call__(self, context: CriticalErrorContext) -> None:
        self._sentence = self._sentence or context.error
        self._rang.set()

    def wait(self) -> str:
        assert self._rang.wait(30), "no critical error was raised"
        return self._sentence


@pytest.fixture
def alarm() -> Alarm:
    return Alarm()


@pytest.fixture(params=["placed", "journaled"])
def endpoint(
    request: pytest.FixtureRequest, alarm: Alarm, sqlite_url: str, tmp_path: Path, unique: str
) -> Iterator[Endpoint]:
    """An endpoint that rejects its messages, or journals them, in a file of its own."""
    is_journaled = request.param == "journaled"
    config = EndpointConfiguration(unique)
    config.use_transport(sqlite_url)
    config.define_critical_error_action(alarm)
    config.enable_feature(
        DeadLetterQueues(
            node=unique,
            store=f"sqlite:///{tmp_path / 'dead.db'}",
            journaled=(unique,) if is_journaled else (),
            time_to_wait_before_critical_error=SHORT,
        )
    )

    @config.handler("Order")
    def handle(_message: object, _context: HandlerContext) -> None:
        if not is_journaled:
            raise MessageRejected("no such customer")

    with closing(Endpoint(config)) as made:
        made.install()
        yield made


def test_an_outage_of_the_dead_letter_store_alone_is_a_critical_error(
    endpoint: Endpoint, alarm: Alarm, tmp_path: Path
) -> None:
    endpoint.start()
    (tmp_path / "dead.db").rename(tmp_path / "away.db")

    endpoint.send_local("Order", 1, delivery=DeliveryOptions(journal=JournalLevel.DEADLETTER))

    assert alarm.wait() == SENTENCE


def test_a_stop_waits_for_no_answer_of_the_dead_letter_store_either(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    databases = [each.path for each in endpoint._parts.databases]

    assert tmp_path / "dead.db" in databases


@pytest.fixture
def endless_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call fails by itself, however long the machine takes."""
    for bound in ("SHORTEST", "LONGEST"):
        monkeypatch.setattr(answers, bound, 3600.0)
    monkeypatch.setattr("timeoutmgr.database.deadlines.ANSWER", 3600.0)


@pytest.mark.usefixtures("endless_calls")
@pytest.mark.parametrize(
    "mode", [TransactionMode.TRANSACTION_SCOPE, TransactionMode.RECEIVE_ONLY], ids=str
)
def test_a_dead_letter_store_that_hangs_holds_up_only_its_dead_letters(
    mode: TransactionMode,
    alarm: Alarm,
    sqlite_url: str,
    postgres_url: str,
    unique: str,
) -> None:
    config, inbox = EndpointConfiguration(unique), Inbox()
    config.use_transport(sqlite_url)
    config.use_persistence(sqlite_url)
    config.transaction_mode, config.check_destinations = mode, False
    config.enable_feature(TimeoutManager())
    config.define_critical_error_action(alarm)
    config.add_handler("Order", inbox)
    with FaultProxy.before(postgres_url) as proxy:
        url = proxy.url(postgres_url)
        config.enable_feature(
            DeadLetterQueues(node=unique, store=url, time_to_wait_before_critical_error=SHORT)
        )
        with closing(Endpoint(config)) as endpoint:
            endpoint.start()
            proxy.blackhole()
            lost = []
            for number in range(3):
                lost.append(endpoint.send("nowhere", "Order", number, delay=0.1).message_id)
                fine = endpoint.send_local("Order", number, delay=0.1)
                inbox.wait_for_id(fine.message_id)
            assert alarm.wait() == SENTENCE
            eventually(lambda: endpoint.timeouts.count() == len(lost), "only the lost are stored")
            proxy.heal()
            eventually(lambda: endpoint.timeouts.count() == 0, "each dead letter has its place")
    with closing(DeadLetterStore(postgres_url)) as store:
        dead = StoredCopyQueue(QueueManager(store=store, node=unique), NodeQueue.DEADLETTER)
        assert sorted(ids(dead)) == sorted(lost)


@pytest.mark.parametrize(
    "mode", [TransactionMode.TRANSACTION_SCOPE, TransactionMode.RECEIVE_ONLY], ids=str
)
def test_a_file_of_dead_letters_that_another_process_locks_holds_up_only_its_dead_letters(
    mode: TransactionMode, sqlite_url: str, tmp_path: Path, unique: str
) -> None:
    config, inbox, file = EndpointConfiguration(unique), Inbox(), tmp_path / "dead.db"
    config.use_transport(sqlite_url)
    config.use_persistence(sqlite_url)
    config.transaction_mode, config.check_destinations = mode, False
    config.enable_feature(TimeoutManager())
    endless = DatabaseSettings(write_wait=3600.0)
    store = DeadLetterStore(Database(f"sqlite:///{file}", endless))
    config.enable_feature(DeadLetterQueues(node=unique, store=store))
    config.add_handler("Order", inbox)
    with closing(Endpoint(config)) as endpoint:
        endpoint.start()
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for number in range(3):
                endpoint.send("nowhere", "Order", number, delay=0.1)
                fine = endpoint.send_local("Order", number, delay=0.1)
                inbox.wait_for_id(fine.message_id)
            eventually(lambda: endpoint.timeouts.count() == 3, "only the lost are stored")
        eventually(lambda: endpoint.timeouts.count() == 0, "each dead letter has its place")


@pytest.mark.usefixtures("endless_calls")
def test_a_dispatch_waits_for_no_pump_that_waits_for_the_dead_letter_store(
    sqlite_url: str, postgres_url: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature, "LONGEST_ANSWER", 3600.0)
    config, handled, inbox = EndpointConfiguration(unique), Inbox(), Inbox()
    config.use_transport(sqlite_url)
    config.use_persistence(sqlite_url)
    config.transaction_mode = TransactionMode.RECEIVE_ONLY
    config.check_destinations = False
    config.enable_feature(TimeoutManager())
    config.add_handler("Order", handled)
    elsewhere = EndpointConfiguration(f"{unique}_elsewhere")
    elsewhere.use_transport(sqlite_url)
    elsewhere.add_handler("Order", inbox)
    with FaultProxy.before(postgres_url) as proxy:
        url = proxy.url(postgres_url)
        config.enable_feature(DeadLetterQueues(node=unique, store=url, journaled=(unique,)))
        with closing(Endpoint(elsewhere)) as receiver, closing(Endpoint(config)) as endpoint:
            receiver.start()
            endpoint.start()
            proxy.blackhole()
            handled.wait_for_id(endpoint.send_local("Order", 0).message_id)
            for number in range(3):
                endpoint.send("nowhere", "Order", number, delay=0.1)
                fine = endpoint.send(receiver.name, "Order", number, delay=0.1)
                inbox.wait_for_id(fine.message_id)
            proxy.heal()


@pytest.mark.parametrize(
    ("queues", "mode"),
    [
        pytest.param("mysql_url", TransactionMode.TRANSACTION_SCOPE, id="scope"),
        pytest.param("mysql_url", TransactionMode.RECEIVE_ONLY, id="receive only"),
        pytest.param("sqlite_url", TransactionMode.RECEIVE_ONLY, id="receive only from a file"),
    ],
)
def test_a_dead_letter_store_that_is_slow_is_waited_for_where_no_other_writer_waits(
    queues: str,
    mode: TransactionMode,
    request: pytest.FixtureRequest,
    postgres_url: str,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feature, "LONGEST_ANSWER", 0.0)  # any call takes longer
    config, inbox = EndpointConfiguration(unique), Inbox()
    config.use_transport(request.getfixturevalue(queues))
    config.transaction_mode = mode
    config.enable_feature(DeadLetterQueues(node=unique, store=postgres_url, journaled=(unique,)))
    config.add_handler("Order", inbox)
    with closing(Endpoint(config)) as endpoint:
        endpoint.start()
        sent = [endpoint.send_local("Order", number).message_id for number in range(5)]
        eventually(
            lambda: endpoint.snapshot().get("handled") == len(sent), "each message is handled"
        )

    assert sorted(arrival.id for arrival in inbox.arrived) == sorted(sent)
    with closing(DeadLetterStore(postgres_url)) as dead:
        manager = QueueManager(store=dead, node=unique)
        assert sorted(ids(StoredCopyQueue(manager, NodeQueue.JOURNAL, unique))) == sorted(sent)


def configured(
    name: str, inbox: Inbox, queues: str, store: str, mode: TransactionMode
) -> EndpointConfiguration:
    config = EndpointConfiguration(name)
    config.use_transport(queues)
    config.use_persistence(queues)
    config.transaction_mode = mode
    config.enable_feature(TimeoutManager())
    config.enable_feature(DeadLetterQueues(node=name, store=store))
    config.add_handler("Order", inbox)
    return config


@pytest.mark.usefixtures("endless_calls")
@pytest.mark.parametrize(
    "delivery",
    [
        pytest.param(DeliveryOptions(journal=JournalLevel.BOTH), id="journaled"),
        pytest.param(DeliveryOptions(transactional=True), id="transactional"),
    ],
)
@pytest.mark.parametrize(
    "mode", [TransactionMode.TRANSACTION_SCOPE, TransactionMode.RECEIVE_ONLY], ids=str
)
def test_a_dead_letter_store_that_hangs_holds_up_no_message_that_it_was_to_note(
    mode: TransactionMode,
    delivery: DeliveryOptions,
    sqlite_url: str,
    postgres_url: str,
    unique: str,
) -> None:
    inbox = Inbox()
    made = partial(configured, unique, inbox, sqlite_url, mode=mode)
    elsewhere = EndpointConfiguration(f"{unique}_elsewhere")  # its handler would settle the copy
    elsewhere.use_transport(sqlite_url)
    with (
        FaultProxy.before(postgres_url) as proxy,
        closing(Endpoint(elsewhere)) as receiver,
        closing(Endpoint(made(postgres_url))) as sender,
        closing(Endpoint(made(proxy.url(postgres_url)))) as worker,
    ):
        receiver.install()
        worker.install()
        noted = sender.send(elsewhere.name, "Order", 0, delay=3_600, delivery=delivery)
        worker.start()
        eventually(lambda: sender.timeouts.count() == 1, "the timeout is stored")
        proxy.blackhole()

        sender.timeouts.send_now(noted.message_id)
        for number in range(3):
            fine = sender.send_local("Order", number, delay=0.1)
            inbox.wait_for_id(fine.message_id)
        eventually(lambda: sender.timeouts.count() == 0, "each timeout is dispatched")

        proxy.heal()


def test_a_handler_that_waits_for_a_store_that_hangs_keeps_no_program_from_sending(
    sqlite_url: str, postgres_url: str, unique: str
) -> None:
    inbox, mode = Inbox(), TransactionMode.TRANSACTION_SCOPE
    made = partial(configured, unique, inbox, sqlite_url, mode=mode)
    with (
        FaultProxy.before(postgres_url) as proxy,
        closing(Endpoint(made(postgres_url))) as sender,
        closing(Endpoint(made(proxy.url(postgres_url)))) as worker,
    ):
        worker.install()
        given = DeliveryOptions(transactional=True)
        noted = sender.send_local("Order", 0, delay=3_600, delivery=given)
        worker.start()
        eventually(lambda: sender.timeouts.count() == 1, "the timeout is stored")
        proxy.blackhole()
        sender.timeouts.send_now(noted.message_id)
        inbox.wait_for_id(noted.message_id)

        later = sender.send_local("Order", 1)  # SQLite has one writer, which waits no minute

        proxy.heal()
        inbox.wait_for_id(later.message_id)

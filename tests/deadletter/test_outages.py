"""An outage of the dead-letter store, while queues and timeouts work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from timeoutmgr import CriticalErrorContext, Endpoint, EndpointConfiguration
from timeoutmgr.contracts.dead_letters import DeliveryOptions, JournalLevel
from timeoutmgr.deadletter import DeadLetterQueues
from timeoutmgr.deadletter.feature import SENTENCE
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.errors import MessageRejected

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

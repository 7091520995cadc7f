"""A server that hangs: it takes every packet, and answers no call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, text

from tests.acceptance.place import Party
from tests.outage.conftest import MakePlace
from tests.services.private import PrivateServer
from tests.support.waiting import eventually
from timeoutmgr import CriticalErrorContext
from timeoutmgr.contracts import answers
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import Inbox
from timeoutmgr.testing.faultproxy import FaultProxy

HOUR = 3600.0
BROKERS = ("rabbitmq", "redis")


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_database_that_hangs_is_reported_while_its_calls_still_wait(
    make_place: MakePlace,
    rabbitmq_url: str,
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No call fails by itself, however long the machine takes.
    for bound in ("SHORTEST", "LONGEST"):
        monkeypatch.setattr(answers, bound, HOUR)
    monkeypatch.setattr("timeoutmgr.database.deadlines.ANSWER", HOUR)
    url = request.getfixturevalue(f"{kind}_url")
    contexts: list[CriticalErrorContext] = []
    reported = threading.Event()

    def note(context: CriticalErrorContext) -> None:
        contexts.append(context)
        reported.set()

    with FaultProxy.before(url) as proxy:
        place = make_place(transport=rabbitmq_url, store=proxy.url(url))
        manager = TimeoutManager(time_to_wait_before_critical_error=timedelta(seconds=2))
        inbox = Inbox()
        config = place.configuration(manager=manager, handler=inbox)
        config.define_critical_error_action(note)
        endpoint = place.run(config)
        sent = endpoint.send_local("Ping", None, delay=0)
        inbox.wait_for_id(sent.message_id)

        proxy.blackhole()
        endpoint.send_local("Ping", None, delay=0)
        assert reported.wait(60)
        endpoint.close()

    assert "has not answered for" in str(contexts[0].exception)


@pytest.fixture
def before() -> Iterator[Callable[[str], FaultProxy]]:
    """Put proxies before servers; ask for it first: ``make_place`` tidies up through them."""
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(FaultProxy.before(url))


@pytest.mark.parametrize("hanging", ["postgres", "mysql", "rabbitmq", "redis"])
def test_an_endpoint_stops_without_a_server_that_hangs(
    private_server: Callable[[str], PrivateServer],
    before: Callable[[str], FaultProxy],
    make_place: MakePlace,
    hanging: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for bound in ("SHORTEST", "LONGEST"):
        monkeypatch.setattr(answers, bound, HOUR)
    monkeypatch.setattr("timeoutmgr.database.deadlines.ANSWER", HOUR)
    broker = hanging if hanging in BROKERS else "rabbitmq"
    store = "postgres" if hanging in BROKERS else hanging
    urls = {
        # A private Redis: unacknowledged messages stay behind in it.
        kind: private_server(kind).url
        if kind == "redis"
        else request.getfixturevalue(f"{kind}_url")
        for kind in (broker, store)
    }
    proxy = before(urls[hanging])
    urls[hanging] = proxy.url(urls[hanging])
    party = Party(make_place(transport=urls[broker], store=urls[store])).start()
    later = [party.endpoint.send_local("Ping", n, delay=n / 2) for n in range(40)]
    party.inbox.wait_for(1)

    proxy.blackhole()
    eventually(lambda: _is_asked_in_vain(party), "a call waits for the server that hangs")
    with caplog.at_level(logging.WARNING):
        party.endpoint.close()
    proxy.heal()

    said = [record.getMessage() for record in caplog.records]
    assert len(later) > len(party.inbox.arrived)
    assert any("which hangs" in line for line in said)
    assert not any("did not end within" in line for line in said)


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_an_endpoint_stops_without_a_call_that_hangs_while_others_are_answered(
    make_place: MakePlace,
    rabbitmq_url: str,
    kind: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = make_place(transport=rabbitmq_url, store=request.getfixturevalue(f"{kind}_url"))
    party = Party(place).start()
    party.inbox.wait_for_id(party.endpoint.send_local("Ping", 1, delay=0).message_id)
    engine = create_engine(place.store_url)
    # The database answers every call but the removal of the heartbeat.
    with engine.begin() as connection, asked_all_the_time(party):
        lock = text("SELECT owner FROM timeoutmgr_processes WHERE endpoint = :name FOR UPDATE")
        assert connection.execute(lock, {"name": place.name}).all()
        with caplog.at_level(logging.WARNING):
            party.endpoint.close()
    engine.dispose()

    said = [record.getMessage() for record in caplog.records]
    assert any("which hangs" in line for line in said)
    assert not any("did not end within" in line for line in said)


@contextmanager
def asked_all_the_time(party: Party) -> Iterator[None]:
    """Have other calls of the party's process answered by its databases while the block runs."""
    over = threading.Event()

    def ask() -> None:
        with suppress(StorageUnavailable):  # once the process gives the database up
            while not over.wait(0.1):
                for database in party.endpoint._parts.databases:
                    database.ping()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _is_asked_in_vain(party: Party) -> bool:
    return any(server.unanswered.silence() > 0.5 for server in party.endpoint._parts.servers)

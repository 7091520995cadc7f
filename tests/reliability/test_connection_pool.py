"""A pool that has no connection left makes callers wait; it ends nothing and loses nothing."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack

import pytest

from tests.acceptance.matrix import REFERENCE, Pair
from tests.acceptance.place import SOON, Party, Place
from tests.reliability.pairs import on
from tests.support.waiting import eventually
from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.persistence import SqlPersistence


@pytest.fixture
def narrow(place: Place) -> Database:
    """A database with one connection, and one more in need; its last user closes it."""
    return Database(place.store_url, DatabaseSettings(pool_size=1, connect_timeout=1))


@on(REFERENCE, Pair("rabbitmq", "mysql"))
def test_an_endpoint_works_on_with_one_connection_for_all_its_threads(
    place: Place, narrow: Database
) -> None:
    party = Party(place, persistence=SqlPersistence(narrow)).start()
    errors: list[BaseException] = []

    def reading() -> None:
        for _ in range(50):
            try:
                party.endpoint.timeouts.count()
            except StorageUnavailable:
                continue  # it waited, and had no turn in time
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=reading) for _ in range(4)]
    for thread in threads:
        thread.start()
    sent = [party.endpoint.send_local("Ping", n, delay=SOON).message_id for n in range(50)]
    arrived = party.inbox.wait_for(50, timeout=60)
    for thread in threads:
        thread.join(30)

    assert Counter(one.id for one in arrived) == Counter(sent)
    assert errors == []
    assert party.endpoint.critical_error is None


@on(REFERENCE, Pair("rabbitmq", "mysql"))
def test_messages_wait_while_every_connection_is_busy_and_then_go_on(
    place: Place, narrow: Database
) -> None:
    party = Party(place, persistence=SqlPersistence(narrow)).start()
    party.telemetry.wait_for("polls", 1)
    with ExitStack() as in_use:
        for _ in range(2):
            in_use.enter_context(narrow.read())

        sent = [party.endpoint.send_local("Ping", n, delay=SOON).message_id for n in range(5)]
        party.telemetry.wait_for("storage_failures", 1, timeout=30)

        assert party.inbox.arrived == []
    arrived = party.inbox.wait_for(5, timeout=30)
    assert Counter(one.id for one in arrived) == Counter(sent)
    eventually(lambda: party.endpoint.timeouts.count() == 0, "all are closed")
    assert place.session.count(party.config.error_queue) == 0
    assert party.endpoint.critical_error is None

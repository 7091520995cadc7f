"""Queues of an endpoint in a database, and messages of other programs on a broker beside it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import kombu as kombu_package
import pytest

from tests.acceptance.matrix import EMBEDDED, Pair, matrix
from tests.acceptance.place import SOON, Party, Place
from tests.acceptance.test_foreign_messages import captured, content, got, published
from tests.support.redis_keys import forget_keys
from timeoutmgr import TransactionMode
from timeoutmgr.errors import WrongPair
from timeoutmgr.message.foreign import QueueDeclaration, Route
from timeoutmgr.testing.faultproxy import FaultProxy
from timeoutmgr.transport.sql import SqlTransport

kombu: Any = kombu_package  # its annotations are too few to check against

STORES = (EMBEDDED, Pair("postgres", "postgres"))
Split = Callable[[str], Party]


@pytest.fixture
def split(place: Place, monkeypatch: pytest.MonkeyPatch) -> Split:
    """Start the endpoint of *place* with its destinations at a broker's URL."""

    def started(destinations: str) -> Party:
        monkeypatch.setattr(
            place,
            "transport",
            lambda: SqlTransport(place.transport_url, destinations=destinations),
        )
        return Party(place).start()

    return started


def delivered_as_stock(party: Party, url: str, route: Route) -> None:
    """Send by *route* ten times, delayed, and compare with a message of a program of kombu's."""
    queue = route.declare[0].queue
    with kombu.Connection(url) as connection:
        channel = connection.channel()
        sent = [
            party.endpoint.send(route.destination, "task", captured(channel, route), delay=SOON)
            for _ in range(10)
        ]
        mine = party.endpoint.send_local("Ping", {}, delay=SOON)
        party.wait_until_dispatched(*(one.id for one in sent))
        ours = [content(got(channel, queue)) for _ in sent]
        published(channel, route)
        stock = content(got(channel, queue))
        kombu.Queue(queue)(channel).delete()

    assert ours == [stock] * 10
    party.inbox.wait_for_id(mine.message_id)


@matrix(pairs=STORES)
def test_foreign_messages_go_to_rabbitmq_from_queues_in_a_database(
    place: Place, split: Split, rabbitmq_url: str
) -> None:
    queue = f"{place.name}-tasks"
    route = Route("", queue, (QueueDeclaration(queue),))

    delivered_as_stock(split(rabbitmq_url), rabbitmq_url, route)


@matrix(pairs=STORES)
def test_foreign_messages_go_to_redis_from_queues_in_a_database(
    place: Place, split: Split, redis_url: str
) -> None:
    queue = f"{place.name}-tasks"
    route = Route("", queue, (QueueDeclaration(queue),))

    place.closing.callback(forget_keys, redis_url, place.name)
    delivered_as_stock(split(redis_url), redis_url, route)


@matrix(pairs=STORES)
def test_a_store_with_another_broker_for_its_destinations_is_refused(
    place: Place, split: Split, rabbitmq_url: str, redis_url: str
) -> None:
    split(rabbitmq_url).endpoint.stop()

    with pytest.raises(WrongPair, match="redis"):
        split(redis_url)


@matrix(pairs=[EMBEDDED])
def test_no_transaction_spans_a_database_and_a_broker_beside_it(
    place: Place, rabbitmq_url: str
) -> None:
    transport = SqlTransport(place.transport_url, destinations=rabbitmq_url)
    place.closing.callback(transport.close)

    assert TransactionMode.TRANSACTION_SCOPE not in transport.capabilities.modes
    assert TransactionMode.RECEIVE_ONLY in transport.capabilities.modes


@matrix(pairs=STORES)
def test_a_broker_that_is_away_holds_foreign_messages_back_until_it_is_there(
    place: Place, split: Split, rabbitmq_url: str
) -> None:
    queue = f"{place.name}-tasks"
    route = Route("", queue, (QueueDeclaration(queue),))
    with FaultProxy.before(rabbitmq_url) as proxy, kombu.Connection(rabbitmq_url) as connection:
        party = split(proxy.url(rabbitmq_url))
        channel = connection.channel()
        foreign = captured(channel, route)
        proxy.refuse()
        proxy.reset()
        sent = party.endpoint.send(route.destination, "task", foreign, delay=timedelta(seconds=0.3))
        mine = party.endpoint.send_local("Ping", {}, delay=timedelta(seconds=0.2))
        party.inbox.wait_for_id(mine.message_id)
        party.telemetry.wait_for("timeouts_retry", 1)
        proxy.heal()
        party.wait_until_dispatched(sent.id)
        assert bytes(got(channel, queue).body) == foreign.body
        kombu.Queue(queue)(channel).delete()

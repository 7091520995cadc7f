"""A message of another program arrives as that program's own broker would have delivered it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import kombu as kombu_package
import pytest

from tests.acceptance.matrix import EACH_ONCE, matrix
from tests.acceptance.place import SOON, Party, Place
from tests.support.redis_keys import forget_keys
from tests.support.waiting import eventually
from timeoutmgr import TimeoutState
from timeoutmgr.message import headers as names
from timeoutmgr.message.foreign import Foreign, QueueDeclaration, Route
from timeoutmgr.message.message import Message
from timeoutmgr.message.validation import Limits
from timeoutmgr.transport.error_queue_retry import (
    EndpointErrorQueue,
    RetryRequest,
    RetryResult,
    retry,
)
from timeoutmgr.transport.foreign import foreign_from_kombu
from timeoutmgr.transport.sql import register

kombu: Any = kombu_package  # its annotations are too few to check against
register()

HEADERS: Final[dict[str, Any]] = {
    "lang": "py",
    "id": "7b2c",
    "eta": "2026-11-25T12:00:00+00:00",
    "expires": None,
    "retries": 3,
    "ratio": 0.5,
    "ignore_result": False,
    "timelimit": [None, 300],
    "stamps": {"who": ["ä", {"deep": [1, None]}]},
    "big": 2**40,
    "negative": -7,
    "empty": {},
}
PROPERTIES: Final[dict[str, Any]] = {
    "correlation_id": "7b2c",
    "reply_to": "replies",
    "delivery_mode": 2,
    "app_id": "shop",
    "type": "task",
}
BODY: Final = bytes(range(256))


class Capturing:
    """A channel of kombu's that keeps the prepared message in place of a publish."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.prepared: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def basic_publish(self, message: Any, **_: Any) -> None:
        self.prepared = message


@contextlib.contextmanager
def connected(place: Place) -> Iterator[Any]:
    """A channel of kombu's on the broker of *place*."""
    url = place.transport_url
    kombu_url = f"timeoutmgr+{url}" if "sql_queue" in place.pair.capabilities else url
    try:
        with kombu.Connection(kombu_url) as connection:
            yield connection.channel()
    finally:
        if place.pair.transport == "redis":
            place.closing.callback(forget_keys, url, place.name)


def published(channel: Any, route: Route, **more: Any) -> None:
    kombu.Producer(channel, auto_declare=False).publish(
        BODY,
        exchange=route.exchange,
        routing_key=route.routing_key,
        content_type="application/x-tasks",
        content_encoding="binary",
        headers=dict(HEADERS),
        priority=4,
        **PROPERTIES,
        **more,
    )


def captured(channel: Any, route: Route, **more: Any) -> Foreign:
    capturing = Capturing(channel)
    published(capturing, route, **more)
    return foreign_from_kombu(capturing.prepared, route)


def got(channel: Any, queue: str) -> Any:
    found: list[Any] = []

    def arrives() -> bool:
        message = channel.basic_get(queue, no_ack=True)
        if message is not None:
            found.append(message)
        return bool(found)

    eventually(arrives, f"a message is in queue {queue}")
    return found[0]


def content(message: Any) -> dict[str, Any]:
    """All that a consumer sees of *message*, but for the tag of its delivery."""
    properties = {
        name: value for name, value in message.properties.items() if name != "delivery_tag"
    }
    properties.pop("delivery_info", None)
    properties.pop("body_encoding", None)
    properties.pop("application_headers", None)
    return {
        "headers": message.headers,
        "properties": properties,
        "body": message.body.encode() if isinstance(message.body, str) else bytes(message.body),
        "content": (message.content_type, message.content_encoding),
        "route": (
            message.delivery_info.get("exchange"),
            message.delivery_info.get("routing_key"),
        ),
    }


def route_to(place: Place, name: str = "tasks") -> Route:
    queue = f"{place.name}-{name}"
    place._queues.add(queue)
    declared = QueueDeclaration(
        queue=queue,
        exchange=f"{place.name}-x",
        exchange_type="topic",
        routing_key="eu.#",
        exchange_auto_delete=True,
    )
    return Route(f"{place.name}-x", "eu.orders.new", (declared,))


def as_kombu(route: Route) -> Any:
    """The queue of *route* as a program of kombu's declares it."""
    [one] = route.declare
    exchange = kombu.Exchange(one.exchange, one.exchange_type, auto_delete=True)
    return kombu.Queue(one.queue, exchange, routing_key=one.routing_key)


@matrix(pairs=EACH_ONCE)
def test_a_foreign_message_arrives_as_its_own_broker_delivers_it(place: Place) -> None:
    party = Party(place).start()
    route = route_to(place)
    queue = route.declare[0].queue
    with connected(place) as channel:
        sent = party.endpoint.send(route.destination, "task", captured(channel, route), delay=SOON)
        party.wait_until_dispatched(sent.id)
        ours = got(channel, queue)
        published(channel, route, declare=[as_kombu(route)])
        stock = got(channel, queue)

    assert content(ours) == content(stock)


@matrix(pairs=EACH_ONCE)
def test_a_foreign_message_for_a_missing_exchange_goes_to_the_error_queue_and_back(
    place: Place,
) -> None:
    party = Party(place).start()
    route = Route(f"{place.name}-nowhere", "key")
    with connected(place) as channel:
        foreign = captured(channel, route)
        fine = party.endpoint.send_local("Ping", {}, delay=SOON)
        sent = party.endpoint.send(route.destination, "task", foreign, delay=SOON)
        copy = party.errors.wait_for_id(sent.message_id)

    party.inbox.wait_for_id(fine.message_id)
    assert copy.headers[names.FAILED_QUEUE] == route.destination
    assert copy.headers[names.FOREIGN] == foreign.as_headers()[names.FOREIGN]
    assert copy.body == BODY
    eventually(
        lambda: party.endpoint.timeouts.show(sent.id or "") == (TimeoutState.FAILED, None),
        "it is closed as failed",
    )


def refused_routes(place: Place) -> list[Route]:
    """Routes that a stranger may write, and at which a broker closes a channel or connection."""
    queue, exchange = f"{place.name}-q", f"{place.name}-y"

    def to(arguments: Any, key: str = "key", kind: str = "direct") -> Route:
        declared = QueueDeclaration(
            queue, exchange, kind, key, arguments=arguments, exchange_auto_delete=True
        )
        return Route(exchange, key, (declared,))

    return [
        to({}, kind="nosuch"),
        to(["no table"]),
        to({"x-number": 2**70}),
        to({"n" * 300: 1}),
        Route("amq.rabbitmq.trace", "key"),
        Route(
            "amq.nosuch", "key", (QueueDeclaration(queue, "amq.nosuch", exchange_type="headers"),)
        ),
    ]


@matrix(pairs=EACH_ONCE)
def test_a_route_that_a_broker_refuses_keeps_no_other_message_waiting(place: Place) -> None:
    party = Party(place).start()
    place._queues.add(f"{place.name}-q")
    with connected(place) as channel:
        foreign = captured(channel, Route("", place.name))
        for route in refused_routes(place):
            around = replace(foreign, route=route)
            party.endpoint.send(route.destination, "task", around, delay=SOON)
        fine = party.endpoint.send_local("Ping", {}, delay=SOON)

    party.inbox.wait_for_id(fine.message_id)
    eventually(lambda: not list(party.endpoint.timeouts.list()), "no message waits for ever")


@matrix(pairs=EACH_ONCE)
def test_a_foreign_message_is_found_by_its_route_and_cancelled(place: Place) -> None:
    party = Party(place).start()
    route = route_to(place)
    with connected(place) as channel:
        foreign = captured(channel, route)
        later = datetime.now(UTC) + timedelta(hours=1)
        sent = party.endpoint.send(
            route.destination, "task", foreign, deliver_at=later, saga_id="7b2c"
        )
        party.wait_until_stored(sent.id)
        found = list(party.endpoint.timeouts.list(destination=route.destination))
        cancelled = party.endpoint.timeouts.cancel(sent.id or "")

    assert [one.id for one in found] == [sent.id]
    assert cancelled.value == "cancelled"


@pytest.mark.parametrize(
    ("exchange", "key"), [("a", "b"), ("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("", "a/b")]
)
def test_the_destinations_of_two_routes_differ(exchange: str, key: str) -> None:
    others = {("a", "b"), ("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("a%", "2Fb/c")}
    others.discard((exchange, key))

    assert Route(exchange, key).destination not in {Route(*other).destination for other in others}


@matrix(pairs=EACH_ONCE)
def test_a_rerouted_foreign_message_arrives_in_its_queue_as_the_default_exchange_delivers_it(
    place: Place,
) -> None:
    party = Party(place).start()
    route, queue = route_to(place), f"{place.name}-other"
    place._queues.add(queue)
    with connected(place) as channel:
        later = datetime.now(UTC) + timedelta(hours=1)
        foreign = captured(channel, route)
        sent = party.endpoint.send(route.destination, "task", foreign, deliver_at=later)
        party.wait_until_stored(sent.id)
        place.session.create_queues([queue], error_queue="error")
        rerouted = party.endpoint.timeouts.reroute(queue, destination=route.destination)
        party.endpoint.timeouts.send_now(sent.id or "")
        ours = got(channel, queue)
        published(channel, Route("", queue))
        stock = got(channel, queue)

    assert list(rerouted.rerouted) == [sent.id]
    assert content(ours) == content(stock)


@matrix(pairs=EACH_ONCE)
def test_a_rerouted_foreign_message_is_retried_from_the_error_queue_as_it_was_sent(
    place: Place,
) -> None:
    queue, errors = place.queue(f"{place.name}-other"), place.queue(f"{place.name}-errors")
    here = EndpointErrorQueue(name=errors, endpoint=place.name, limits=Limits())
    with connected(place) as channel:
        foreign = captured(channel, route_to(place))
        failed = {names.FAILED_QUEUE: queue, **foreign.as_headers()}
        place.put(errors, Message(id="m1", headers=failed, body=BODY))
        [retried] = retry(place.transport(), here, RetryRequest())
        ours = got(channel, queue)
        published(channel, Route("", queue))
        stock = got(channel, queue)

    assert retried.result is RetryResult.RETRIED
    assert content(ours) == content(stock)

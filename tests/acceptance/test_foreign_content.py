"""What any program sends arrives after its delay as kombu itself would have delivered it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from celery import Celery
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.acceptance.matrix import EMBEDDED, REFERENCE, Pair, matrix
from tests.acceptance.place import SOON, Party, Place
from tests.acceptance.test_foreign_messages import Capturing, connected, content, got, kombu
from tests.transport.test_amqp_foreign import tables
from timeoutmgr.message.foreign import Foreign, QueueDeclaration, Route
from timeoutmgr.transport.foreign import foreign_from_kombu

PAIRS: Final = (EMBEDDED, REFERENCE, Pair("postgres", "postgres"), Pair("redis", "postgres"))
_APP: Final[Any] = Celery("sender", set_as_current=False)
_TASK_ID: Final = st.uuids().map(str)
_LATER: Final = datetime(2099, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Given:
    """A message as a program hands it to kombu."""

    body: Any
    headers: dict[str, Any]
    properties: dict[str, Any]
    serializer: str
    compression: str | None


words = st.text(max_size=9)
arguments = st.lists(st.none() | st.booleans() | st.integers(-9, 9) | words, max_size=3)
keywords = st.dictionaries(words, st.floats(allow_nan=False), max_size=2)


@st.composite
def task_messages(draw: Callable[[Any], Any]) -> tuple[dict[str, Any], Any]:
    """Draw headers and body of a task in a protocol of Celery, with stamps and an eta."""
    task = {
        "task_id": draw(_TASK_ID),
        "name": "shop.charge",
        "args": draw(arguments),
        "kwargs": draw(keywords),
        "eta": _LATER,
        "expires": draw(st.none() | st.just(_LATER + timedelta(days=1))),
        "retries": draw(st.integers(0, 3)),
        "time_limit": draw(st.none() | st.integers(1, 9)),
    }
    if draw(st.booleans()):
        return {}, _APP.amqp.as_task_v1(**task).body
    made = _APP.amqp.as_task_v2(**task, stamped_headers=["tenant"], tenant=["ä"])
    return made.headers, made.body


plain = st.tuples(tables, st.dictionaries(words, st.integers(-(2**63), 2**63) | words))
properties = st.fixed_dictionaries(
    {"priority": st.integers(0, 9), "delivery_mode": st.sampled_from([1, 2])},
    optional={
        "correlation_id": _TASK_ID,
        "reply_to": st.text(max_size=20),
        "expiration": st.just(3600),
        "timestamp": st.integers(0, 2**40),
        "type": st.text(max_size=20),
        "app_id": st.text(max_size=20),
        "cluster_id": st.text(max_size=20),
    },
)


@st.composite
def messages(draw: Callable[[Any], Any]) -> Given:
    """Draw a message of any kind that kombu can send."""
    headers, body = draw(task_messages() | plain)
    return Given(
        body,
        {**draw(tables), **headers},
        draw(properties),
        draw(st.sampled_from(["json", "pickle", "msgpack", "yaml"])),
        draw(st.none() | st.just("zlib")),
    )


class Decoded:
    """A value whose pickle tells of being read."""

    times = 0

    def __reduce__(self) -> Any:
        return Decoded.read, ()

    @classmethod
    def read(cls) -> str:
        """Count a read."""
        cls.times += 1
        return "read"


def publish(channel: Any, route: Route, given_: Given, message_id: str) -> None:
    kombu.Producer(channel, auto_declare=False).publish(
        given_.body,
        exchange=route.exchange,
        routing_key=route.routing_key,
        headers=dict(given_.headers),
        serializer=given_.serializer,
        compression=given_.compression,
        message_id=message_id,
        **given_.properties,
    )


def prepared(channel: Any, route: Route, given_: Given, message_id: str) -> Foreign:
    capturing = Capturing(channel)
    publish(capturing, route, given_, message_id)
    return foreign_from_kombu(capturing.prepared, route)


class Exchange:
    """A queue to which messages are sent both ways."""

    def __init__(self, place: Place, channel: Any) -> None:
        self.party = Party(place).start()
        self.queue = f"{place.name}-content"
        place._queues.add(self.queue)
        self.route = Route("", self.queue, (QueueDeclaration(self.queue),))
        self.channel = channel
        self._ids = itertools.count()

    def ours(self, given_: Sequence[Given]) -> dict[str, Any]:
        """Return what arrives of delayed messages, by message id."""
        ids = [f"m{next(self._ids)}" for _ in given_]
        sent = [
            self.party.endpoint.send(
                self.route.destination,
                "task",
                prepared(self.channel, self.route, one, message_id),
                delay=SOON,
            )
            for one, message_id in zip(given_, ids, strict=True)
        ]
        self.party.wait_until_dispatched(*(one.id for one in sent))
        return self._arrived(ids)

    def stock(self, given_: Sequence[Given], ids: Sequence[str]) -> dict[str, Any]:
        """Return what arrives of messages that kombu publishes under *ids*."""
        for one, message_id in zip(given_, ids, strict=True):
            publish(self.channel, self.route, one, message_id)
        return self._arrived(ids)

    def _arrived(self, ids: Sequence[str]) -> dict[str, Any]:
        found = [whole(got(self.channel, self.queue)) for _ in ids]
        by_id = {one["properties"]["message_id"]: one for one in found}
        return {each: by_id[each] for each in ids}


def whole(message: Any) -> dict[str, Any]:
    """All of *message*, on AMQP with the bytes of its property list."""
    seen = content(message)
    if hasattr(message, "_serialize_properties"):
        seen["bytes"] = message._serialize_properties()
    return seen


@pytest.fixture
def exchange(place: Place) -> Iterator[Exchange]:
    """The queue, on the broker of a pair."""
    with contextlib.ExitStack() as stack:
        yield Exchange(place, stack.enter_context(connected(place)))


@matrix(pairs=PAIRS)
@given(st.lists(messages(), min_size=5, max_size=10))
@settings(
    max_examples=6,
    deadline=None,
    # To look for a shorter example would send thousands of messages.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_message_arrives_after_its_delay_as_kombu_would_deliver_it(
    exchange: Exchange, given_: list[Given]
) -> None:
    ours = exchange.ours(given_)

    stock = exchange.stock(given_, list(ours))

    assert ours == stock


@matrix(pairs=PAIRS)
def test_a_body_is_never_decoded(exchange: Exchange) -> None:
    before, given_ = Decoded.times, Given(Decoded(), {}, {}, "pickle", None)

    ours = exchange.ours([given_])

    assert ours == exchange.stock([given_], list(ours))
    assert Decoded.times == before

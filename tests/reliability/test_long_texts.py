"""A stranger's long id, type or header costs no other message its time, and no log its line."""

from __future__ import annotations

import gc
import io
import logging
import time
from collections.abc import Callable, Iterator

import pytest
from kombu.connection import Connection

from tests.acceptance.matrix import EMBEDDED, REFERENCE, Pair
from tests.acceptance.place import Party, Place
from tests.reliability.pairs import on
from timeoutmgr.cli.output import MaskingFormatter
from timeoutmgr.message import headers
from timeoutmgr.message.message import Message
from timeoutmgr.message.redaction import LONGEST_LINE

LONG = "?" * (128 * 1024)
ROOM: dict[str, int] = {"rabbitmq": 120 * 1024}
"""A header's value on RabbitMQ must fit into a frame of 128 KiB with all that is around it."""
STANDS = (EMBEDDED, REFERENCE, Pair("mysql", "mysql"), Pair("redis", "postgres"))


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log of a command, written as ``timeoutmgr run`` writes it."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(MaskingFormatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("timeoutmgr")
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)


def way_into(place: Place) -> Callable[[str, dict[str, str]], None]:
    """Return how a stranger puts headers into a queue, past this product's own door."""
    if place.pair.transport in ("rabbitmq", "redis"):
        return lambda queue, given: _by_kombu(place.transport_url, queue, given)
    return lambda queue, given: _by_row(place, queue, given)


def _by_kombu(url: str, queue: str, given: dict[str, str]) -> None:
    with Connection(url) as connection:  # type: ignore[no-untyped-call]  # kombu
        connection.Producer().publish(b"body", routing_key=queue, headers=given)


def _by_row(place: Place, queue: str, given: dict[str, str]) -> None:
    place.put(queue, Message(id=f"long {len(given)}", headers=given, body=b"body"))


@pytest.fixture
def _no_collection() -> Iterator[None]:
    """Collect no garbage: to look through the objects of all earlier tests takes seconds of CPU."""
    gc.disable()
    yield
    gc.enable()


@on(*STANDS)
@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize(
    "name", [headers.MESSAGE_ID, headers.ENCLOSED_MESSAGE_TYPES, "Any"], ids=["id", "type", "any"]
)
def test_a_long_text_delays_the_next_timeout_by_less_than_a_second(
    place: Place, log: io.StringIO, name: str
) -> None:
    party = Party(place).start()
    put = way_into(place)
    long = LONG[: ROOM.get(place.pair.transport)]
    began = time.process_time()

    for queue in (".Timeouts", ".TimeoutsDispatcher"):
        put(party.name + queue, {name: long})
    sent = party.endpoint.send_local("Next", "after it", delay=0.05)
    party.inbox.wait_for_id(sent.message_id)

    party.errors.wait_for(2)
    # CPU time: the elapsed time depends on the other processes of the machine.
    assert time.process_time() - began < 1.0
    lines = log.getvalue().split("\n")
    assert [line[:80] for line in lines if len(line.encode()) > LONGEST_LINE] == []
    assert [line[:80] for line in lines if "?" * 81 in line] == []

"""The message of every measurement: 512 bytes of body and five headers, persistent."""

import os
import random
import time
import uuid
from contextlib import closing

from timeoutmgr.contracts import SendResult, Transport
from timeoutmgr.endpoint.configuration import transport_from_url
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.routes import TIMEOUTS, to_timeout_manager

BODY = random.Random(512).randbytes(512)  # random: compression must not flatter the figures
HEADERS = {f"header-{number}": f"value number {number}" for number in range(5)}

QUEUE_TYPE = "BENCH_QUEUE_TYPE"
SECOND = 1_000_000
DAY = 86_400 * SECOND


def micros() -> int:
    """Return the wall clock in microseconds."""
    return time.time_ns() // 1000


def delayed(endpoint: str, destination: str, due: int) -> Outgoing:
    """Return a message on its way to the timeout manager of *endpoint*."""
    message = Message(id=str(uuid.uuid4()), headers=HEADERS, body=BODY)
    return to_timeout_manager(Outgoing(destination, message), due, endpoint + TIMEOUTS)


def fill(transport: str, messages: list[Outgoing]) -> None:
    """Put *messages* into their queues, which must exist."""
    with closing(transport_of(transport).session()) as session:
        for start in range(0, len(messages), 1000):
            results = session.send(messages[start : start + 1000])
            assert set(results) == {SendResult.CONFIRMED}, set(results)


def transport_of(url: str) -> Transport:
    """Return the transport at *url*, with the type of queues of this run."""
    kind = os.environ.get(QUEUE_TYPE)
    options = {"queue_type": kind} if kind and url.startswith("amqp") else {}
    return transport_from_url(url, accept_loss=True, **options)


def create_queues(transport: str, *names: str) -> None:
    """Create queues."""
    with closing(transport_of(transport).session()) as session:
        session.create_queues(list(names))


def delete_queues(transport: str, *names: str) -> None:
    """Delete queues with their messages."""
    with closing(transport_of(transport).session()) as session:
        session.delete_queues(list(names))

"""Messages, timeouts and breakers with only the fields that a test needs."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from datetime import timedelta

from tests.support.clock import START
from timeoutmgr.contracts import Clock, Timeout
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Message, Received
from timeoutmgr.message.routes import Clearing, DelayRoute, timeout_id
from timeoutmgr.message.validation import Limits
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.sender.composer import Composer

SECOND = 1_000_000


def a_message(message_id: str = "m1", body: bytes = b"{}", /, **given: str) -> Message:
    """Return a message; keywords are names in ``timeoutmgr.message.headers``, in lower case."""
    named = {getattr(headers, name.upper()): value for name, value in given.items()}
    return Message(id=message_id, headers={headers.MESSAGE_ID: message_id, **named}, body=body)


def a_received(message: Message, queue: str = "sales", defect: str | None = None) -> Received:
    return Received(message=message, queue=queue, tag=message.id, defect=defect)


def a_delayed(
    message_id: str = "m1",
    due: Micros = START + 60 * SECOND,
    destination: str = "billing",
    **more: str,
) -> Message:
    """Return a message as it arrives in ``<endpoint>.Timeouts``."""
    return a_message(message_id, expire=to_wire(due), destination=destination, **more)


def a_timeout(
    message_id: str = "m1",
    due: Micros = START,
    destination: str = "billing",
    saga_id: str | None = None,
    attempts: int = 0,
    endpoint: str = "sales",
) -> Timeout:
    return Timeout(
        id=timeout_id(endpoint, message_id),
        due=due,
        destination=destination,
        message=a_message(message_id, f"body of {message_id}".encode()),
        saga_id=saga_id,
        created=due - SECOND,
        attempts=attempts,
    )


def a_breaker(
    clock: Clock,
    wait: float = 120.0,
    on_trigger: Callable[[BaseException], None] = lambda error: None,
    name: str = "test",
) -> OutageBreaker:
    return OutageBreaker(
        name, time_to_wait=timedelta(seconds=wait), on_trigger=on_trigger, clock=clock
    )


def a_composer(
    clock: Clock, delays: DelayRoute | None = None, limits: Limits | None = None
) -> Composer:
    numbers = itertools.count(1)
    return Composer(
        endpoint="sales",
        clearing=Clearing(endpoint="sales", address="sales.Timeouts"),
        reply_to="sales",
        limits=limits or Limits(),
        clock=clock,
        new_id=lambda: f"new-{next(numbers)}",
        timeout_id_of=lambda message_id: timeout_id("sales", message_id),
        delays=delays,
    )


class Pauses(threading.Event):
    """A stop event that waits no time and keeps how long it was asked to wait."""

    def __init__(self, stop_after: int = 100) -> None:
        super().__init__()
        self.asked: list[float] = []
        self.stop_after = stop_after

    def wait(self, timeout: float | None = None) -> bool:
        self.asked.append(float("inf") if timeout is None else timeout)
        if len(self.asked) >= self.stop_after:
            self.set()
        return self.is_set()

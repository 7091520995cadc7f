"""The broker as one actor's port: sessions whose confirms fail to come, channels that break."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from timeoutmgr.contracts import (
    Receiver,
    SendResult,
    Transaction,
    Transport,
    TransportSession,
)
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.message import Outgoing, Received

from .process import Calls
from .timeline import Killed
from .world import World


class SimTransport:
    """The connections of one actor."""

    def __init__(self, world: World, calls: Calls) -> None:
        self._world = world
        self._calls = calls

    def session(self) -> TransportSession:
        return cast(TransportSession, cast(Any, SimSession(self._world, self._calls)))


class SimSession:
    """A connection, with the methods that pumps, poller and clients use."""

    def __init__(self, world: World, calls: Calls) -> None:
        self._world = world
        self._calls = calls

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        self._calls.before()
        _reach(self._world, self._calls)
        self._lose_row_locks()
        middle = self._world.random.random() * 4 * len(outgoing)
        results = []
        for place, one in enumerate(outgoing):
            if 0 < place == int(middle):
                self._calls.before()  # the messages before this one are written
            results.append(self._publish(one))
        self._calls.after()
        return results

    def _publish(self, one: Outgoing) -> SendResult:
        broker, fires, chunk = self._world.broker, self._world.faults.fires, self._calls.chunk
        record = self._world.ledger.records.get(one.message.id)
        if not broker.has(one.destination):
            if record is not None:
                record.may_fail = True
            return SendResult.UNROUTABLE
        if fires("broker.refused"):
            if record is not None:
                record.may_fail = True
            return SendResult.REFUSED
        if fires("broker.lost"):
            pass
        elif fires("broker.lands_late"):
            seconds = 1 + 90 * self._world.random.random()
            broker.later(seconds, lambda: broker.land(one, chunk))
        else:
            broker.accept(one, chunk)
            if not fires("broker.unconfirmed"):
                return SendResult.CONFIRMED
        self._calls.note("hears no confirm", one.message.id)
        if chunk is not None:
            chunk.unknown.add(one.message.id)
        return SendResult.UNKNOWN

    def _lose_row_locks(self) -> None:
        chunk, database = self._calls.chunk, self._world.database
        if chunk is None or not database.row_locks or chunk.cut_off:
            return
        if self._world.faults.fires("store.cut"):
            chunk.cut_off = chunk.interrupted = True
            database.unlock(chunk)
            self._calls.note("has lost its row locks", *(key.id for key in chunk.keys))

    def receiver(self, queue: str, *, prefetch: int) -> Receiver:
        _reach(self._world, self._calls)
        return cast(Receiver, cast(Any, SimReceiver(self._world, self._calls, queue)))

    def close(self) -> None:
        return


class SimReceiver:
    """A channel; the broker keeps its unacknowledged messages under its name."""

    def __init__(self, world: World, calls: Calls, queue: str) -> None:
        self._world = world
        self._calls = calls
        self._queue = queue

    def receive(self, limit: int, wait: float) -> list[Received]:
        self._calls.before()
        _reach(self._world, self._calls)
        broker, random = self._world.broker, self._world.random
        batch = broker.deliver(self._queue, limit, self._calls.process, self)
        self._calls.received = len(batch)
        if batch:
            self._calls.note("receives", *(received.message.id for received in batch))
            if self._world.faults.fires("broker.cut"):
                broker.later(random.random() ** 4 * 2, self._break)
            self._calls.after()
        return batch

    def _break(self) -> None:
        lost = self._world.broker.give_back(self)
        self._calls.note("loses its channel", *(received.message.id for received in lost))

    def ack(self, received: Sequence[Received], *, transaction: Transaction | None = None) -> None:
        self._calls.before()
        _reach(self._world, self._calls)
        if not self._world.broker.acknowledge(list(received), self):
            raise TransportUnavailable("the channel is closed")
        self._calls.after()

    def interrupt(self) -> None:
        return

    def close(self) -> None:
        self._world.broker.give_back(self)


def _reach(world: World, calls: Calls) -> None:
    """Raise where this process is dead, or the broker is away."""
    if calls.process.dead:
        raise Killed
    if world.broker.away or world.faults.fires("broker.away"):
        if calls.chunk is not None:
            calls.chunk.interrupted = True
        raise TransportUnavailable("the broker does not answer")


def as_transport(transport: SimTransport) -> Transport:
    """Return *transport* as the port: it has all methods that are called."""
    return cast(Transport, cast(Any, transport))

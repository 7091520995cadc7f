"""A broker: queues, deliveries that come back, confirms that do not come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from timeoutmgr.contracts import Receiver, SendResult, Transaction, TransportSession
from timeoutmgr.errors import LeaseLost, StorageUnavailable, TransportUnavailable
from timeoutmgr.message.message import Message, Outgoing, Received

from .explorer import Player
from .letters import body_number, message
from .world import Bounds, Copy, Held, Op, Outcomes, Raised, World, interrupted

STORE, CONTROL, DESTINATION, ERROR = "sales.Timeouts", "sales.TimeoutsDispatcher", "billing", "err"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The state that all sessions share; *deliver* judges each arrival at the destination."""

    bounds: Bounds
    deliver: Callable[[World, Message], World]
    has_destination: bool = True

    def put(self, world: World, outgoing: Outgoing) -> World:
        if outgoing.destination == DESTINATION:
            return self.deliver(world, outgoing.message)
        if outgoing.destination == ERROR:
            return world._replace(failed=world.failed | {outgoing.message.id})
        copy = Copy(world.serial, body_number(outgoing.message))
        waiting = (*world.queues[outgoing.destination], copy)
        queues = world.queues.having(outgoing.destination, waiting)
        return world._replace(queues=queues, serial=world.serial + 1)


class SimTransaction:
    """One transaction over queue and store: changes and the deliveries to settle at commit."""

    def __init__(self) -> None:
        self.changes: list[Callable[[World], World]] = []
        self.settled: list[int] = []

    def seen(self) -> Callable[[World], World]:
        """Return the view of a world that this transaction has by now."""
        changes = tuple(self.changes)

        def see(world: World) -> World:
            for change in changes:
                world = change(world)
            return world

        return see


class SimSession:
    """A session of one actor; *one_writer* is SQLite's turn, taken by every transaction."""

    def __init__(self, player: Player, who: str, broker: Broker, *, one_writer: bool) -> None:
        self._player = player
        self._who = who
        self._broker = broker
        self._one_writer = one_writer

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        return [self._send(one, cast("SimTransaction | None", transaction)) for one in outgoing]

    def _send(self, outgoing: Outgoing, transaction: SimTransaction | None) -> SendResult:
        if outgoing.destination == DESTINATION and not self._broker.has_destination:
            return SendResult.UNROUTABLE
        if transaction is not None:
            transaction.changes.append(lambda world: self._broker.put(world, outgoing))
            return SendResult.CONFIRMED

        def outcomes(world: World) -> Outcomes:
            yield "", self._broker.put(world, outgoing), SendResult.CONFIRMED
            if world.unknowns < self._broker.bounds.unknowns:
                unknown = interrupted(world, self._who)
                yield ", no confirm", self._broker.put(unknown, outgoing), SendResult.UNKNOWN
                yield ", lost on the way", unknown, SendResult.UNKNOWN

        result = self._player.ask(Op(f"send to {outgoing.destination}", outcomes))
        assert isinstance(result, SendResult)
        return result

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        transaction = self._new_transaction()
        if self._one_writer:
            self._player.ask(Op("begin", self._begin_writing))
        try:
            yield cast(Transaction, transaction)
        except Exception:
            self._player.ask(Op("roll back", self._roll_back))
            raise
        self._player.ask(Op("commit", self._commit(transaction)))

    def _new_transaction(self) -> SimTransaction:
        return SimTransaction()

    def _begin_writing(self, world: World) -> Outcomes:
        if not world.held_by_other("writer", self._who):
            yield "", world.locking(self._who, "writer"), None

    def _roll_back(self, world: World) -> Outcomes:
        yield "", world.released(self._who), None

    def _commit(self, transaction: SimTransaction) -> Callable[[World], Outcomes]:
        see, settled = transaction.seen(), tuple(transaction.settled)

        def outcomes(world: World) -> Outcomes:
            free = world.released(self._who)
            if any(one not in world.held or world.held[one].owner != self._who for one in settled):
                yield " fails: the lease is lost", free, Raised(LeaseLost, "another has it")
                return
            held = free.held
            for one in settled:
                held = held.without(one)
            yield "", see(free._replace(held=held)), None
            if world.unknowns < self._broker.bounds.unknowns:
                away = Raised(StorageUnavailable, "no answer to the commit")
                unknown = interrupted(free, self._who)
                yield ", answer lost", see(unknown._replace(held=held)), away
                yield ", undone, answer lost", unknown, away

        return outcomes


class SimReceiver:
    """A consumer; the broker records its unacknowledged messages under its name.

    *counts* says that the broker reports which messages it delivered before.
    """

    def __init__(self, player: Player, who: str, queue: str, *, counts: bool = False) -> None:
        self._player = player
        self._who = who
        self._queue = queue
        self._deliveries = int(counts)

    def receive(self, limit: int, wait: float) -> list[Received]:
        def outcomes(world: World) -> Outcomes:
            batch = world.queues[self._queue][:limit]
            if not batch:
                return
            held = world.held
            for copy in batch:
                kept = copy._replace(deliveries=self._deliveries)
                held = held.having(copy.serial, Held(self._who, self._queue, kept))
            rest = world.queues[self._queue][limit:]
            queues = world.queues.having(self._queue, rest)
            yield "", world._replace(queues=queues, held=held), batch

        batch: tuple[Copy, ...] = self._player.ask(Op(f"receive from {self._queue}", outcomes))
        return [
            Received(
                message=message(copy.body_number),
                queue=self._queue,
                tag=copy.serial,
                delivery_count=copy.deliveries,
            )
            for copy in batch
        ]

    def ack(self, received: Sequence[Received], *, transaction: Transaction | None = None) -> None:
        serials = [cast(int, one.tag) for one in received]
        if transaction is not None:
            cast(SimTransaction, transaction).settled.extend(serials)
            return

        def outcomes(world: World) -> Outcomes:
            held = world.held
            if any(one not in held or held[one].owner != self._who for one in serials):
                # They were redelivered; to the broker these are numbers of a closed channel.
                yield " fails", world, Raised(TransportUnavailable, "the channel is closed")
                return
            for one in serials:
                held = held.without(one)
            yield "", world._replace(held=held), None

        self._player.ask(Op("ack", outcomes))

    def release(self, received: Sequence[Received]) -> None:
        serials = [cast(int, one.tag) for one in received]

        def outcomes(world: World) -> Outcomes:
            mine = [
                one for one in serials if one in world.held and world.held[one].owner == self._who
            ]
            yield "", world.requeued(*mine), None

        self._player.ask(Op("release", outcomes))

    def close(self) -> None:
        def outcomes(world: World) -> Outcomes:
            mine = [serial for serial, held in world.held.items() if held.owner == self._who]
            yield "", world.requeued(*mine), None

        self._player.ask(Op("close its channel", outcomes))


def as_session(session: SimSession) -> TransportSession:
    """Return *session* as the port: it has all methods that steps and pumps call."""
    return cast(TransportSession, session)


def as_receiver(receiver: SimReceiver) -> Receiver:
    """Return *receiver* as the port: it has all methods that the pump calls."""
    return cast(Receiver, receiver)
